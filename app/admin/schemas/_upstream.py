"""Members of a backend that is reached by URL, and what goes with one."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.schemas.fields import no_nul
from app.auth.outbound_urls import UrlRefused, parse_url
from app.backends.upstreams.requests import is_free, is_value

MAX_HEADERS = 32
MAX_VALUE, MAX_ALL_BYTES = 8192, 16 << 10

# What only a process has, with the value that says nothing.
_OF_PROCESSES: dict[str, object] = {
    "args": [], "env": {}, "cwd": None, "isolation": "session", "broadcast": False, "warm": 0, "max_processes": 10,
    "state": "none", "start": "exec",
}  # fmt: skip
_OF_URLS: dict[str, object] = {"transport": "auto", "headers": {}}


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
        "that are not public need `TRUNKLINE_UPSTREAM_ALLOW`."
    ),
]
Transport = Annotated[
    Literal["auto", "streamable-http", "sse"],
    Field(description="`auto`: Streamable HTTP, and HTTP+SSE if the server does not know that."),
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


def require_one_kind(command: str | None, url: str | None, members: Mapping[str, Any], limits_are_own: bool) -> None:
    """Raises PydanticCustomError unless these are the members of a command, or of a URL. `limits_are_own`: its
    `sandbox`, or `limits`, are not those that every process has."""
    if (command is None) == (url is None):
        message = "give either `command`, which the gateway starts, or `url`, where a server runs already"
        raise PydanticCustomError("kind", message)
    if url is None:
        wrong, why = [name for name in _OF_URLS if members[name] != _OF_URLS[name]], "`url`"
    else:
        wrong = [name for name, value in _OF_PROCESSES.items() if members[name] != value]
        wrong += ["sandbox, limits"] if limits_are_own else []
        why = "`command`: nothing is started for a `url`"
    if wrong:
        words = f"{', '.join(wrong)} can only be given with {why}"
        raise PydanticCustomError("kind", "{words}", {"words": words})
    if sum(len(name) + len(value) for name, value in members["headers"].items()) > 2 * MAX_ALL_BYTES:
        raise PydanticCustomError("too_long", "the headers are more than 16 KiB in all")
    if len({name.lower() for name in members["headers"]}) < len(members["headers"]):
        raise PydanticCustomError("header", "a header is given twice: names of headers have no case")
