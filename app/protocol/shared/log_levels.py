"""LogLevels: which of a shared process's log messages each session hears. No await, no clock."""

from typing import Generic, TypeVar

from app.protocol.eras.modern import LEVELS

USUAL = LEVELS.index("info")  # of a session that has asked for none

Who = TypeVar("Who")


class LogLevels(Generic[Who]):
    """The process has one level: the lowest that anybody wants. Until somebody asks for one it keeps its own."""

    def __init__(self) -> None:
        self._wanted: dict[Who, int] = {}
        self._was_asked = False
        self._told: int | None = None

    def joined(self, who: Who) -> None:
        """One that has asked for no level yet. Idempotent."""
        self._wanted.setdefault(who, USUAL)

    def wants(self, who: Who, level: str) -> None:
        """It wants to hear this level, and what is above."""
        self._wanted[who] = LEVELS.index(level)
        self._was_asked = True

    def left(self, who: Who) -> None:
        """It is gone. Idempotent."""
        self._wanted.pop(who, None)

    def to_tell(self) -> str | None:
        """The level that the process is to be told, if it is another than it has been told."""
        if not self._was_asked or not self._wanted:
            return None
        lowest = min(self._wanted.values())
        if lowest == self._told:
            return None
        self._told = lowest
        return LEVELS[lowest]

    def hears(self, who: Who, level: str | None) -> bool:
        """Whether a message of this level is for it; one of an unknown level is for nobody."""
        return level in LEVELS and LEVELS.index(level) >= self._wanted.get(who, USUAL)
