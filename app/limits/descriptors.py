"""Descriptors: who gets the last ones that this process may open. First there are no new sessions and processes, then
no new connections, without which nobody would reach the open sessions; the rest is for Redis, the database and files.
"""

import os
import resource
import time
from collections.abc import Callable

from app.limits._machine import Machine, Use
from app.telemetry.metrics import Metrics, value_of

NO_LIMIT = 1 << 30
OF_PROCESS = 5  # its pipes, the socket through which its connections go, and its client's connection
# What is not for connections is more than calls leave free (SHED_CALLS_PERCENT, 95): connections alone cost no calls.
OWN_PART, CONNECTIONS_PART = 16, 12  # of the limit
LEAST = 7
LOOK_S = 0.1


def for_connections(limit: int) -> int:
    """Connections get no descriptor from this number on."""
    return limit - _part(limit, OWN_PART)


def for_sessions(limit: int, share: float) -> float:
    """While so many are used nothing begins that takes more: sessions, and their processes."""
    return min(limit * share, for_connections(limit) - _part(limit, CONNECTIONS_PART))


def _part(limit: int, part: int) -> int:
    return max(LEAST, limit // part)


def soft_limit() -> int:
    """How many descriptors this process may have."""
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return NO_LIMIT if limit == resource.RLIM_INFINITY else limit


def free_descriptor() -> int:
    """The number that the next descriptor will get: all below it are taken. NO_LIMIT: there is none."""
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return NO_LIMIT
    os.close(number)
    return number


def due_to_clients(metrics: Metrics, processes: int) -> int:
    """How many descriptors are kept so that the client of each process can connect again, less those that other
    connections give back in a moment: may be negative."""
    return max(0, processes - value_of(metrics.connections)) - value_of(metrics.descriptors_lent)


class ProcessRoom:
    """How many more processes there are descriptors for. Counts them at most every LOOK_S."""

    __slots__ = ("_again_at", "_clock", "_counted", "_due", "_free_descriptor", "_machine", "_share", "_use")

    def __init__(
        self,
        share: float,
        machine: Machine | None = None,
        *,
        due: Callable[[int], int] = lambda processes: 0,
        clock: Callable[[], float] = time.monotonic,
        free_descriptor: Callable[[], int] = free_descriptor,
    ) -> None:
        """`due`: as `due_to_clients`."""
        self._share, self._machine, self._clock, self._due = share, machine or Machine(), clock, due
        self._free_descriptor = free_descriptor
        self._use, self._counted, self._again_at = Use(0, 0), 0, 0.0

    def left(self, alive: int, starting: int, used: int) -> int:
        """Beside those that live. `starting`: those of them that may not have got their descriptors yet; `used`: those
        that have clients."""
        if self._clock() >= self._again_at:
            self._use, self._counted = self._machine.descriptors(), alive - starting
            self._again_at = self._clock() + LOOK_S
        if not self._use.limit:
            return NO_LIMIT
        begun = max(0, alive - starting - self._counted)
        taken = max(self._use.used + begun * OF_PROCESS, self._free_descriptor()) + self._due(used)
        short = for_sessions(self._use.limit, self._share) - taken
        return max(0, -int(-short // OF_PROCESS) - starting)
