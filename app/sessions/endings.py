"""Endings: why sessions have ended, as error messages for their clients. Most get theirs with the next request, so a
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

MAX_ENDINGS = 10_000  # of a node, 3 MB; clients of earlier ones get "not found"
DRAIN_RETRY_MS = (1000, 5000)  # clients of a node that stops come back spread over this
HANDED_OVER, SHUTDOWN, TAKEN_OVER = "handed_over", "shutdown", "taken_over"
LEAVING = (SHUTDOWN, HANDED_OVER)
GOES_ON = (*LEAVING, TAKEN_OVER)  # perhaps, on another node
DELETED = "deleted"  # by its client
BACKEND_EXITED = "backend_exited"
ENDED_BY_ADMINISTRATOR = "ended_by_administrator"
PROCESS_RESTARTED = "process_restarted"

# By the reason of `Session.close`. The client knows of the other reasons itself, or need not know.
WORDS = MappingProxyType({
    ENDED_BY_ADMINISTRATOR: "An administrator has ended this session",
    "access_changed": "This session has ended: an administrator has changed who may use its backend",
    "backend_restarted": "This session has ended: an administrator has restarted its backend",
    PROCESS_RESTARTED: "This session has ended: an administrator has restarted its process",
    "backend_disabled": "This session has ended: an administrator has switched its backend off",
    "tenant_disabled": "This session has ended: an administrator has switched its tenant off",
    "key_disabled": "This session has ended: an administrator has switched its key off",
    "principal_disabled": "This session has ended: an administrator has switched its principal off",
    "backend_removed": "This session has ended: an administrator has removed its backend",
    "grant_ended": "This session has ended: its client was disconnected; connect it again",
    "issuer_changed": "This session has ended: an administrator has changed whom the gateway trusts",
    "credential_expired": "This session has ended: the credential that it was opened with has expired",
    "backend_exited": "This session has ended: its backend's process is gone",
    "idle": "This session has ended: its client was silent for longer than the backend's `idle_s`",
    "reclaimed": "This session has ended: it was idle, and its place was needed for another (`reclaim_idle_s`)",
    "too_old": "This session has ended: it was as old as the backend's `absolute_s` allows",
})  # fmt: skip


def later_request(cause: str) -> SessionNotFound:
    """The error for requests after this end."""
    return SessionEnded(WORDS[cause]).because(cause) if cause in WORDS else SessionNotFound()


def cut_off(cause: str) -> GatewayError:
    """The error for a call that was sent before this end: whether it was carried out is not known. Neither 404 (the
    session may go on elsewhere) nor 503 (the call must not be repeated) would be true."""
    return NodeLost() if cause in GOES_ON else call_under_way(cause)


def call_under_way(cause: str) -> GatewayError:
    """As `cut_off`, where the session goes on nowhere."""
    if cause not in WORDS:
        return CallCutOff()
    return CallCutOff(f"{WORDS[cause]}; whether the call was carried out is not known").because(cause)


def call_not_sent(cause: str) -> GatewayError:
    """The error for a sessionless call (2026-07-28) that was not sent before this end."""
    if cause not in WORDS:
        return BackendExited("the process ended before the call was sent")
    return BackendExited(f"{WORDS[cause]}; the call was not sent").because(cause)


def too_late(cause: str, *, is_pooled: bool) -> GatewayError:
    """The error for a request after this end; it says "try again" where the session may go on elsewhere."""
    if cause in LEAVING:
        return ShuttingDown()
    if cause == TAKEN_OVER:
        return RoutesUnavailable()
    return call_not_sent(cause) if is_pooled else later_request(cause)


class _Ending(NamedTuple):
    cause: str
    identity: tuple[str, str, str]
    backend: tuple[str, str]


class Endings:
    """Those of this node's sessions, by id. Only the principal of a session is told."""

    def __init__(self) -> None:
        self._endings: dict[str, _Ending] = {}

    def note(self, session_id: str, principal: Principal, backend: tuple[str, str], cause: str) -> None:
        """`cause` is the reason of `Session.close`."""
        if cause not in WORDS:
            return
        if len(self._endings) >= MAX_ENDINGS:
            del self._endings[next(iter(self._endings))]
        self._endings[session_id] = _Ending(cause, principal.identity, backend)

    def of(self, session_id: str, principal: Principal, backend: tuple[str, str]) -> SessionNotFound:
        """The error for this principal, which asks for a session that is on no node."""
        ending = self._endings.get(session_id)
        if ending is None or (ending.identity, ending.backend) != (principal.identity, backend):
            return SessionNotFound()
        return later_request(ending.cause)
