"""Members of a backend that is reached by URL."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.schemas.fields import no_nul
from app.auth.outbound_urls import UrlRefused, parse_url
from app.backends.upstreams.requests import is_free, is_value

MAX_HEADERS = 32
MAX_VALUE = 8192


def _checked_url(text: str) -> str:
    try:
        parse_url(text)
    except UrlRefused as problem:
        raise PydanticCustomError("url", "{problem}", {"problem": str(problem)}) from None
    return text


def _checked_name(name: str) -> str:
    if not is_free(name):
        raise PydanticCustomError("header", "is no name of a header, or one that the gateway writes itself")
    return name


def _checked_value(text: str) -> str:
    if not is_value(text):
        raise PydanticCustomError("header", "must be printable ASCII, without a space at either end")
    return text


Url = Annotated[
    str,
    AfterValidator(no_nul),
    AfterValidator(_checked_url),
    Field(
        description="Where the server is, instead of `command`: an https URL without a user name. http and addresses "
        "that are not public need `TRUNKLINE_UPSTREAM_ALLOW`. Credentials that are recognised in it, such as a "
        "parameter `token`, are write-only: shown as `***`."
    ),
]
HeaderName = Annotated[str, AfterValidator(_checked_name)]
StoredHeaders = dict[HeaderName, Annotated[str, StringConstraints(max_length=2 * MAX_VALUE)]]
HeaderValue = Annotated[str, StringConstraints(max_length=MAX_VALUE), AfterValidator(_checked_value)]
Headers = Annotated[
    dict[HeaderName, HeaderValue],
    Field(
        max_length=MAX_HEADERS,
        description="Sent with each request to `url`. Write-only: answers show the names with the value `***`. The "
        "values are for the scheme, host and port of `url`: with another one they are to be given again.",
    ),
]
