"""CallKeeper: everything is written once, what cannot be is counted, and nothing waits without a limit."""

from collections.abc import Sequence
from itertools import pairwise

import anyio
import pytest

from app.errors import Conflict, NotFound, StorageUnavailable
from app.telemetry.call_history.history import CallHistory, Origin
from app.telemetry.call_history.keeper import BATCH, MAX_WAITING, PORTION, PORTIONS, CallKeeper, remove_all
from app.telemetry.call_history.kept import KeptCall

ACME, ZENITH = (Origin((name, "echo"), (name, "key", "A"), "0123456789ab", ("c", "1")) for name in ("acme", "zenith"))


class Shelf:
    """In memory. `gone`: tenants; `is_away`: it does not answer, `forgets`: it stores, and does not say so."""

    def __init__(self) -> None:
        self.calls: dict[int, KeptCall] = {}
        self.batches: list[int] = []
        self.gone: set[str] = set()
        self.is_away = self.forgets = False
        self.broken: set[str] = set()  # tools of calls that it cannot store
        self.asked: list[tuple[str, int, int]] = []

    async def add(self, calls: Sequence[KeptCall]) -> None:
        await anyio.lowlevel.checkpoint()
        self._require()
        if any(each.tenant in self.gone for each in calls):
            raise NotFound
        if any(each.number in self.calls for each in calls):
            raise Conflict("stored already")
        if any(each.tool in self.broken for each in calls):
            raise ValueError("odd")
        self.calls |= {each.number: each for each in calls}
        self.batches.append(len(calls))
        if self.forgets:
            raise StorageUnavailable

    async def remove_older(self, than_us: int, most: int) -> int:
        self._require()
        old = [number for number, each in self.calls.items() if each.at_us < than_us][:most]
        for number in old:
            del self.calls[number]
        return len(old)

    async def trim(self, tenant: str, kept: int, most: int) -> int:
        self._require()
        self.asked.append((tenant, kept, most))
        return 0

    def _require(self) -> None:
        if self.is_away:
            raise StorageUnavailable


class Rig:
    def __init__(self, per_tenant: int = 1000) -> None:
        self.now, self.shelf, self.counts = 1000.0, Shelf(), dict[str, int]()
        self.history = CallHistory(per_tenant, 1 << 30, lambda: self.now)
        self.keeper = CallKeeper(
            self.history, self.shelf, "n1", kept_s=60, per_tenant=500, count=self._count, clock=lambda: self.now
        )

    def _count(self, result: str, calls: int) -> None:
        self.counts[result] = self.counts.get(result, 0) + calls

    def call(self, count: int = 1, origin: Origin = ACME, tool: str = "say") -> None:
        for _ in range(count):
            self.history.note(origin, "tools/call", tool, "ok", 0.001, 10, 20, None)

    async def round(self) -> None:
        self.keeper.collect()
        await self.keeper.write()


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_each_call_is_written_once_with_what_is_known_of_it(rig: Rig):
    rig.call(3)
    await rig.round()
    rig.call(2, ZENITH)
    await rig.round()
    await rig.round()
    kept = list(rig.shelf.calls.values())
    assert sorted(each.tenant for each in kept) == ["acme"] * 3 + ["zenith"] * 2
    assert all(b == a + 1 for a, b in pairwise(sorted(rig.shelf.calls)))
    assert (kept[0].node, kept[0].tool, kept[0].at_us, kept[0].bytes_out) == ("n1", "say", 1_000_000_000, 20)
    assert rig.counts == {"written": 5}


async def test_what_was_noted_before_is_not_written(rig: Rig):
    rig.call(3)
    keeper = CallKeeper(rig.history, rig.shelf, "n1", kept_s=60, per_tenant=500)
    rig.call()
    keeper.collect()
    await keeper.write()
    assert len(rig.shelf.calls) == 1


async def test_many_go_in_several_transactions(rig: Rig):
    rig.call(1000)
    rig.call(200, ZENITH)
    await rig.round()
    assert rig.shelf.batches == [BATCH, BATCH, 200]


async def test_what_the_history_had_to_forget_is_counted(rig: Rig):
    rig.call(1500)
    await rig.round()
    assert rig.counts == {"written": 1000, "dropped": 500}


async def test_without_the_database_they_wait_up_to_a_limit_and_the_oldest_go(rig: Rig):
    rig.shelf.is_away = True
    for _ in range(MAX_WAITING // 1000 + 3):
        rig.call(1000)
        await rig.round()
    assert len(rig.keeper) == MAX_WAITING
    assert rig.counts == {"dropped": 3000}
    rig.shelf.is_away = False
    await rig.round()
    assert (rig.counts["written"], len(rig.keeper)) == (MAX_WAITING, 0)


async def test_that_calls_wait_and_that_they_are_kept_again_is_said_once(rig: Rig, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "app.telemetry.call_history.keeper")
    rig.shelf.is_away = True
    for _ in range(3):
        rig.call()
        await rig.round()
    rig.shelf.is_away = False
    for _ in range(3):
        rig.call()
        await rig.round()
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]


async def test_an_answer_that_was_lost_writes_nothing_twice(rig: Rig):
    rig.call(5)
    rig.shelf.forgets = True
    await rig.round()
    rig.shelf.forgets = False
    rig.call(2)
    await rig.round()
    assert (len(rig.shelf.calls), rig.counts) == (7, {"written": 7})


async def test_calls_of_a_tenant_that_is_gone_keep_no_others(rig: Rig):
    rig.call(3)
    rig.call(2, ZENITH)
    rig.shelf.gone.add("zenith")
    await rig.round()
    assert {each.tenant for each in rig.shelf.calls.values()} == {"acme"}
    assert (rig.counts, len(rig.keeper)) == ({"written": 3}, 0)


async def test_a_batch_that_cannot_be_stored_is_dropped_and_the_next_is_written(rig: Rig):
    rig.shelf.broken.add("odd")
    rig.call(1, tool="odd")
    await rig.round()
    rig.call(2)
    await rig.round()
    assert rig.counts == {"dropped": 1, "written": 2}


async def test_old_ones_are_removed_and_who_has_written_is_trimmed(rig: Rig):
    rig.call(3)
    await rig.round()
    await rig.keeper.tidy()
    assert len(rig.shelf.calls) == 3
    assert rig.shelf.asked == [("acme", 500, PORTION)]
    rig.now += 61
    await rig.keeper.tidy()
    assert rig.shelf.calls == {}
    assert len(rig.shelf.asked) == 1  # nobody has written since


async def test_who_has_too_many_is_trimmed_later_if_the_database_did_not_answer_or_a_minute_was_not_enough(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.telemetry.call_history.keeper.BETWEEN_PORTIONS_S", 0.0)
    rig.call(3)
    rig.call(2, ZENITH)
    await rig.round()
    removes: list[int | None] = [None, *[PORTION] * PORTIONS, 1, 0]  # None: no answer

    async def trim(tenant: str, kept: int, most: int) -> int:
        rig.shelf.asked.append((tenant, kept, most))
        if (removed := removes.pop(0)) is None:
            raise StorageUnavailable
        return removed

    monkeypatch.setattr(rig.shelf, "trim", trim)
    with pytest.raises(StorageUnavailable):
        await rig.keeper.tidy()
    await rig.keeper.tidy()
    assert len(removes) == 1
    await rig.keeper.tidy()
    await rig.keeper.tidy()
    assert removes == []
    assert {tenant for tenant, *_ in rig.shelf.asked[1:]} == {"acme", "zenith"}


async def test_what_waits_is_written_when_the_node_stops(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.telemetry.call_history.keeper.LAST_WORDS_S", 60.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.keeper.run)
        await anyio.wait_all_tasks_blocked()
        rig.call(3)
        tasks.cancel_scope.cancel()
    assert len(rig.shelf.calls) == 3


async def test_a_node_stops_although_the_database_hangs(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.telemetry.call_history.keeper.LAST_WORDS_S", 0.05)

    async def hang(_calls: Sequence[KeptCall]) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(rig.shelf, "add", hang)
    rig.call()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.keeper.run)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()


async def test_what_is_not_to_be_kept_any_more_is_removed(rig: Rig):
    rig.call(10)
    await rig.round()
    await remove_all(rig.shelf, lambda: rig.now + 1)
    assert rig.shelf.calls == {}
