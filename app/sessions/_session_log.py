"""SessionLog: one line when a session opens, one when it ends: whose, which client, which process, how much."""

import logging
import time
from typing import Any

from app.domain import Rest, public_id
from app.errors import GatewayError
from app.sessions.call_observers import program_of
from app.sessions.session import Session
from app.telemetry.logs import Thinned

log = logging.getLogger(__name__)


class SessionLog:
    """The session lines of one node. If there are too many, some are left out and counted (Thinned)."""

    def __init__(self) -> None:
        self._thinned = Thinned(log)

    def opened(self, session: Session, how: str) -> None:
        """`how` is "handshake"; "taken over" from another node; or "no handshake" (2026-07-28)."""
        fields = _of(session) | {
            "transport": session.transport,
            "revision": session.version,
            "how": how,
        }
        if how != "taken over":  # there it was opened long ago, and here its process is still being started
            fields |= {
                "backend_process": session.connection.process,
                "start": "warm" if session.connection.was_warm else "cold",
                "waited_ms": _ms(session.waited_s),
                "opened_ms": _ms(time.monotonic() - session.opened_at),
            }
        program = {f"client_{name}": text for name, text in program_of(session).items()}
        self._thinned.info("opened", "session opened", fields | program)

    def rests(self, session: Session, how: Rest, idle_s: float) -> None:
        self._thinned.info(how, f"session {how}", _of(session) | {"idle_s": round(idle_s, 1)})

    def not_frozen(self, session: Session, error: OSError) -> None:
        """Its process could not be stopped, and goes on."""
        self._thinned.info("not frozen", "session not frozen", _of(session) | {"error": str(error)})

    def thawed(self, session: Session, waited_s: float) -> None:
        """Its process goes on."""
        fields = _of(session) | {"backend_process": session.connection.process, "waited_ms": _ms(waited_s)}
        self._thinned.info("thawed", "session thawed", fields)

    def not_thawed(self, session: Session, error: GatewayError) -> None:
        """Its process is ended, and the session with it."""
        fields = _of(session) | {"backend_process": session.connection.process, "error": str(error)}
        self._thinned.info("not thawed", "session not thawed: its process is ended", fields)

    def woken(self, session: Session, waited_s: float, *, was_warm: bool) -> None:
        """A parked session has a process again."""
        fields = _of(session) | {
            "backend_process": session.connection.process,
            "start": "warm" if was_warm else "cold",
            "waited_ms": _ms(waited_s),
        }
        self._thinned.info("woken", "session woken", fields)

    def not_woken(self, session: Session, error: GatewayError) -> None:
        """It stays parked."""
        fields = _of(session) | {"reason": error.reason, "error": str(error)}
        self._thinned.info(("not woken", error.reason), "session not woken: it got no process", fields)

    def ended(self, session: Session, reason: str) -> None:
        """Also called for a session that never opened."""
        fields = _of(session) | {
            "reason": reason,
            "seconds": round(time.monotonic() - session.opened_at, 1),
            "calls": session.calls.begun,
            "bytes_to_backend": session.calls.bytes_sent,
            "bytes_from_backend": session.bytes_received,
        }
        self._thinned.info(("ended", reason), "session ended", fields)


def _of(session: Session) -> dict[str, Any]:
    return {
        "session": public_id(session.id),
        "tenant": session.spec.tenant,
        "backend": session.spec.name,
        "principal": session.principal.name,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
