"""EndedSessions: sessions whose process has ended, as long as their clients may fetch answers."""

from collections.abc import Callable

from app.protocol.event_ids import EventId
from app.sessions.session import Session

MAX_SESSIONS = 256  # of a node; the oldest goes first
MAX_BYTES = 32 << 20  # of all their events


class EndedSessions:
    """Calls that were answered before the process ended keep their answers: the client may come back for them."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def keep(self, session: Session) -> None:
        """Keeps a session that has just ended, if it has an answer."""
        if not _has_answer(session):
            return
        self._sessions[session.id] = session
        size = sum(_size(each) for each in self._sessions.values())
        while len(self._sessions) > MAX_SESSIONS or size > MAX_BYTES:
            size -= _size(self._sessions.pop(next(iter(self._sessions))))

    def find(self, session_id: str, place: EventId) -> Session | None:
        """The session, if there is an answer after that event on its stream."""
        session = self._sessions.get(session_id)
        return session if session is not None and _has_answer(session, place) else None

    def drop(self, matches: Callable[[Session], bool]) -> None:
        """Forgets those that match."""
        self._sessions = {key: session for key, session in self._sessions.items() if not matches(session)}

    def sweep(self, now: float) -> None:
        """Forgets answers that are too old, and sessions without any."""
        for session in self._sessions.values():
            session.streams.trim(now)
        self.drop(lambda session: not _has_answer(session))


def _has_answer(session: Session, place: EventId | None = None) -> bool:
    replay = session.streams.replay
    if replay is None:
        return False
    return any(event.call is not None for event in (replay if place is None else replay.after(place)))


def _size(session: Session) -> int:
    return 0 if session.streams.replay is None else session.streams.replay.bytes
