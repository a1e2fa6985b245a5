"""Clients of a tenant's authorization server: programs that people connect, or that connect by themselves."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from app.domain.resources.fields import UNSENT, Stored, Title, Unfit, stored
from app.domain.resources.resource import Resource

MAX_URI = 1000
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
# Of no program that somebody has installed: browsers run, open or show what follows.
_NOT_A_PROGRAM = frozenset({
    "about", "blob", "chrome", "data", "file", "filesystem", "ftp", "ftps", "intent", "javascript", "mailto",
    "resource", "tel", "vbscript", "view-source", "ws", "wss",
})  # fmt: skip
_is_plain = re.compile(r"[!$-;=?-Z_a-z~%&'()*+,\[\]@#]+", re.ASCII).fullmatch  # what RFC 3986 allows in a URI
# A name or address and a port: nothing that a browser, or a Content-Security-Policy, reads differently.
_is_authority = re.compile(
    r"([a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE
).fullmatch
_is_connect = re.compile(r"mcp:connect(:[a-z0-9][a-z0-9-]{0,62})?").fullmatch


def parsed_redirect(uri: str) -> SplitResult:
    """The parts of a redirect URI that browsers and this gateway read alike.

    Raises:
        Unfit: it is none to which a code may be sent (RFC 9700, 4.1; RFC 8252, 7).
    """
    words = "is https, http of this machine (127.0.0.1, [::1], localhost), or a program's own scheme; no user, no #"
    refusal = Unfit("redirect_uri", words)
    if not 0 < len(uri) <= MAX_URI or _is_plain(uri) is None or "#" in uri:
        raise refusal
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise refusal from None
    if not parts.scheme or "@" in parts.netloc or port == 0 or _escapes(parts):
        raise refusal
    if parts.scheme in ("http", "https"):
        is_local = parts.hostname in LOOPBACK
        if _is_authority(parts.netloc) is None or (parts.scheme == "http" and not is_local):
            raise refusal
    elif parts.scheme in _NOT_A_PROGRAM or not uri[len(parts.scheme) :].startswith(":/"):
        raise refusal
    return parts


def _escapes(parts: SplitResult) -> bool:
    """Whether a path leads out of what it seems to lead into."""
    return any(each.lower().replace("%2e", ".") in (".", "..") for each in parts.path.split("/"))


def redirects_to(uri: str, registered: Collection[str]) -> bool:
    """Whether the URI is one of these, character for character; of this machine's addresses the port does not count
    (RFC 8252, 7.3)."""
    if uri in registered:
        return True
    try:
        asked = parsed_redirect(uri)
        return any(_is_same_here(asked, parsed_redirect(each)) for each in registered)
    except Unfit:
        return False


def _is_same_here(asked: SplitResult, known: SplitResult) -> bool:
    if asked.scheme != "http" or asked.hostname not in LOOPBACK:
        return False
    return without_port(asked) == without_port(known)


def without_port(parts: SplitResult) -> str:
    """The URI, without the port if it is one of this machine."""
    if parts.scheme != "http":
        return parts.geturl()
    host = parts.hostname or ""
    return parts._replace(netloc=f"[{host}]" if ":" in host else host).geturl()


def _redirect(uri: str) -> str:
    parsed_redirect(uri)
    return uri


def _connect_scope(scope: str) -> str:
    if _is_connect(scope) is None:
        raise Unfit("scope", "is mcp:connect or mcp:connect:BACKEND")
    return scope


RedirectUri = Annotated[str, Meta(max_length=MAX_URI), _redirect]
ConnectScope = Annotated[str, Meta(max_length=80), _connect_scope]
Authentication = Literal["none", "secret", "private_key_jwt"]
REGISTERED = "r-"  # the names of those that have registered themselves begin so, and no others


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClient(Stored):
    """A client by its name, which is its `client_id`. One that has registered itself (RFC 7591) is public, and acts for
    people only. `salt`: of its secret, which is derived from it and not stored."""

    title: Title = ""
    redirect_uris: Annotated[
        tuple[RedirectUri, ...],
        Meta(max_length=20),
        "Where people come back to, compared character for character; of this machine's addresses the port is free.",
    ] = ()
    scopes: Annotated[
        tuple[ConnectScope, ...],
        Meta(max_length=100),
        "What it may use by itself (`client_credentials`): `mcp:connect`, or `mcp:connect:BACKEND` for some. Without "
        "any it acts for people only.",
    ] = ()
    authentication: Annotated[
        Authentication,
        "How it proves who it is: not at all, as programs on people's machines cannot; by a secret, which the answer "
        "to its creation shows once; or by assertions that it signs (`jwks_url`).",
    ] = "none"
    jwks_url: Annotated[str, Meta(max_length=2000), "Where its public keys are, for `private_key_jwt`."] | None = None
    salt: Annotated[str, stored(32)] = field(default_factory=lambda: token_hex(16), repr=False, metadata=UNSENT)

    @property
    def has_registered_itself(self) -> bool:
        return self.name.startswith(REGISTERED)

    @property
    def acts_itself(self) -> bool:
        return bool(self.scopes)


def _fits(client: OAuthClient) -> None:
    if client.has_registered_itself:
        raise Unfit("name", "names that begin with `r-` are those of clients that have registered themselves")
    if client.scopes and client.authentication == "none":
        words = "a client that acts by itself proves who it is: `authentication` is `secret` or `private_key_jwt`"
        raise Unfit("authentication", words)
    if (client.jwks_url is not None) != (client.authentication == "private_key_jwt"):
        raise Unfit("jwks_url", "`jwks_url` and `authentication=private_key_jwt` belong together")
    if not client.scopes and not client.redirect_uris:
        raise Unfit("redirect_uris", "a client has `redirect_uris`, for people, or `scopes`, for itself")


CLIENTS = Resource(
    OAuthClient,
    "clients",
    one="client",
    about="Programs that sign in at the tenant's own authorization server.",
    per_tenant=2000,
    rules=(_fits,),
    columns=("name", "title", "authentication", "redirect_uris", "scopes", "changed_at"),
    words={
        "create": "Registers a client; its name is its `client_id`. Only this answer has its secret, if it gets one.",
        "list": "The tenant's clients by name, those included that have registered themselves. Clients with a metadata "
        "document are not stored.",
        "change": "Changes a client. If it may do less, what it has connected ends.",
        "delete": "Removes a client, and ends all that it has connected.",
    },
)
