"""Endings: why sessions have ended, in the words that their clients hear. Most hear it with their next request, so a
node remembers it for a while."""

from types import MappingProxyType
from typing import NamedTuple

from app.domain import Principal
from app.errors import (
    BackendExited,
    CallCutOff,
    GatewayError,
    NodeLost,
    RoutesUnavailable,
    SessionEnded,
    SessionNotFound,
    ShuttingDown,
)

MAX_ENDINGS = 10_000  # of a node, 3 MB; whose session ended before these hears that it is not there
DRAIN_RETRY_MS = (1000, 5000)  # clients of a node that stops come back spread over this
HANDED_OVER, SHUTDOWN, TAKEN_OVER = "handed_over", "shutdown", "taken_over"
LEAVING = (SHUTDOWN, HANDED_OVER)
GOES_ON = (*LEAVING, TAKEN_OVER)  # elsewhere, perhaps
DELETED = "deleted"  # by its client
BACKEND_EXITED = "backend_exited"
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


def cut_off(cause: str) -> GatewayError:
    """What a call hears that had been sent before this end: nobody knows what has become of it. A 404 would say so of
    the session, which may go on elsewhere, and a 503 that the call can be sent again."""
    return NodeLost() if cause in GOES_ON else call_under_way(cause)


def call_under_way(cause: str) -> GatewayError:
    """The same where the session goes on nowhere."""
    if cause not in WORDS:
        return CallCutOff()
    return _because(CallCutOff(f"{WORDS[cause]}; whether the call was carried out is not known"), cause)


def call_not_sent(cause: str) -> GatewayError:
    """What becomes of a call without a session, of 2026-07-28, that had not."""
    if cause not in WORDS:
        return BackendExited("the process ended before the call was sent")
    return _because(BackendExited(f"{WORDS[cause]}; the call was not sent"), cause)


def too_late(cause: str, *, is_line: bool) -> GatewayError:
    """What a request gets that comes after such an end; where the session may go on elsewhere, it can be sent again."""
    if cause in LEAVING:
        return ShuttingDown()
    if cause == TAKEN_OVER:
        return RoutesUnavailable()
    return call_not_sent(cause) if is_line else later_request(cause)


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
