"""CallRecord: one call that is over. Origin: what all calls of one session have in common."""

from typing import Protocol

import msgspec

from app.telemetry.tracing.context import Traced
from app.text.memo import memo

MAX_TOOL = 200  # characters of a name or URI that are kept
FIXED_BYTES = 350  # of a record with its ids, besides the name of its tool


class Named(Traced, Protocol):
    """The ids of the HTTP request that a call came with (`http.request_ids.RequestIds`)."""

    def names(self) -> tuple[str, str]:
        """The request id and the trace id."""


class Origin:
    """Whose calls these are: one session, and the client that opened it. `session` is its public id."""

    __slots__ = (
        "_records", "_size", "backend", "client_name", "client_version", "issuer", "principal_tenant", "session",
        "subject", "tenant",
    )  # fmt: skip

    def __init__(
        self, place: tuple[str, str], identity: tuple[str, str, str], session: str, client: tuple[str, str] = ("", "")
    ) -> None:
        self.tenant, self.backend = place
        self.principal_tenant, self.issuer, self.subject = identity
        self.session = session
        self.client_name, self.client_version = client
        self._records = 0
        self._size = 500 + sum(map(len, (*identity, *client)))

    def kept(self) -> int:
        """One more record names it; returns the bytes that it takes, if they are not counted yet."""
        self._records += 1
        return self._size if self._records == 1 else 0

    def let_go(self) -> int:
        """One record less; returns the bytes that are free now."""
        self._records -= 1
        return 0 if self._records else self._size


class CallRecord(msgspec.Struct, gc=False, frozen=True):
    """A call that is over. `at` is when, in Unix time; `number` tells records of one moment apart."""

    number: int
    origin: Origin
    at: float
    method: str
    tool: str  # or the prompt, or the resource's URI without its query
    outcome: str  # "ok", "tool_error", a JSON-RPC code of the backend, or the reason of an error of the gateway
    seconds: float
    bytes_in: int  # of the request
    bytes_out: int  # of the result or the error
    ids: Named | None

    @property
    def size(self) -> int:
        """The bytes of memory that it takes, without its origin."""
        return FIXED_BYTES + len(self.tool)


def name_of(method: str, named: bytes | None) -> str:
    """What a call is for, by the JSON string that names it, such that it can be shown: a URI without user, password,
    query and fragment, which may hold secrets."""
    if named is None:
        return ""
    return _name(bytes(named)) if method in ("tools/call", "prompts/get") else _uri(bytes(named))


@memo(4096)
def _name(named: bytes) -> str:
    try:
        text = msgspec.json.decode(named, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return "".join(each if each.isprintable() else "?" for each in text[:MAX_TOOL])


def _uri(named: bytes) -> str:
    text = _name(named)
    for end in "?#":
        text = text.partition(end)[0]
    scheme, slashes, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{authority.rpartition('@')[2]}{slash}{path}"
