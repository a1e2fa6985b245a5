"""SessionCounts: how many sessions this node has, by the name of each count in Redis, and which of them to say again.

Redis adds up what the scripts tell it. What has changed there is said again with the next beat, as the number that it
is: an answer may have been lost, a change carried out twice, or after the number was said. Everything is said where
Redis may have forgotten it, and all the rest in turn. What counts at all is compared with what the node holds, at each
beat. Pure.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager

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


class SessionCounts:
    """Counts routes by key; `changing` holds the names whose count is under way, and must not be said meanwhile."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}  # of each route that counts
        self._sessions: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._unsure: dict[str, None] = {}  # in the order in which they became so
        self._rotation = Rotation(TURN_BEATS)
        self._strays: Set[str] = frozenset()

    def add(self, key: str, names: tuple[str, ...]) -> None:
        """A route that is ours; no names where it does not count. Again: nothing."""
        if key not in self._names:
            self._names[key] = names
            self._sessions.update(names)
            self.doubt(names)

    def remove(self, key: str) -> None:
        """A route that is not ours any more, whoever has taken it."""
        names = self._names.pop(key, ())
        for name in names:
            self._sessions[name] -= 1
            if not self._sessions[name]:
                del self._sessions[name]
        self.doubt(names)

    def compare(self, held: Set[str]) -> list[str]:
        """What the node holds: the others count no more, unless they have only just been let go of, and are being
        released. Returns those that went."""
        strays = self._names.keys() - held
        gone = [key for key in strays if key in self._strays]
        for key in gone:
            self.remove(key)
        self._strays = strays
        return gone

    def doubt(self, names: tuple[str, ...]) -> None:
        """What Redis counts there may be something else."""
        self._unsure.update(dict.fromkeys(names))

    def doubt_all(self) -> None:
        """Redis may have lost everything."""
        self._unsure.update(dict.fromkeys(self._sessions))

    @contextmanager
    def changing(self, names: tuple[str, ...]) -> Iterator[None]:
        """While Redis is told of a change, and whatever becomes of that."""
        with self._busy(names):
            try:
                yield
            finally:
                self.doubt(names)

    @contextmanager
    def saying(self, said: Mapping[str, int]) -> Iterator[None]:
        """While Redis is told these numbers; what has changed meanwhile is said again, in whichever order it has heard
        of it."""
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
        """The doubtful ones, and of the others some in turn, with what they are; they count as said from now on."""
        turn = self._rotation.next(self._sessions, max(0, most - len(self._unsure)))
        names = [name for name in dict.fromkeys([*self._unsure, *turn]) if name not in self._under_way]
        for name in names[:most]:
            self._unsure.pop(name, None)
        return {name: self._sessions[name] for name in names[:most]}

    @property
    def has_doubts(self) -> bool:
        """Whether some count should be said soon, and can be."""
        return any(name not in self._under_way for name in self._unsure)

    def __contains__(self, key: str) -> bool:
        return key in self._names

    def __len__(self) -> int:
        return len(self._names)
