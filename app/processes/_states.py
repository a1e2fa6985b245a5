"""The states of a backend process. It never goes back: one that has served a session serves no other."""

from collections.abc import Mapping
from enum import StrEnum


class ProcessState(StrEnum):
    """Where a process is between fork and reap; also the label of `trunkline_processes`."""

    STARTING = "starting"
    WARM = "warm"
    LEASED = "leased"
    STOPPING = "stopping"
    GONE = "gone"


NEXT: Mapping[ProcessState, frozenset[ProcessState]] = {
    ProcessState.STARTING: frozenset({ProcessState.WARM, ProcessState.STOPPING, ProcessState.GONE}),
    ProcessState.WARM: frozenset({ProcessState.LEASED, ProcessState.STOPPING, ProcessState.GONE}),
    ProcessState.LEASED: frozenset({ProcessState.STOPPING, ProcessState.GONE}),
    ProcessState.STOPPING: frozenset({ProcessState.GONE}),
    ProcessState.GONE: frozenset(),
}


class ImpossibleTransition(Exception):
    """A process cannot get from its state into this one: a bug of the gateway."""


def check_transition(old: ProcessState, new: ProcessState) -> None:
    """Raises ImpossibleTransition where the table has no such step."""
    if new not in NEXT[old]:
        raise ImpossibleTransition(f"from {old} to {new}")
