"""Members of a backend that is reached by URL."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.schemas.declared import DeclaredBody, part, patches, shows
from app.admin.schemas.fields import Answer, Strict, field_of, no_nul
from app.auth.outbound_urls import UrlRefused, parse_url
from app.backends.upstreams.certificates import certificates_of
from app.backends.upstreams.requests import is_free, is_value
from app.domain.resources.backends import HIDDEN, Connect
from app.domain.resources.members import declared_members
from app.text.pem import PemRefused, only_certificates, only_key

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


def _pem(only: Callable[[str], str], *, is_secret: bool = False) -> AfterValidator:
    def checked(text: str | None) -> str | None:
        if text is None or (is_secret and text == HIDDEN):  # in a patch that means the one that is there
            return text
        try:
            return only(text)
        except PemRefused as problem:
            raise PydanticCustomError("pem", "{problem}", {"problem": str(problem)}) from None

    return AfterValidator(checked)


def _proxy(text: str | None) -> str | None:
    if text is None:
        return None
    if "@" in text:
        words = "is shown to readers: give name and password as `connect.proxy_auth` (`NAME:PASSWORD`), without `@`"
        raise PydanticCustomError("proxy", words)
    url = _checked_url(text)
    if parse_url(url).target != "/":
        raise PydanticCustomError("proxy", "has no path: it is `http://HOST:PORT` or `https://HOST:PORT`")
    return url.removesuffix("/")


def _login(text: str | None) -> str | None:
    if text is not None and text != HIDDEN and (":" not in text or not text.isprintable()):
        raise PydanticCustomError("proxy_auth", "must be `NAME:PASSWORD`, in printable characters")
    return text


@part(Connect)
class StoredConnect(DeclaredBody):
    """How the server is connected to, with its secrets sealed."""

    model: ClassVar[type[Any]] = Connect

    proxy_auth: str | None = None
    key: str | None = None


_KIND_OF = {each.name: field_of(each.kind) for each in declared_members(Connect)}.__getitem__
ConnectKey: Any = Annotated[_KIND_OF("key"), _pem(only_key, is_secret=True)]


ProxyAuth: Any = Annotated[_KIND_OF("proxy_auth"), AfterValidator(_login)]
ProxyUrl: Any = Annotated[_KIND_OF("proxy"), AfterValidator(_proxy)]
Authorities: Any = Annotated[_KIND_OF("ca"), _pem(only_certificates)]
Chain: Any = Annotated[_KIND_OF("certificate"), _pem(only_certificates)]


class ConnectBody(StoredConnect):
    """How the server is connected to."""

    proxy: ProxyUrl = None
    proxy_auth: ProxyAuth = None

    ca: Authorities = None
    certificate: Chain = None
    key: ConnectKey = None


@patches(ConnectBody)
class ConnectPatch(Strict):
    """A merge patch."""


class CertificateAnswer(BaseModel):
    """A certificate of a backend's `connect`."""

    member: str = Field(examples=["ca", "certificate"])
    subject: str
    expires_at: datetime
    sha256: str = Field(description="Its fingerprint.")


Hidden = Annotated[str | None, BeforeValidator(lambda value: None if value is None else HIDDEN)]


@shows(ConnectBody, of_tenant=False)
class ConnectAnswer(Answer):
    """How the server is connected to."""

    proxy_auth: Hidden = Field(description=f"`{HIDDEN}`, if there is one.")
    key: Hidden = Field(description=f"`{HIDDEN}`, if there is one.")


def certificates_shown(connect: Connect) -> list[CertificateAnswer]:
    """Those of its members."""
    return [
        CertificateAnswer(member=name, subject=each.subject, expires_at=each.expires_at, sha256=each.sha256)
        for name, each in certificates_of(connect)
    ]
