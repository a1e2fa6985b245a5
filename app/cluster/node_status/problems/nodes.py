"""What is wrong with other nodes, as one of them sees it."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from app.cluster.node_status.problems.problem import Problem
from app.cluster.node_status.views import NodeStatus
from app.sessions.routes import NodeRecord

LOST_S = 600.0  # for so long a lost node is shown
MAX_ASKED = 20  # of them


class LostNode(NamedTuple):
    """A node of which nothing is heard any more, and since when that is known here, by the clock."""

    node: NodeRecord
    since: float


class Lost:
    """Nodes that have left the list without draining: they died, or cannot use Redis."""

    def __init__(self, departed: Callable[[], Iterable[NodeRecord]], clock: Callable[[], float]) -> None:
        self._departed, self._clock = departed, clock
        self._since: dict[str, float] = {}

    def lately(self) -> Sequence[LostNode]:
        """Those of the last ten minutes, the last ones first."""
        now, departed = self._clock(), list(self._departed())
        self._since = {each.id: self._since.get(each.id, now) for each in departed}
        found = [LostNode(each, self._since[each.id]) for each in departed if not each.draining]
        return [each for each in reversed(found) if now - each.since < LOST_S][:MAX_ASKED]

    def problems(self, silent: Collection[str]) -> Iterator[Problem]:
        """Each is one; those that are not `silent` still answer."""
        for node, _ in self.lately():
            words = f"Nothing is heard any more of the node {node.id} at {node.url} through Redis"
            if node.id in silent:
                words, do = f"{words}, and it does not answer.", "See whether it runs, and what its log says last."
            else:
                words, do = f"{words}, but it answers: it cannot use Redis.", "See below what it says of Redis."
            yield Problem("node_lost", "critical", ("node", node.id), words, do, ("nodes", ""))


def of_others(own: NodeStatus, others: Sequence[NodeRecord], silent: Collection[str]) -> Iterator[Problem]:
    """Those that do not answer, and releases that differ. That one drains it says itself, if it answers."""
    by_id = {each.id: each for each in others}
    for node in silent:
        where = by_id[node].url if node in by_id else ""
        words = f"The node {node}{f' at {where}' if where else ''} did not answer within a second."
        do = "What it has is missing in all lists. See whether it runs, and what its log says; it may be overloaded."
        yield Problem("node_silent", "critical", ("node", node), words, do, ("node", node), nodes=(own.id,))
    for each in others:
        if each.draining and each.id in silent:
            words = f"The node {each.id} drains: it was told to stop, and takes no new sessions."
            do = "Nothing, if that was meant; it ends by itself."
            yield Problem("node_draining", "info", ("node", each.id), words, do, ("node", each.id), nodes=(each.id,))
    versions = sorted({own.version, *(each.version for each in others)})
    if len(versions) > 1:
        words = f"The nodes run different releases: {' and '.join(versions)}."
        do = "Finish the upgrade: all nodes must be of one release."
        yield Problem("node_releases", "info", ("release", versions[-1]), words, do, ("nodes", ""), nodes=(own.id,))
