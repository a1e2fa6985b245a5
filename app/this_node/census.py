"""Census: how many sessions and calls each process and each tenant has, counted in one pass over all sessions.

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
    """The sessions of a process or of a tenant. `named`: the public ids of the first MAX_NAMED. `calls`: in flight, and
    in total."""

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
    """Of this node's sessions. `of_processes` is by process id, `of_tenants` by name."""

    def __init__(self, sessions: Iterable[Session], clock: Callable[[], float] = time.perf_counter) -> None:
        self._sessions, self._clock = sessions, clock
        self._good_until = -1.0
        self.of_processes: dict[str, Counted] = {}
        self.of_tenants: dict[str, Counted] = {}

    def count(self) -> None:
        """Counts, unless that was done a moment ago."""
        began = self._clock()
        if began < self._good_until:
            return
        processes, tenants = dict[str, Counted](), dict[str, Counted]()
        for session in self._sessions:
            public_id, in_flight, begun = session.public_id, session.exchange.in_flight, session.calls.begun
            tenant = session.spec.tenant
            if tenant not in tenants:
                tenants[tenant] = Counted()
            tenants[tenant].add(public_id, in_flight, begun)
            process = session.link.process
            if process is not None:
                if process not in processes:
                    processes[process] = Counted()
                processes[process].add(public_id, in_flight, begun)
        self.of_processes, self.of_tenants = processes, tenants
        now = self._clock()
        self._good_until = now + GOOD_FOR * (now - began)
