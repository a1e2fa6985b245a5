"""NodeList: the nodes as they were last read, and whether it is time to read them again. Pure.

If every node read all others each second, the work would grow with the square of their number. So in a large cluster
each reads them less often, all in turn, and besides only when one of them has come, gone or changed. Who is first to
find that a lease has lapsed says so, and the others read with their next beat.
"""

import math
from collections.abc import Sequence

from app.routing.routes import NodeRecord

READ_A_BEAT = 100  # records that each node reads on average: a tenth of a millisecond of Redis


def beats_between(nodes: int) -> int:
    """How often so many nodes are read though nothing has changed: how much they have to do is told this way only."""
    return max(1, math.ceil(nodes / READ_A_BEAT))


class NodeList:
    """`phase` is any number: nodes with different ones read at different times."""

    def __init__(self, phase: int) -> None:
        self._looks = phase
        self._version: bytes | None = None
        self.nodes: Sequence[NodeRecord] = ()

    def is_due(self, version: bytes) -> bool:
        """Whether to read them; asked with each beat. `version` is what Redis said of the list then."""
        self._looks += 1
        return version != self._version or self._looks % beats_between(len(self.nodes)) == 0

    def read(self, nodes: Sequence[NodeRecord], version: bytes) -> None:
        """What they are."""
        self.nodes, self._version = nodes, version

    def doubt(self) -> None:
        """What was read may not be so any more, whatever the version."""
        self._version = None
