"""SessionCounts: how many sessions this node has, by the name of each count in Redis, and which of them to say again.

Redis adds up what the scripts tell it; where an answer was lost the two may differ, and what the node knows wins.
Pure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app.routing.rotation import TURN_BEATS, Rotation


class SessionCounts:
    """Counts routes by key; `changing` holds the names whose count is under way, and must not be said meanwhile."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}  # of each route that counts
        self._sessions: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._unsure: dict[str, None] = {}  # in the order in which they became so
        self._rotation = Rotation(TURN_BEATS)

    def add(self, key: str, names: tuple[str, ...]) -> None:
        """A route that is ours; no names where it does not count. Again: nothing."""
        if key not in self._names:
            self._names[key] = names
            self._sessions.update(names)

    def remove(self, key: str) -> None:
        """A route that is not ours any more."""
        for name in self._names.pop(key, ()):
            self._sessions[name] -= 1
            if not self._sessions[name]:
                del self._sessions[name]

    def doubt(self, names: tuple[str, ...]) -> None:
        """What Redis counts there may be something else."""
        self._unsure.update(dict.fromkeys(names))

    def doubt_all(self) -> None:
        """Redis may have lost everything."""
        self._unsure.update(dict.fromkeys(self._sessions))

    def doubt_changed(self, said: Mapping[str, int]) -> None:
        """What has changed while it was being said, in whichever order Redis has heard of it."""
        self.doubt(tuple(name for name, sessions in said.items() if self._sessions[name] != sessions))

    @contextmanager
    def changing(self, names: tuple[str, ...]) -> Iterator[None]:
        """While Redis is told of a change; if that fails nobody knows what it counts."""
        self._under_way.update(names)
        try:
            yield
        except BaseException:
            self.doubt(names)
            raise
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
