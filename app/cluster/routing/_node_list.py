"""NodeList: the nodes as they were last read, and whether it is time to read them again. Pure.

If every node read all others each second, the work would grow with the square of their number. So in a large cluster
each reads them less often, in turns, and at once only after a node has come, gone or changed. The first node that finds
an expired lease marks the list as changed; the others read it with their next beat.
"""

import math
from collections.abc import Sequence

from app.sessions.routes import NodeRecord

READ_A_BEAT = 100  # records that each node reads on average: they cost Redis 0.1 ms


def beats_between(nodes: int) -> int:
    """Every how many beats the list is read although it has not changed: only so their load becomes known."""
    return max(1, math.ceil(nodes / READ_A_BEAT))


class NodeList:
    """`phase` is any number; nodes with different ones read at different times."""

    def __init__(self, phase: int) -> None:
        self._looks = phase
        self._version: bytes | None = None
        self.nodes: Sequence[NodeRecord] = ()

    def is_due(self, version: bytes) -> bool:
        """Whether to read the list; to be called with each beat. `version` is that of the list in Redis."""
        self._looks += 1
        return version != self._version or self._looks % beats_between(len(self.nodes)) == 0

    def read(self, nodes: Sequence[NodeRecord], version: bytes) -> None:
        self.nodes, self._version = nodes, version

    def doubt(self) -> None:
        """Makes the next `is_due` true."""
        self._version = None
