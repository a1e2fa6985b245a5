"""The states of a session, and the table of transitions.

NEW --connect--> CONNECTING --process--> CONNECTED --initialize--> INITIALIZING --answered--> OPEN --close--> CLOSED
"""

from enum import Enum


class SessionState(Enum):
    NEW = "new"  # has an id, no process
    CONNECTING = "connecting"  # waits for a process
    CONNECTED = "connected"  # has a process that was sent nothing yet
    INITIALIZING = "initializing"  # `initialize` was sent
    OPEN = "open"  # `initialize` was answered with a result
    CLOSED = "closed"


class Trigger(Enum):
    CONNECT = "connect"
    PROCESS = "process"
    INITIALIZE = "initialize"
    ADOPT = "adopt"  # the process speaks 2026-07-28: there is no handshake
    ANSWERED = "answered"
    RESTORE = "restore"  # it was open on another node
    REFUSED = "refused"  # the backend answered `initialize` with an error: another try is allowed
    CLOSE = "close"


TRANSITIONS: dict[SessionState, dict[Trigger, SessionState]] = {
    SessionState.NEW: {
        Trigger.CONNECT: SessionState.CONNECTING,
        Trigger.RESTORE: SessionState.OPEN,
        Trigger.CLOSE: SessionState.CLOSED,
    },
    SessionState.CONNECTING: {Trigger.PROCESS: SessionState.CONNECTED, Trigger.CLOSE: SessionState.CLOSED},
    SessionState.CONNECTED: {
        Trigger.INITIALIZE: SessionState.INITIALIZING,
        Trigger.ADOPT: SessionState.OPEN,
        Trigger.CLOSE: SessionState.CLOSED,
    },
    SessionState.INITIALIZING: {
        Trigger.ANSWERED: SessionState.OPEN,
        Trigger.REFUSED: SessionState.CONNECTED,
        Trigger.CLOSE: SessionState.CLOSED,
    },
    SessionState.OPEN: {Trigger.CLOSE: SessionState.CLOSED},
    SessionState.CLOSED: {},
}


class Lifecycle:
    """The state of one session."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = SessionState.NEW

    def follow(self, trigger: Trigger) -> SessionState:
        """Raises KeyError if the table has no such transition: a bug of the caller."""
        self.state = TRANSITIONS[self.state][trigger]
        return self.state

    def allows(self, trigger: Trigger) -> bool:
        return trigger in TRANSITIONS[self.state]
