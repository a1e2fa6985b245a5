"""SessionCounts: how many sessions this node has, by the name of each count in Redis, and which counts to write again.

Scripts change the counts in Redis step by step. Each changed count is written again with the next beat, as an absolute
number, because an answer may have been lost, or a change applied twice or late. All counts are written when Redis may
have lost them, and the others in turns. With each beat the counted routes are compared with those the node holds. Pure.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager

TURN_BEATS = 60  # a tenth of the time after which routes and counts expire


class Rotation:
    """Goes through names in turns, in lots of one size. New names take part from the next turn."""

    def __init__(self, lots: int) -> None:
        self._lots = lots
        self._left: list[str] = []
        self._size = 0

    def next(self, names: Collection[str], at_most: int) -> list[str]:
        """The next lot; names in it may be gone by now. `names` are all present names."""
        if not self._left:
            self._left, self._size = list(names), math.ceil(len(names) / self._lots)
        size = min(self._size, at_most)
        lot, self._left = self._left[:size], self._left[size:]
        return lot


class SessionCounts:
    """Counts routes by key. Counts that Redis is being told of are not written at the same time."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}  # of each route that counts
        self._sessions: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._unsure: dict[str, None] = {}  # in the order in which they became so
        self._rotation = Rotation(TURN_BEATS)
        self._strays: Set[str] = frozenset()

    def add(self, key: str, names: tuple[str, ...]) -> None:
        """Adds a route of ours, without names if it does not count as a session. Idempotent."""
        if key not in self._names:
            self._names[key] = names
            self._sessions.update(names)
            self.doubt(names)

    def remove(self, key: str) -> None:
        """Removes a route that is no longer ours."""
        names = self._names.pop(key, ())
        for name in names:
            self._sessions[name] -= 1
            if not self._sessions[name]:
                del self._sessions[name]
        self.doubt(names)

    def compare(self, held: Set[str]) -> list[str]:
        """Removes routes that the node does not hold, this time and the last (a release may be under way); returns
        their keys."""
        strays = self._names.keys() - held
        gone = [key for key in strays if key in self._strays]
        for key in gone:
            self.remove(key)
        self._strays = strays
        return gone

    def doubt(self, names: tuple[str, ...]) -> None:
        """Redis may have other numbers for these."""
        self._unsure.update(dict.fromkeys(names))

    def doubt_all(self) -> None:
        self._unsure.update(dict.fromkeys(self._sessions))

    @contextmanager
    def changing(self, names: tuple[str, ...]) -> Iterator[None]:
        """Around a change in Redis. Its outcome is doubted, whatever it is."""
        with self._busy(names):
            try:
                yield
            finally:
                self.doubt(names)

    @contextmanager
    def saying(self, said: Mapping[str, int]) -> Iterator[None]:
        """Around writing these numbers. Those that have changed meanwhile are doubted: the order is unknown."""
        with self._busy(tuple(said)):
            try:
                yield
            except BaseException:
                self.doubt(tuple(said))
                raise
            self.doubt(tuple(name for name, sessions in said.items() if self._sessions[name] != sessions))

    @contextmanager
    def _busy(self, names: tuple[str, ...]) -> Iterator[None]:
        self._under_way.update(names)
        try:
            yield
        finally:
            self._under_way.subtract(names)
            for name in names:
                if not self._under_way[name]:
                    del self._under_way[name]

    def to_say(self, most: int) -> dict[str, int]:
        """The numbers to write next: the doubtful ones, and a lot of the others. They are not doubtful any more."""
        turn = self._rotation.next(self._sessions, max(0, most - len(self._unsure)))
        names = [name for name in dict.fromkeys([*self._unsure, *turn]) if name not in self._under_way]
        for name in names[:most]:
            self._unsure.pop(name, None)
        return {name: self._sessions[name] for name in names[:most]}

    @property
    def has_doubts(self) -> bool:
        """Whether a doubtful count can be written now."""
        return any(name not in self._under_way for name in self._unsure)

    def __contains__(self, key: str) -> bool:
        return key in self._names

    def __len__(self) -> int:
        return len(self._names)
