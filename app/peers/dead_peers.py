"""abandon_the_dead: requests that wait for a node whose host has vanished get their error when the node is known to be
dead, and not when TCP gives up.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

import anyio

from app.routing.routes import BEAT_S, NodeRecord, is_there

GREET_EVERY_S = 10.0
LOOK_S = 0.1  # between two looks at the list of nodes, which is in memory: a heartbeat keeps it
SUSPECTED_S = 30.0  # how long a node that has left the list is looked at; connections to it are gone by then
BELIEVED_S = 0.5  # how long silence counts: a probe takes as long, so what it says is no younger
MAX_SILENT = 1000

Probe = Callable[[str], Awaitable[str | None]]  # the id of the node that answers at this address, if one does


class Silence:
    """A probe (`router.Probe`) that does not ask again who has just not answered: whoever waited for that node comes
    again at once, and need not wait for the same silence."""

    def __init__(self, probe: Probe, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe, self._clock = probe, clock
        self._silent: dict[str, float] = {}  # by URL: until when that is believed

    async def __call__(self, url: str) -> str | None:
        """The id of the node that answers at this URL; None where none does, or none did moments ago."""
        if self._silent.get(url, 0.0) > self._clock():
            return None
        answer = await self._probe(url)
        self._silent.pop(url, None)
        if answer is None:
            if len(self._silent) >= MAX_SILENT:
                self._silent.clear()
            self._silent[url] = self._clock() + BELIEVED_S
        return answer

    def __repr__(self) -> str:
        return f"<Silence [{len(self._silent)} silent]>"


class Suspects:
    """The nodes that have left the list of the living, and may live all the same. Pure: the clock is passed in."""

    def __init__(self) -> None:
        self._known: dict[str, NodeRecord] = {}
        self._left: dict[str, tuple[NodeRecord, float, float]] = {}  # when it left, and when it is looked at next

    def of(self, living: Mapping[str, NodeRecord], now: float) -> list[NodeRecord]:
        """Those to look at now: whoever has just left at once, then each beat. One whose address another node has by
        now is none: what waits there waits for it."""
        for node, record in self._known.items():
            if node not in living and not record.draining:  # one that leaves ends its connections itself
                self._left[node] = record, now, now
        self._known = dict(living)
        taken = {record.url for record in living.values()}
        self._left = {
            node: (record, since, next_at)
            for node, (record, since, next_at) in self._left.items()
            if now - since < SUSPECTED_S and node not in living and record.url not in taken
        }
        return [self._looked_at(node, now) for node, (_, _, next_at) in list(self._left.items()) if next_at <= now]

    def is_dead(self, node: str) -> None:
        """It does not answer: nobody waits for it any more."""
        self._left.pop(node, None)

    def _looked_at(self, node: str, now: float) -> NodeRecord:
        record, since, _ = self._left[node]
        self._left[node] = record, since, now + BEAT_S
        return record


async def abandon_the_dead(
    living: Mapping[str, NodeRecord],
    probe: Probe,
    abandon: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    every_s: float = LOOK_S,
) -> None:
    """Until cancelled: whoever has left the list of nodes and does not answer either is dead."""
    suspects = Suspects()

    async def look_at(record: NodeRecord) -> None:
        if not is_there(await probe(record.url), record.id):
            suspects.is_dead(record.id)
            if record.url not in {each.url for each in living.values()}:
                abandon(record.url)

    while True:
        await anyio.sleep(every_s)
        if due := suspects.of(living, clock()):
            async with anyio.create_task_group() as tasks:  # several die together where a machine had them
                for record in due:
                    tasks.start_soon(look_at, record)


async def stay_acquainted(living: Mapping[str, NodeRecord], probe: Probe, *, every_s: float = GREET_EVERY_S) -> None:
    """Until cancelled: asks the other nodes who they are, so that it shows at once and not with the first request that
    this node and another do not work together (see `PeerClient.problems`)."""
    while True:
        for record in list(living.values()):
            await probe(record.url)
        await anyio.sleep(every_s)
