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

from app.telemetry.call_history.record import CallRecord, Named, Origin

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
