"""FairTurns: who of several parties may use a bounded number of places, fairly. No await, no clock."""

from collections import OrderedDict, deque
from enum import Enum
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Verdict(Enum):
    """What becomes of an item that is offered."""

    RUN = "run"
    WAIT = "wait"
    REFUSE = "refuse"


class Party(Generic[Item]):
    """One that takes turns: what it has running, and what waits."""

    __slots__ = ("is_paused", "running", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting: deque[tuple[Item, int]] = deque()
        self.waiting_bytes = self.running = 0
        self.is_paused = False


class FairTurns(Generic[Item]):
    """At most `max_running` items run, and one for each party beyond that: nobody's calls can keep another's from
    running at all. Those who wait get free places in turn. A party's items keep their order.

    What waits is bounded in bytes for each party alone; its number is for the caller to bound.
    """

    def __init__(self, max_running: int, max_waiting_bytes: int) -> None:
        self.running = self.waiting = 0
        self._max_running, self._max_waiting_bytes = max_running, max_waiting_bytes
        self._line: OrderedDict[Party[Item], None] = OrderedDict()  # parties that wait, but for paused ones

    def offer(self, party: Party[Item], item: Item, size: int) -> Verdict:
        """Takes an item; only one that is to RUN has a place, which `finish` frees."""
        if not party.waiting and self._may_run(party):
            self._take(party)
            return Verdict.RUN
        # A single item may be larger than the limit; it must only not wait behind another one.
        if party.waiting and party.waiting_bytes + size > self._max_waiting_bytes:
            return Verdict.REFUSE
        party.waiting.append((item, size))
        party.waiting_bytes += size
        self.waiting += 1
        if not party.is_paused:
            self._line[party] = None
        return Verdict.WAIT

    def finish(self, party: Party[Item]) -> list[Item]:
        """One of the party's items is done; what may run now."""
        party.running -= 1
        self.running -= 1
        return self._next_of(party) + self._next()

    def withdraw(self, party: Party[Item], item: Item) -> bool:
        """Takes back an item that waits; False if it does not."""
        for waiting in party.waiting:
            if waiting[0] is item:
                party.waiting.remove(waiting)
                self._waits_less(party, waiting[1])
                return True
        return False

    def pause(self, party: Party[Item]) -> None:
        """Nothing of it runs until `resume`. Idempotent."""
        party.is_paused = True
        self._line.pop(party, None)

    def resume(self, party: Party[Item]) -> list[Item]:
        """Undoes `pause`; what may run now. Idempotent."""
        party.is_paused = False
        if party.waiting:
            self._line[party] = None
        return self._next_of(party) + self._next()

    def leave(self, party: Party[Item]) -> list[Item]:
        """The party is gone, with all it has; what may run now. Its items must not `finish` any more."""
        self._line.pop(party, None)
        self.waiting -= len(party.waiting)
        self.running -= party.running
        party.waiting.clear()
        party.waiting_bytes = party.running = 0
        return self._next()

    def _may_run(self, party: Party[Item]) -> bool:
        return not party.is_paused and (self.running < self._max_running or not party.running)

    def _take(self, party: Party[Item]) -> None:
        party.running += 1
        self.running += 1

    def _next_of(self, party: Party[Item]) -> list[Item]:
        """The one item that a party may have although all places are taken."""
        return [self._run_next(party)] if party.waiting and not party.running and not party.is_paused else []

    def _next(self) -> list[Item]:
        found = []
        while self._line and self.running < self._max_running:
            found.append(self._run_next(next(iter(self._line))))
        return found

    def _run_next(self, party: Party[Item]) -> Item:
        item, size = party.waiting.popleft()
        self._take(party)
        self._waits_less(party, size)
        if party.waiting:
            self._line.move_to_end(party)
        return item

    def _waits_less(self, party: Party[Item], size: int) -> None:
        self.waiting -= 1
        party.waiting_bytes -= size
        if not party.waiting:
            self._line.pop(party, None)

    def __repr__(self) -> str:
        return f"<FairTurns [{self.running} running, {self.waiting} waiting]>"
