"""SingleFlight: one asks, the others know; and what fails fails for all who wait, at once."""

import anyio
import pytest

from app.concurrency.single_flight import SingleFlight
from app.errors import StorageUnavailable


class Store:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.flights, self.known = SingleFlight[str](), dict[str, str]()
        self.asked, self.gate, self.is_down = 0, anyio.Event(), False
        self.answers, self.failures = list[str](), 0

    async def find(self, key: str) -> None:
        try:
            async with self.flights.turn(key):
                if key not in self.known:
                    self.asked += 1
                    await self.gate.wait()
                    if self.is_down:
                        raise StorageUnavailable
                    self.known[key] = key.upper()
                self.answers.append(self.known[key])
        except StorageUnavailable:
            self.failures += 1


async def test_of_many_at_once_one_asks() -> None:
    store = Store()
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(store.find, "a")
        tasks.start_soon(store.find, "b")
        await anyio.wait_all_tasks_blocked()
        store.gate.set()
    assert store.asked == 2
    assert sorted(store.answers) == ["A"] * 100 + ["B"]
    assert len(store.flights) == 0


async def test_what_fails_fails_for_all_who_wait_and_is_asked_again_by_who_comes_later() -> None:
    store = Store()
    store.is_down = True
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(store.find, "a")
        await anyio.wait_all_tasks_blocked()
        store.gate.set()
    assert (store.asked, store.failures) == (1, 100)
    store.is_down = False
    await store.find("a")
    assert (store.asked, store.answers) == (2, ["A"])


async def test_who_is_cancelled_leaves_its_turn_to_the_next() -> None:
    store = Store()
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as first:
            async with anyio.create_task_group() as its:
                its.start_soon(store.find, "a")
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(store.find, "a")
                await anyio.wait_all_tasks_blocked()
                first.cancel()
        store.gate.set()
    assert (store.asked, store.answers) == (2, ["A"])
    assert len(store.flights) == 0


async def test_another_error_is_its_own() -> None:
    flights = SingleFlight[str]()
    with pytest.raises(LookupError):
        async with flights.turn("a"):
            raise LookupError
    async with flights.turn("a"):
        pass
    assert len(flights) == 0
