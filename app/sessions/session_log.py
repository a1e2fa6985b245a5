"""SessionLog: one line when a session opens, one when it ends: whose, which program, which process, how much."""

import logging
import time
from typing import Any

import msgspec

from app.domain import public_id
from app.logs import Thinned
from app.protocol.jsonrpc import members_of, string_of
from app.sessions.session import Session

MAX_NAME = 80  # characters of what a client calls itself

log = logging.getLogger(__name__)


class SessionLog:
    """Of the sessions of one node. Where they come by the thousand, some lines are left out and counted."""

    def __init__(self) -> None:
        self._thinned = Thinned(log)

    def opened(self, session: Session, how: str) -> None:
        """`how` is "handshake"; "taken over" from another node; or "no handshake" (2026-07-28)."""
        fields = _of(session) | {
            "transport": session.transport,
            "revision": session.version,
            "how": how,
            "backend_process": session.link.process,
            "start": "warm" if session.link.was_warm else "cold",
            "waited_ms": _ms(session.waited_s),
            "opened_ms": _ms(time.monotonic() - session.opened_at),
        }
        program = {f"client_{name}": text for name, text in program_of(session).items()}
        self._thinned.info("opened", "session opened", fields | program)

    def ended(self, session: Session, reason: str) -> None:
        """A session that never opened has ended, too."""
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


def program_of(session: Session) -> dict[str, str]:
    """What the client says of itself: `name` and `version`, where it does."""
    info = session.client_info
    try:
        if info is None and session.hello is not None:
            info = members_of(members_of(msgspec.Raw(session.hello))["params"])["clientInfo"]
    except KeyError:
        return {}
    said = {} if info is None else members_of(info)
    named = {name: string_of(said.get(name)) for name in ("name", "version")}
    return {name: _shown(text) for name, text in named.items() if text}


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:MAX_NAME])


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
