"""CallHistory: the last calls of every tenant on this node, in memory and bounded.

Each tenant keeps `per_tenant` records. Above `max_bytes` of all tenants together those with the most lose their oldest
ones: a busy tenant cannot push out the calls of another.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
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


MOST_OF_ALL = 10_000  # records that are looked at where no tenant is named: of 80,000 the event loop would feel it
KEPT_AFTER_TRIM = 0.875  # of `max_bytes`: trimming looks at every tenant, so it must be seldom


class _Ring:
    """The records of one tenant, oldest first."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records: deque[CallRecord] = deque()
        self.bytes = 0

    def add(self, record: CallRecord) -> int:
        """Returns the bytes by which it has grown."""
        grown = record.size + record.origin.kept()
        self.records.append(record)
        self.bytes += grown
        return grown

    def drop_oldest(self) -> int:
        """Returns the bytes by which it has shrunk."""
        record = self.records.popleft()
        shrunk = record.size + record.origin.let_go()
        self.bytes -= shrunk
        return shrunk


class CallHistory:
    """Used from the event loop's thread only; `note` is on the message path. `per_tenant` of 0 keeps nothing."""

    def __init__(self, per_tenant: int, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._per_tenant, self._max_bytes, self._clock = per_tenant, max_bytes, clock
        self._rings: dict[str, _Ring] = {}
        self._bytes = 0
        # Numbers of different nodes, and of a node before and after its restart, are practically never the same.
        self._number = secrets.randbits(62)

    @property
    def bytes(self) -> int:
        """The memory of all records, about."""
        return self._bytes

    def __len__(self) -> int:
        return sum(len(ring.records) for ring in self._rings.values())

    def note(  # noqa: PLR0913 - on the message path
        self, origin: Origin, method: str, tool: str, outcome: str, seconds: float, bytes_in: int, bytes_out: int,
        ids: Named | None,
    ) -> None:  # fmt: skip
        """A call is over."""
        if not self._per_tenant:
            return
        self._number += 1
        ring = self._rings.get(origin.tenant)
        if ring is None:
            ring = self._rings[origin.tenant] = _Ring()
        self._bytes += ring.add(
            CallRecord(self._number, origin, self._clock(), method, tool, outcome, seconds, bytes_in, bytes_out, ids)
        )
        if len(ring.records) > self._per_tenant:
            self._bytes -= ring.drop_oldest()
        if self._bytes > self._max_bytes:
            self._trim()

    def of(self, tenant: str | None) -> Iterator[CallRecord]:
        """The tenant's records, newest first; with None the newest MOST_OF_ALL of all tenants."""
        if tenant is None:
            rings = (reversed(ring.records) for ring in self._rings.values())
            return islice(merge(*rings, key=lambda record: -record.at), MOST_OF_ALL)
        ring = self._rings.get(tenant)
        return iter(()) if ring is None else reversed(ring.records)

    @property
    def number(self) -> int:
        """Of the newest record: they are counted."""
        return self._number

    def since(self, number: int) -> Iterator[CallRecord]:
        """The records of all tenants after the one with this number, in no order; there may be some less."""
        for ring in self._rings.values():
            for record in reversed(ring.records):
                if record.number <= number:
                    break
                yield record

    def forget(self, tenant: str) -> None:
        """The tenant was removed."""
        ring = self._rings.pop(tenant, None)
        if ring is not None:
            self._bytes -= ring.bytes

    def _trim(self) -> None:
        share = fair_share([ring.bytes for ring in self._rings.values()], int(self._max_bytes * KEPT_AFTER_TRIM))
        for tenant, ring in list(self._rings.items()):
            while ring.bytes > share and ring.records:
                self._bytes -= ring.drop_oldest()
            if not ring.records:
                del self._rings[tenant]


def fair_share(sizes: Sequence[int], room: int) -> int:
    """The largest share for which all sizes, none counted with more than the share, fit into the room."""
    left = room
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return room
