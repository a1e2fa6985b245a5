"""CallerLimits: what callers have used of an entry, in windows of the clock, over all nodes and past their end."""

import math
from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.errors import RateLimited, RoutesUnavailable
from app.limits import caller_limits
from app.limits.caller_limits import Allowance, CallerLimits

MINUTE = 60
DAY = 86_400
NOON = 20_000 * DAY + DAY / 2
BOB = ("acme", "https://idp.example", "bob")
EVE = ("acme", "https://idp.example", "eve")
ENTRY = AccessEntry(Who(everyone=True), ("*",), limits=CallLimits(3, 5))


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


class Store:
    """Adds up what nodes tell it."""

    pause_s = 0.0

    def __init__(self) -> None:
        self.totals = dict[str, int]()
        self.ends = dict[str, int]()
        self.is_away = False
        self.told = anyio.Event()

    async def add(self, counted: Sequence[tuple[str, int, int]]) -> Sequence[int]:
        await anyio.lowlevel.checkpoint()
        self.told.set()
        if self.is_away:
            raise RoutesUnavailable
        for name, number, ends_at in counted:
            self.totals[name] = self.totals.get(name, 0) + number
            self.ends[name] = ends_at
        return [self.totals[name] for name, _, _ in counted]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def store() -> Store:
    return Store()


def node(clock: Clock, registry: CollectorRegistry | None = None) -> CallerLimits:
    return CallerLimits(Counter("limited", "", ["limit"], registry=registry or CollectorRegistry()), clock)


@pytest.fixture
def limits(clock: Clock, registry: CollectorRegistry) -> CallerLimits:
    return node(clock, registry)


def of(limits: CallerLimits, entry: AccessEntry = ENTRY, who: tuple[str, str, str] = BOB) -> Allowance:
    return limits.of("acme", "backends/db", who, entry)


def spend_all(limits: CallerLimits, entry: AccessEntry = ENTRY, who: tuple[str, str, str] = BOB) -> int:
    """How often it is let through."""
    for count in range(1000):
        try:
            limits.spend([of(limits, entry, who)])
        except RateLimited:
            return count
    raise AssertionError("no limit")


def only(**limits: int) -> AccessEntry:
    return replace(ENTRY, limits=CallLimits(**limits))


def test_so_many_pass_in_each_minute_and_day_of_the_clock(limits, clock):
    clock.now = NOON + 59.5
    assert spend_all(limits) == 3
    clock.now = NOON + 60
    assert spend_all(limits) == 2  # of the day
    clock.now = NOON + DAY / 2
    assert spend_all(limits) == 3


@pytest.mark.parametrize(("entry", "passed"), [(only(requests_per_minute=4), 4), (only(calls_per_day=7), 7)])
def test_one_of_the_limits_may_be_missing(limits, clock, entry, passed):
    assert spend_all(limits, entry) == passed
    clock.now += MINUTE
    assert spend_all(limits, entry) == (passed if entry.limits.requests_per_minute else 0)


def test_a_refusal_says_which_limit_until_when_and_whose_it_is(limits, clock, registry):
    clock.now = NOON + 20.5
    spend_all(limits)
    with pytest.raises(RateLimited) as caught:
        limits.spend([of(limits)])
    assert (caught.value.limit, caught.value.retry_after_s) == ("requests_per_minute", 40)
    assert caught.value.reached is not None
    assert (caught.value.reached.of, caught.value.reached.allowed, caught.value.reached.used) == ("principal", 3, 3)
    assert "3 times a minute" in str(caught.value)
    assert registry.get_sample_value("limited_total", {"limit": "requests_per_minute"}) == 2
    clock.now = NOON + 120
    spend_all(limits)
    with pytest.raises(RateLimited) as caught:
        limits.spend([of(limits)])
    assert (caught.value.limit, caught.value.retry_after_s) == ("calls_per_day", DAY / 2 - 120)
    assert "5 times a day" in str(caught.value)


def test_each_caller_place_and_entry_has_its_own(limits):
    assert spend_all(limits) == 3
    assert spend_all(limits, who=EVE) == 3
    assert spend_all(limits, replace(ENTRY, tools=("read",))) == 3
    limits.spend([limits.of("acme", "toolsets/db", BOB, ENTRY)])
    limits.spend([limits.of("zenith", "backends/db", BOB, ENTRY)])
    assert {each.place for each in limits.known("acme")} == {"backends/db", "toolsets/db"}
    assert [each.tenant for each in limits.known("zenith")] == ["zenith"]


def test_who_is_refused_by_one_entry_spends_nothing_of_the_other(limits):
    first, second = of(limits), limits.of("acme", "toolsets/all", BOB, only(requests_per_minute=1))
    limits.spend([first, second])
    for _ in range(10):
        with pytest.raises(RateLimited):
            limits.spend([first, second])
    limits.spend([first])
    limits.spend([first])
    with pytest.raises(RateLimited):
        limits.spend([first])


async def test_a_change_of_limits_takes_nothing_back(limits, store):
    assert spend_all(limits) == 3
    more = only(requests_per_minute=4, calls_per_day=9)
    assert spend_all(limits, more) == 1
    assert spend_all(limits, only(requests_per_minute=2)) == 0
    await limits.tell(store)
    assert set(store.totals.values()) == {4}
    assert [each.entry.limits.requests_per_minute for each in limits.known("acme")] == [2]


async def test_two_nodes_add_up_what_they_let_through(clock, store):
    here, there = node(clock), node(clock)
    here.spend([of(here)])
    there.spend([of(there)])
    await here.tell(store)
    await there.tell(store)
    assert spend_all(there) == 1
    await there.tell(store)
    assert spend_all(here) == 2  # it has not heard of the others' third yet
    await here.tell(store)
    assert spend_all(here) == 0
    clock.now += MINUTE
    assert set(store.totals.values()) == {5}
    assert (spend_all(here), spend_all(there)) == (0, 2)  # the day is full; there, of what it was told


async def test_a_node_that_starts_hears_what_was_used_before_with_its_first_call(clock, store):
    before = node(clock)
    spend_all(before)
    await before.tell(store)
    after = node(clock)
    after.spend([of(after)])
    await after.tell(store)
    assert spend_all(after) == 0


async def test_what_is_stored_may_be_forgotten_after_its_window(limits, store):
    limits.spend([of(limits)])
    await limits.tell(store)
    ends = {name.split(":")[1]: ends_at for name, ends_at in store.ends.items()}
    assert ends["60"] == NOON + 2 * MINUTE
    assert ends["86400"] == (math.floor(NOON / DAY) + 2) * DAY
    assert all(len(name) <= 64 for name in store.totals)


async def test_without_the_store_a_node_counts_alone_and_tells_later(limits, store):
    store.is_away = True
    for _ in range(2):
        limits.spend([of(limits)])
        await limits.tell(store)
    store.is_away = False
    assert spend_all(limits) == 1
    await limits.tell(store)
    assert set(store.totals.values()) == {3}
    await limits.tell(store)
    assert set(store.totals.values()) == {3}


async def test_what_could_not_be_told_in_its_window_is_of_no_use_in_the_next(limits, clock, store):
    store.is_away = True
    limits.spend([of(limits)])
    await limits.tell(store)
    store.is_away = False
    clock.now += MINUTE
    await limits.tell(store)
    totals = {name.split(":")[1]: total for name, total in store.totals.items()}
    assert totals == {"60": 0, "86400": 1}


async def test_an_answer_that_comes_in_the_next_window_does_not_count_there(limits, clock, store):
    class Late(Store):
        async def add(self, counted: Sequence[tuple[str, int, int]]) -> Sequence[int]:
            clock.now += MINUTE
            limits.spend([of(limits)])
            return [100 for _ in counted]

    limits.spend([of(limits)])
    await limits.tell(Late())
    minute = of(limits).minute
    assert minute.used(clock.now) == 1
    assert of(limits).day.used(clock.now) == 101


async def test_a_store_that_has_lost_its_counts_gives_nothing_back(limits, store):
    for _ in range(2):
        limits.spend([of(limits)])
    await limits.tell(store)
    store.totals.clear()
    limits.spend([of(limits)])
    await limits.tell(store)
    assert spend_all(limits) == 0


async def test_calls_while_the_store_is_asked_are_told_next(limits, store):
    class Slow(Store):
        async def add(self, counted: Sequence[tuple[str, int, int]]) -> Sequence[int]:
            limits.spend([of(limits)])
            return [number for _, number, _ in counted]

    limits.spend([of(limits)])
    await limits.tell(Slow())
    assert of(limits).minute.used(NOON) == 2
    await limits.tell(store)
    assert set(store.totals.values()) == {1}


def test_so_many_allowances_are_known(limits, monkeypatch):
    monkeypatch.setattr(caller_limits, "MAX_ALLOWANCES", 2)
    bob = of(limits)
    of(limits, who=EVE)
    assert of(limits) is bob
    of(limits, who=("acme", "key", "k1"))  # EVE was used least recently
    assert [each.caller for each in limits.known("acme")] == [BOB, ("acme", "key", "k1")]
    assert of(limits) is bob


async def test_the_store_is_told_as_long_as_it_runs_and_once_more(limits, store):
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(limits.run, store)
            limits.spend([of(limits)])
            await store.told.wait()
            store.is_away = True
            store.told = anyio.Event()
            limits.spend([of(limits)])
            await store.told.wait()
            store.is_away = False
            store.pause_s = 1000.0
            tasks.cancel_scope.cancel()
    assert set(store.totals.values()) == {2}


async def test_a_store_that_does_not_answer_does_not_keep_a_node_from_stopping(limits, monkeypatch):
    monkeypatch.setattr(caller_limits, "LAST_S", 0.01)

    class Silent(Store):
        async def add(self, counted: Sequence[tuple[str, int, int]]) -> Sequence[int]:
            self.told.set()
            await anyio.sleep_forever()
            raise AssertionError

    silent = Silent()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(limits.run, silent)
            limits.spend([of(limits)])
            await silent.told.wait()
            limits.spend([of(limits)])
            tasks.cancel_scope.cancel()


def other(number: int) -> tuple[str, str, str]:
    return "acme", "key", f"k{number}"


async def test_the_store_is_told_of_so_many_at_once_and_of_all_at_the_end(limits, store, monkeypatch):
    monkeypatch.setattr(caller_limits, "BATCH", 2)
    for number in range(5):
        limits.spend([of(limits, who=other(number))])
    await limits.tell(store)
    assert len(store.totals) == 4
    store.pause_s = 1000.0
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            store.told = anyio.Event()
            tasks.start_soon(limits.run, store)
            await store.told.wait()
            limits.spend([of(limits, who=other(5))])
            tasks.cancel_scope.cancel()
    assert len(store.totals) == 12
    assert set(store.totals.values()) == {1}


async def test_what_was_not_told_yet_outlives_what_is_known(limits, store, monkeypatch):
    monkeypatch.setattr(caller_limits, "MAX_ALLOWANCES", 1)
    limits.spend([of(limits)])
    of(limits, who=EVE)
    limits.spend([of(limits)])
    assert spend_all(limits) == 1
    await limits.tell(store)
    assert set(store.totals.values()) == {3}
