"""abandon_the_dead: requests that wait for a node whose host has vanished get their error when the node is known to be
dead, and not when TCP gives up."""

from collections.abc import Awaitable, Callable, Mapping

import anyio

from app.routing.routes import BEAT_S, NodeRecord

SUSPECTED_BEATS = 30  # how long a node that has left the list is looked at; connections to it are gone by then


class Suspects:
    """The nodes that have left the list of the living, and may live all the same. Pure."""

    def __init__(self) -> None:
        self._known: dict[str, NodeRecord] = {}
        self._beats: dict[str, tuple[NodeRecord, int]] = {}  # and for how many more each is looked at

    def of(self, living: Mapping[str, NodeRecord]) -> list[NodeRecord]:
        """Those to look at now. One whose address another node has by now is none: what waits there waits for it."""
        for node, record in self._known.items():
            if node not in living:
                self._beats[node] = record, SUSPECTED_BEATS
        self._known = dict(living)
        taken = {record.url for record in living.values()}
        self._beats = {
            node: (record, left - 1)
            for node, (record, left) in self._beats.items()
            if left and node not in living and record.url not in taken
        }
        return [record for record, _ in self._beats.values()]

    def is_dead(self, node: str) -> None:
        """It does not answer: nobody waits for it any more."""
        self._beats.pop(node, None)


async def abandon_the_dead(
    living: Mapping[str, NodeRecord],
    probe: Callable[[str], Awaitable[str | None]],
    abandon: Callable[[str], None],
    *,
    every_s: float = BEAT_S,
) -> None:
    """Until cancelled: whoever has left the list of nodes and does not answer either is dead."""
    suspects = Suspects()
    while True:
        await anyio.sleep(every_s)
        for record in suspects.of(living):
            if await probe(record.url) != record.id:
                suspects.is_dead(record.id)
                if record.url not in {each.url for each in living.values()}:
                    abandon(record.url)
