"""EndedSessions: those whose process has ended, for as long as an answer of theirs may be fetched."""

from collections.abc import Callable

from app.protocol.event_ids import EventId
from app.sessions.session import Session

MAX_SESSIONS = 256  # of a node; the oldest goes first
MAX_BYTES = 32 << 20  # of what may be fetched of them, all together


class EndedSessions:
    """What was answered before a process ended is its client's, who may be on its way back for it."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def keep(self, session: Session) -> None:
        """Keeps a session that has just ended, if it has an answer."""
        if not _has_answer(session, None):
            return
        self._sessions[session.id] = session
        size = sum(_size(each) for each in self._sessions.values())
        while len(self._sessions) > MAX_SESSIONS or size > MAX_BYTES:
            size -= _size(self._sessions.pop(next(iter(self._sessions))))

    def find(self, session_id: str, place: EventId) -> Session | None:
        """The session, if there is an answer on the stream of that event, after it."""
        session = self._sessions.get(session_id)
        return session if session is not None and _has_answer(session, place) else None

    def drop(self, matches: Callable[[Session], bool]) -> None:
        """Those that match have nothing more to give: their client has lost the right to it, or it is too old."""
        self._sessions = {key: session for key, session in self._sessions.items() if not matches(session)}

    def sweep(self, now: float) -> None:
        """Drops what is too old."""
        for session in self._sessions.values():
            session.streams.trim(now)
        self.drop(lambda session: not _has_answer(session, None))

    def __len__(self) -> int:
        return len(self._sessions)


def _has_answer(session: Session, place: EventId | None) -> bool:
    events = (
        ()
        if session.streams.replay is None
        else session.streams.replay
        if place is None
        else session.streams.replay.after(place)
    )
    return any(event.call is not None for event in events)


def _size(session: Session) -> int:
    return 0 if session.streams.replay is None else session.streams.replay.bytes
