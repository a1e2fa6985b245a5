"""The states of a backend process and what leads from one to the next.

    STARTING --started--> WARM --lease--> LEASED
        |                  |                |
        +------stop--------+------stop------+---> STOPPING
        |                  |                |        |
        +------exit--------+------exit------+--exit--+---> GONE

A process never goes back: one that has served a session serves no other.
"""

from collections.abc import Mapping
from enum import StrEnum


class ProcessState(StrEnum):
    """Where a process is between fork and reap; also the label of `trunkline_processes`."""

    STARTING = "starting"
    WARM = "warm"
    LEASED = "leased"
    STOPPING = "stopping"
    GONE = "gone"


class Trigger(StrEnum):
    """What can happen to a process."""

    STARTED = "started"
    LEASE = "lease"
    STOP = "stop"
    EXIT = "exit"


TRANSITIONS: Mapping[ProcessState, Mapping[Trigger, ProcessState]] = {
    ProcessState.STARTING: {
        Trigger.STARTED: ProcessState.WARM,
        Trigger.STOP: ProcessState.STOPPING,
        Trigger.EXIT: ProcessState.GONE,
    },
    ProcessState.WARM: {
        Trigger.LEASE: ProcessState.LEASED,
        Trigger.STOP: ProcessState.STOPPING,
        Trigger.EXIT: ProcessState.GONE,
    },
    ProcessState.LEASED: {
        Trigger.STOP: ProcessState.STOPPING,
        Trigger.EXIT: ProcessState.GONE,
    },
    ProcessState.STOPPING: {
        Trigger.EXIT: ProcessState.GONE,
    },
    ProcessState.GONE: {},
}


class ImpossibleTransition(Exception):
    """Something happened to a process that cannot happen in its state: a bug of ours."""


class ProcessStateMachine:
    """Holds one process's state; `apply` is the only way to change it."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = ProcessState.STARTING

    @property
    def state(self) -> ProcessState:
        """The present state."""
        return self._state

    def apply(self, trigger: Trigger) -> ProcessState:
        """Moves on and returns the new state.

        Raises:
            ImpossibleTransition: the table has no entry for this.
        """
        try:
            self._state = TRANSITIONS[self._state][trigger]
        except KeyError:
            raise ImpossibleTransition(f"{trigger} in state {self._state}") from None
        return self._state
