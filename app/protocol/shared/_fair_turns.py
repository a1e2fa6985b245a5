"""FairTurns: shares a bounded number of places fairly among several parties."""

from collections import OrderedDict, deque
from enum import Enum
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Verdict(Enum):
    RUN = "run"
    WAIT = "wait"
    REFUSE = "refuse"


class Party(Generic[Item]):
    """What one party has running and waiting. For FairTurns only."""

    __slots__ = ("is_paused", "running", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting: deque[tuple[Item, int]] = deque()
        self.waiting_bytes = self.running = 0
        self.is_paused = False

    def count(self, change: int) -> None:
        """So many items more run."""
        self.running += change

    def wait(self, item: Item, size: int) -> None:
        self.waiting.append((item, size))
        self.waiting_bytes += size

    def next(self) -> Item:
        """Removes the item that has waited longest, to run it."""
        item, size = self.waiting.popleft()
        self.waiting_bytes -= size
        self.running += 1
        return item

    def withdraw(self, item: Item) -> bool:
        """Removes this item; False if it does not wait."""
        for waiting in self.waiting:
            if waiting[0] is item:
                self.waiting.remove(waiting)
                self.waiting_bytes -= waiting[1]
                return True
        return False

    def set_paused(self, is_paused: bool) -> None:
        self.is_paused = is_paused

    def clear(self) -> None:
        self.waiting.clear()
        self.waiting_bytes = self.running = 0


class FairTurns(Generic[Item]):
    """At most `max_running` items run, but each party may always have one. Waiting parties get free places in turn. The
    items of a party keep their order. What waits is bounded in bytes per party; the caller bounds the number."""

    def __init__(self, max_running: int, max_waiting_bytes: int) -> None:
        self.running = self.waiting = 0
        self._max_running, self._max_waiting_bytes = max_running, max_waiting_bytes
        self._queue: OrderedDict[Party[Item], None] = OrderedDict()  # waiting parties, without paused ones

    def offer(self, party: Party[Item], item: Item, size: int) -> Verdict:
        """An item that may RUN has a place until `finish`."""
        may_run = not party.is_paused and (self.running < self._max_running or not party.running)
        if not party.waiting and may_run:
            self.running += 1
            party.count(1)
            return Verdict.RUN
        # A single item may be larger than the limit.
        if party.waiting and party.waiting_bytes + size > self._max_waiting_bytes:
            return Verdict.REFUSE
        party.wait(item, size)
        self.waiting += 1
        if not party.is_paused:
            self._queue[party] = None
        return Verdict.WAIT

    def finish(self, party: Party[Item]) -> list[Item]:
        """A running item is done; returns what may run now."""
        party.count(-1)
        self.running -= 1
        return self._next_of(party) + self._next()

    def withdraw(self, party: Party[Item], item: Item) -> bool:
        """Removes a waiting item; False if it does not wait."""
        has_waited = party.withdraw(item)
        if has_waited:
            self._waits_less(party)
        return has_waited

    def pause(self, party: Party[Item]) -> None:
        """Starts nothing of it until `resume`. Idempotent."""
        party.set_paused(True)
        self._queue.pop(party, None)

    def resume(self, party: Party[Item]) -> list[Item]:
        """Undoes `pause`; returns what may run now. Idempotent."""
        party.set_paused(False)
        if party.waiting:
            self._queue[party] = None
        return self._next_of(party) + self._next()

    def leave(self, party: Party[Item]) -> list[Item]:
        """Removes the party with its items, which must not `finish` any more; returns what may run now."""
        self._queue.pop(party, None)
        self.waiting -= len(party.waiting)
        self.running -= party.running
        party.clear()
        return self._next()

    def _next_of(self, party: Party[Item]) -> list[Item]:
        """The one item that a party may always have running."""
        return [self._run_next(party)] if party.waiting and not party.running and not party.is_paused else []

    def _next(self) -> list[Item]:
        found = []
        while self._queue and self.running < self._max_running:
            found.append(self._run_next(next(iter(self._queue))))
        return found

    def _run_next(self, party: Party[Item]) -> Item:
        item = party.next()
        self.running += 1
        self._waits_less(party)
        if party.waiting:
            self._queue.move_to_end(party)
        return item

    def _waits_less(self, party: Party[Item]) -> None:
        self.waiting -= 1
        if not party.waiting:
            self._queue.pop(party, None)
