"""The states of a session, and the one table of what leads from one to the next.

    NEW --connect--> CONNECTING --initialize--> INITIALIZING --answered--> OPEN --close--> CLOSED

NEW leads to OPEN at once where the session was open on another node, and CONNECTED where there is no handshake. Every
state can be closed; nothing leads out of CLOSED.
"""

from enum import Enum


class SessionState(Enum):
    """Where a session is in its life."""

    NEW = "new"  # has an id, no process
    CONNECTING = "connecting"  # waits for a process
    CONNECTED = "connected"  # has a process that has heard nothing yet
    INITIALIZING = "initializing"  # `initialize` is on its way
    OPEN = "open"  # `initialize` was answered with a result
    CLOSED = "closed"


class Trigger(Enum):
    """What happens to a session."""

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
    """Holds the state of one session; `follow` is the only way to change it."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = SessionState.NEW

    def follow(self, trigger: Trigger) -> SessionState:
        """Takes the transition.

        Raises:
            KeyError: the table has none from here; a bug of the caller.
        """
        self.state = TRANSITIONS[self.state][trigger]
        return self.state

    def allows(self, trigger: Trigger) -> bool:
        """Whether the table has this transition from here."""
        return trigger in TRANSITIONS[self.state]
