"""LogLevels: which of a shared process's log messages each session gets."""

from app.protocol.eras.sessionless_envelope import LEVELS
from app.protocol.shared.shared_call import Member

USUAL = LEVELS.index("info")  # of a session that has set none


class LogLevels:
    """The process gets the lowest level of all sessions, once one of them has set a level."""

    def __init__(self) -> None:
        self._wanted: dict[Member, int] = {}
        self._was_asked = False
        self._told: int | None = None

    def joined(self, who: Member) -> None:
        """A session that has set no level yet. Idempotent."""
        self._wanted.setdefault(who, USUAL)

    def wants(self, who: Member, level: str) -> None:
        """The session has set its level."""
        self._wanted[who] = LEVELS.index(level)
        self._was_asked = True

    def left(self, who: Member) -> None:
        """Idempotent."""
        self._wanted.pop(who, None)

    def to_tell(self) -> str | None:
        """The level to set at the process, if it has to change."""
        if not self._was_asked or not self._wanted:
            return None
        lowest = min(self._wanted.values())
        if lowest == self._told:
            return None
        self._told = lowest
        return LEVELS[lowest]

    def hears(self, who: Member, level: str | None) -> bool:
        """Whether the session gets messages of this level; nobody gets those of an unknown one."""
        return level in LEVELS and LEVELS.index(level) >= self._wanted.get(who, USUAL)
