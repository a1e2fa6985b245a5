"""CallerLimits: how often callers have used what an entry of an `access` lists, in each minute and day of the clock.

Each node counts at once what its own callers do, and tells the store, which adds up what all nodes tell: so no message
waits for it, and a count is behind by what the others have let through within `pause_s`. What is stored outlives nodes.
"""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

import anyio
import msgspec
from prometheus_client import Counter

from app.domain.resources.access import AccessEntry
from app.domain.resources.members import plain
from app.errors import GatewayError, LimitReached, RateLimited

MAX_ALLOWANCES = 20_000  # that a node knows; the one that was used least recently is forgotten, and read again
BATCH = 500  # of which the store is told at once
RETRY_S = 1.0  # after the store has not answered
LAST_S = 2.0  # for what is left to tell when the node stops

Identity = tuple[str, str, str]

log = logging.getLogger(__name__)


class CountStore(Protocol):
    """Adds up what nodes have counted."""

    pause_s: float  # between two questions

    async def add(self, counted: Sequence[tuple[str, int, int]]) -> Sequence[int]:
        """Adds to counts by name, each with the Unix time at which it may be forgotten; returns what they are then.
        Raises GatewayError."""


class Count:
    """How often one caller has called in the window that the clock is in: a minute or a day."""

    __slots__ = ("_before", "_number", "_untold", "seconds")

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self._number = self._before = self._untold = 0

    def used(self, now: float) -> int:
        number = int(now // self.seconds)
        if number != self._number:
            self._number, self._before, self._untold = number, 0, 0
        return self._before + self._untold

    def resets_in(self, now: float) -> float:
        """Seconds until the window ends."""
        return self.seconds - now % self.seconds

    def add(self) -> None:
        """One call more, in the window of the last `used`."""
        self._untold += 1

    def tell(self, now: float) -> tuple[str, int, int]:
        """The window, what was counted in it since it was told last, and when it may be forgotten."""
        self.used(now)
        untold, self._untold = self._untold, 0
        self._before += untold
        return f"{self.seconds}:{self._number}", untold, (self._number + 2) * self.seconds

    def told(self, window: str, untold: int, total: int | None) -> None:
        """What all nodes have counted by then; None: it could not be told."""
        if window != f"{self.seconds}:{self._number}":
            return
        if total is None:
            self._before, self._untold = self._before - untold, self._untold + untold
        else:
            self._before = max(self._before, total)  # a store that has lost its counts gives nothing back


@dataclass(frozen=True, slots=True, eq=False)
class Allowance:
    """What one caller has of one entry. `place`: whose `access` it is, as `backends/db`."""

    name: str
    tenant: str
    place: str
    caller: Identity
    entry: AccessEntry
    minute: Count = field(default_factory=lambda: Count(60))
    day: Count = field(default_factory=lambda: Count(86_400))

    @property
    def counts(self) -> tuple[Count, Count]:
        return self.minute, self.day

    @property
    def limits(self) -> list[tuple[str, Count, int]]:
        """Those that there are: name, count, and how often it may be used in its window."""
        limits, found = self.entry.limits, list[tuple[str, Count, int]]()
        if limits.requests_per_minute is not None:
            found.append(("requests_per_minute", self.minute, limits.requests_per_minute))
        if limits.calls_per_day is not None:
            found.append(("calls_per_day", self.day, limits.calls_per_day))
        return found


class CallerLimits:
    """Of one node. `run` is a task of it."""

    def __init__(self, refused: Counter, clock: Callable[[], float] = time.time) -> None:
        self._refused, self._clock = refused, clock
        self._known = dict[str, Allowance]()  # by name, the one that was used last at the end
        self._changed = dict[str, Allowance]()
        self._has_changed = anyio.Event()

    def of(self, tenant: str, place: str, caller: Identity, entry: AccessEntry) -> Allowance:
        """What this caller has of this entry, whose `limits` may have changed."""
        name = _name(tenant, place, caller, entry)
        found = self._known.pop(name, None) or self._changed.get(name)  # forgotten, and not told yet
        if found is None:
            found = Allowance(name, tenant, place, caller, entry)
        elif found.entry != entry:
            found = replace(found, entry=entry)
        if len(self._known) >= MAX_ALLOWANCES:
            del self._known[next(iter(self._known))]
        self._known[name] = found
        return found

    def spend(self, allowances: Iterable[Allowance]) -> None:
        """Counts one call for all of these.

        Raises:
            RateLimited: one of them has been used as often as it may be; then nothing is counted.
        """
        now = self._clock()
        for each in allowances:
            for limit, count, allowed in each.limits:
                if count.used(now) >= allowed:
                    raise self._refusal(each, limit, count, allowed, now)
        for each in allowances:
            for count in each.counts:
                count.used(now)
                count.add()
            if each.name in self._changed or len(self._changed) < MAX_ALLOWANCES:  # else with its next call
                self._changed[each.name] = each
            self._has_changed.set()

    def _refusal(self, allowance: Allowance, limit: str, count: Count, allowed: int, now: float) -> RateLimited:
        self._refused.labels(limit).inc()
        words = f"this caller may use this {allowed} times a {'minute' if count is allowance.minute else 'day'}"
        who = f"an administrator of the tenant: PATCH /api/v1/tenants/{allowance.tenant}/{allowance.place}, access"
        reached = LimitReached(limit, "principal", allowed, count.used(now), who)
        return RateLimited(limit, words, retry_after_s=math.ceil(count.resets_in(now)), reached=reached)

    def known(self, tenant: str) -> Iterator[Allowance]:
        """Those of a tenant that were used lately."""
        return (each for each in self._known.values() if each.tenant == tenant)

    async def run(self, store: CountStore) -> None:
        """Tells the store until cancelled; then once more."""
        try:
            while True:
                await self._has_changed.wait()
                await anyio.sleep(store.pause_s if await self.tell(store) else RETRY_S)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(LAST_S):
                for _ in range(len(self._changed) // BATCH + 1):
                    await self.tell(store)

    async def tell(self, store: CountStore) -> bool:
        """Once; returns whether the store has answered. Where it does not, this node counts on alone."""
        now, changed = self._clock(), [self._changed.pop(name) for name in list(islice(self._changed, BATCH))]
        if not self._changed:
            self._has_changed = anyio.Event()
        counts = [(each, count) for each in changed for count in each.counts]
        told = [(count, *count.tell(now)) for _, count in counts]
        asked = [
            (f"{each.name}:{window}", untold, ends_at)
            for (each, _), (_, window, untold, ends_at) in zip(counts, told, strict=True)
        ]
        totals: Sequence[int | None] = [None] * len(told)
        try:
            totals = await store.add(asked) if asked else ()
        except GatewayError as error:
            log.debug("Could not tell how often callers have called: %s", error)
            self._changed = {each.name: each for each in changed} | self._changed
            self._has_changed.set()
        for (count, window, untold, _), total in zip(told, totals, strict=True):
            count.told(window, untold, total)
        return None not in totals


def _name(tenant: str, place: str, caller: Identity, entry: AccessEntry) -> str:
    """The same for entries that allow the same to the same, however often: a change of limits takes nothing back."""
    facts = (tenant, place, caller, plain(entry.who), entry.tools, entry.prompts, entry.resources)
    return hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()
