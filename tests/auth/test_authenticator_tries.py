"""Who tries credentials is slowed by address; who has a good one is not, whatever the neighbours do."""

from collections.abc import Callable

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.auth.api_keys import ApiKeys, KeyMaker, key_id
from app.auth.authenticator import Authenticator
from app.errors import RateLimited, StorageUnavailable, Unauthenticated
from app.limits.caller_rates import RateLimiter
from tests.auth.fakes import NOW, FakeStore

HERE, THERE = "192.0.2.1", "192.0.2.2"
AT_ONCE, PER_SECOND = 300, 10
maker = KeyMaker(b"s" * 32)


class Door:
    """An authenticator whose clock stands still until it is told to go on."""

    def __init__(self) -> None:
        self.store, self.elapsed_s = FakeStore(), 1000.0
        counter = Counter("counted", "", ["word"], registry=CollectorRegistry())
        tries = RateLimiter("bad_credentials", counter, self.clock)
        self.authenticator = Authenticator(
            ApiKeys(self.store, maker, lambda: NOW), counter, self.clock, NOW.timestamp, tries=tries
        )

    def clock(self) -> float:
        return self.elapsed_s

    async def enter(self, text: str, address: str = HERE) -> str:
        return (await self.authenticator.authenticate(b"Bearer " + text.encode(), None, address)).subject

    async def flood(self, make: Callable[[], str] = lambda: maker.make().text) -> int:
        """Bad credentials until they are not looked at any more; how many were."""
        for count in range(10_000):
            try:
                await self.enter(make())
            except Unauthenticated:
                continue
            except RateLimited:
                return count
        raise AssertionError("never slowed")


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.mark.parametrize("make", [lambda: maker.make().text, lambda: "tlk_nonsense", lambda: "x", lambda: "\x01"])
async def test_bad_credentials_are_slowed_by_address(door, make):
    assert await door.flood(make) == AT_ONCE
    with pytest.raises(Unauthenticated):
        await door.enter(make(), THERE)
    door.elapsed_s += 2.0
    assert await door.flood(make) == 2 * PER_SECOND


async def test_what_is_not_looked_at_costs_no_lookup_and_says_when_to_come_back(door):
    await door.flood()
    before = door.store.lookups
    for _ in range(100):
        with pytest.raises(RateLimited) as caught:
            await door.enter(maker.make().text)
    assert door.store.lookups == before
    assert 0 < (caught.value.retry_after_s or 0) <= 1 / PER_SECOND


async def test_nobody_without_a_credential_is_slowed(door):
    for _ in range(2 * AT_ONCE):
        with pytest.raises(Unauthenticated):
            await door.authenticator.authenticate(None, None, HERE)
    await door.enter(door.store.add(maker))


async def test_good_credentials_spend_nothing(door):
    for _ in range(2 * AT_ONCE):
        await door.enter(door.store.add(maker))
    assert await door.flood() == AT_ONCE


async def test_a_credential_that_was_good_is_looked_at_again_whatever_comes_from_its_address(door):
    text = door.store.add(maker)
    await door.enter(text)
    await door.flood()
    for _ in range(3):
        assert await door.enter(text) == key_id(text)
        door.elapsed_s += 31.0  # it is not remembered any more, and is looked up again
        await door.flood()
    assert await door.enter(text) == key_id(text)


async def test_one_that_is_good_no_more_has_no_privilege(door):
    text = door.store.add(maker)
    identity = (await door.authenticator.authenticate(b"Bearer " + text.encode(), None, HERE)).identity
    door.authenticator.forget(identity)
    await door.flood()
    with pytest.raises(RateLimited):
        await door.enter(text)
    assert await door.enter(text, THERE)


async def test_a_newcomer_behind_a_slowed_address_gets_in_when_there_is_a_try_left(door):
    await door.flood()
    text = door.store.add(maker)
    with pytest.raises(RateLimited):
        await door.enter(text)
    door.elapsed_s += 1 / PER_SECOND
    assert await door.enter(text) == key_id(text)


async def test_a_store_that_is_away_costs_nobody_a_try(door):
    door.store.is_down = True
    for _ in range(2 * AT_ONCE):
        with pytest.raises(StorageUnavailable):
            await door.enter(maker.make().text)
    door.store.is_down = False
    assert await door.flood() == AT_ONCE


async def test_those_that_are_being_looked_up_count_too(door):
    """Else as many as one likes could be tried at once."""
    door.store.gate = anyio.Event()
    outcomes: list[type[Exception]] = []

    async def one() -> None:
        try:
            await door.enter(maker.make().text)
        except (Unauthenticated, RateLimited) as error:
            outcomes.append(type(error))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(2 * AT_ONCE):
                tasks.start_soon(one)
            await anyio.wait_all_tasks_blocked()
            door.store.gate.set()
    assert (outcomes.count(Unauthenticated), outcomes.count(RateLimited)) == (AT_ONCE, AT_ONCE)
