"""Endings: why sessions have ended, in the words that their clients hear. Most hear it with their next request, so a
node remembers it for a while."""

from types import MappingProxyType
from typing import NamedTuple

from app.domain import Principal
from app.errors import BackendExited, CallCutOff, GatewayError, SessionEnded, SessionNotFound

MAX_ENDINGS = 10_000  # of a node, 3 MB; whose session ended before these hears that it is not there
ENDED_BY_ADMINISTRATOR = "ended_by_administrator"

# By the reason of `Session.close`. Of the others the client knows itself, or is told otherwise when it asks again.
WORDS = MappingProxyType({
    ENDED_BY_ADMINISTRATOR: "An administrator has ended this session",
    "backend_restarted": "This session has ended: an administrator has restarted its backend",
    "backend_disabled": "This session has ended: an administrator has switched its backend off",
    "tenant_disabled": "This session has ended: an administrator has switched its tenant off",
    "key_disabled": "This session has ended: an administrator has switched its key off",
    "principal_disabled": "This session has ended: an administrator has switched its principal off",
    "backend_removed": "This session has ended: an administrator has removed its backend",
    "issuer_changed": "This session has ended: an administrator has changed whom the gateway trusts",
    "credential_expired": "This session has ended: the credential that it was opened with has expired",
    "backend_exited": "This session has ended: its backend's process is gone",
    "idle": "This session has ended: its client was silent for longer than the backend's `idle_s`",
    "reclaimed": "This session has ended: it was idle, and its place was needed for another (`reclaim_idle_s`)",
    "too_old": "This session has ended: it was as old as the backend's `absolute_s` allows",
})  # fmt: skip


def later_request(cause: str) -> SessionNotFound:
    """What a request hears that comes after this end."""
    return SessionEnded(WORDS[cause], cause) if cause in WORDS else SessionNotFound()


def call_under_way(cause: str) -> GatewayError:
    """What becomes of a call that had been sent before this end."""
    if cause not in WORDS:
        return CallCutOff()
    return _because(CallCutOff(f"{WORDS[cause]}; whether the call was carried out is not known"), cause)


def call_not_sent(cause: str) -> GatewayError:
    """What becomes of a call without a session, of 2026-07-28, that had not."""
    if cause not in WORDS:
        return BackendExited("the process ended before the call was sent")
    return _because(BackendExited(f"{WORDS[cause]}; the call was not sent"), cause)


def _because(error: GatewayError, cause: str) -> GatewayError:
    error.cause = cause
    return error


class _Ending(NamedTuple):
    cause: str
    identity: tuple[str, str, str]
    backend: tuple[str, str]


class Endings:
    """Of this node's sessions, by id. Told only to whose session it was."""

    def __init__(self, most: int = MAX_ENDINGS) -> None:
        self._endings: dict[str, _Ending] = {}
        self._most = most

    def note(self, session_id: str, principal: Principal, backend: tuple[str, str], cause: str) -> None:
        """The session has ended, for this reason of `Session.close`."""
        if cause not in WORDS:
            return
        if len(self._endings) >= self._most:
            del self._endings[next(iter(self._endings))]
        self._endings[session_id] = _Ending(cause, principal.identity, backend)

    def of(self, session_id: str, principal: Principal, backend: tuple[str, str]) -> SessionNotFound:
        """What this principal hears that asks for a session which is nowhere."""
        ending = self._endings.get(session_id)
        if ending is None or (ending.identity, ending.backend) != (principal.identity, backend):
            return SessionNotFound()
        return later_request(ending.cause)

    def __len__(self) -> int:
        return len(self._endings)
