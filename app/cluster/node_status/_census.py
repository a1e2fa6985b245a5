"""Census: how many sessions and calls each process has, counted in one pass over all sessions.

The sessions of a large node are scattered over its memory, so that a pass over thousands takes milliseconds. A count
stays good for a hundred times what it took: it costs a hundredth of a core at most, however many people look at lists,
and on a node with few sessions it is as good as new.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from app.sessions.session import Session

MAX_NAMED = 100  # sessions that a process is shown with
GOOD_FOR = 100  # times what a count took


@dataclass(slots=True)
class Counted:
    """The sessions of a process. `named`: the public ids of the first MAX_NAMED. `calls`: in flight, and in total."""

    sessions: int = 0
    in_flight: int = 0
    begun: int = 0
    named: list[str] = field(default_factory=list)

    @property
    def calls(self) -> tuple[int, int]:
        return self.in_flight, self.begun

    def add(self, public_id: str, in_flight: int, begun: int) -> None:
        if self.sessions < MAX_NAMED:
            self.named.append(public_id)
        self.sessions += 1
        self.in_flight += in_flight
        self.begun += begun


NOBODY = Counted()


class Census:
    """Of this node's sessions. `of_processes` is by process id."""

    def __init__(self, sessions: Iterable[Session], clock: Callable[[], float] = time.perf_counter) -> None:
        self._sessions, self._clock = sessions, clock
        self._good_until = -1.0
        self.of_processes: dict[str, Counted] = {}

    def count(self) -> None:
        """Counts, unless that was done a moment ago."""
        began = self._clock()
        if began < self._good_until:
            return
        processes = dict[str, Counted]()
        for session in self._sessions:
            process = session.connection.process
            if process is None:
                continue
            if process not in processes:
                processes[process] = Counted()
            processes[process].add(session.public_id, session.exchange.in_flight, session.calls.begun)
        self.of_processes = processes
        now = self._clock()
        self._good_until = now + GOOD_FOR * (now - began)
