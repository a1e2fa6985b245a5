"""abandon_the_dead: requests to a node whose host has vanished fail as soon as the node is known to be dead, and not
only when TCP gives up.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

import anyio

from app.sessions.routes import BEAT_S, NodeRecord, is_there

GREET_EVERY_S = 10.0
LOOK_S = 0.1  # between two checks of the list of nodes, which the heartbeat keeps in memory
SUSPECTED_S = 30.0  # how long a node that has left the list is probed; TCP has closed its connections by then
BELIEVED_S = 0.5  # how long a failed probe counts; a probe takes as long itself
MAX_SILENT = 1000

Probe = Callable[[str], Awaitable[str | None]]  # the id of the node that answers at this URL, if one does


class Silence:
    """A probe (`router.Probe`) that remembers failures for BELIEVED_S: clients of a dead node repeat their requests at
    once, and need not wait for the next failure."""

    def __init__(self, probe: Probe, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe, self._clock = probe, clock
        self._silent: dict[str, float] = {}  # until when, by URL

    async def __call__(self, url: str) -> str | None:
        if self._silent.get(url, 0.0) > self._clock():
            return None
        answer = await self._probe(url)
        self._silent.pop(url, None)
        if answer is None:
            if len(self._silent) >= MAX_SILENT:
                self._silent.clear()
            self._silent[url] = self._clock() + BELIEVED_S
        return answer


class Suspects:
    """Nodes that have left the list of living nodes, but may be alive. The clock is passed in."""

    def __init__(self) -> None:
        self._known: dict[str, NodeRecord] = {}
        self._left: dict[str, tuple[NodeRecord, float, float]] = {}  # when it left, and when it is probed next

    def of(self, living: Mapping[str, NodeRecord], now: float) -> list[NodeRecord]:
        """The nodes to probe now: first when they leave, then with each beat. Not those whose URL another node has by
        now: requests there wait for that one."""
        for node, record in self._known.items():
            if node not in living and not record.draining:  # a node that drains closes its connections itself
                self._left[node] = record, now, now
        self._known = dict(living)
        taken = {record.url for record in living.values()}
        self._left = {
            node: (record, since, next_at)
            for node, (record, since, next_at) in self._left.items()
            if now - since < SUSPECTED_S and node not in living and record.url not in taken
        }
        due = {node: each for node, each in self._left.items() if each[2] <= now}
        self._left |= {node: (record, since, now + BEAT_S) for node, (record, since, _) in due.items()}
        return [record for record, _, _ in due.values()]

    def is_dead(self, node: str) -> None:
        """Removes a node that did not answer."""
        self._left.pop(node, None)


async def abandon_the_dead(
    living: Mapping[str, NodeRecord],
    probe: Probe,
    abandon: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    every_s: float = LOOK_S,
) -> None:
    """Runs until cancelled: calls `abandon` for nodes that have left the list and do not answer a probe."""
    suspects = Suspects()

    async def look_at(record: NodeRecord) -> None:
        if not is_there(await probe(record.url), record.id):
            suspects.is_dead(record.id)
            if record.url not in {each.url for each in living.values()}:
                abandon(record.url)

    while True:
        await anyio.sleep(every_s)
        if due := suspects.of(living, clock()):
            async with anyio.create_task_group() as tasks:  # several nodes of one machine die together
                for record in due:
                    tasks.start_soon(look_at, record)


async def stay_acquainted(living: Mapping[str, NodeRecord], probe: Probe, *, every_s: float = GREET_EVERY_S) -> None:
    """Runs until cancelled: greets the other nodes, so that incompatible ones show in `PeerClient.problems` before the
    first request to them."""
    while True:
        for record in list(living.values()):
            await probe(record.url)
        await anyio.sleep(every_s)
