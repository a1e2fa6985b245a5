"""What is wrong with other nodes, as one of them sees it."""

from collections.abc import Collection, Iterator, Sequence

from app.routing.routes import NodeRecord
from app.this_node.problems.problem import Problem
from app.this_node.views import NodeStatus


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
