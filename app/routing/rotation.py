"""Rotation: which of many things are due now, where each has its turn within a while. Pure."""

import math
from collections.abc import Collection

TURN_BEATS = 60  # a tenth of what routes and counts are kept for


class Rotation:
    """A turn goes over what there was when it began, in lots of one size; what came since is in the next one."""

    def __init__(self, lots: int) -> None:
        self._lots = lots
        self._left: list[str] = []
        self._size = 0

    def next(self, names: Collection[str], at_most: int) -> list[str]:
        """The next lot, of which some may be gone by now. `names` are all that there are."""
        if not self._left:
            self._left, self._size = list(names), math.ceil(len(names) / self._lots)
        size = min(self._size, at_most)
        lot, self._left = self._left[:size], self._left[size:]
        return lot
