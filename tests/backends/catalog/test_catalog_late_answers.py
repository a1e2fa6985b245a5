"""What the database says late, after something has changed, or while something changes."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from app.backends.catalog.catalog import Catalog
from app.backends.catalog.entries import Decision
from app.errors import StorageUnavailable
from app.protocol.toolset.offer import Offer
from app.storage.tools.catalog import CatalogRow
from app.telemetry.metrics import Metrics

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEY = ("acme", "red")


def row(revision: int) -> CatalogRow:
    item = msgspec.Raw(b'{"name":"tool_%d"}' % revision)
    offer = Offer.begun(msgspec.Raw(b"{}"), is_sessionless=False).with_list("tools/list", [item])
    return CatalogRow(*KEY, "d", revision, offer.dump(), {}, AT, AT)


class LateStore:
    """Has one row. Each read gets what is stored when it begins, once the test lets it."""

    def __init__(self) -> None:
        self.row = row(1)
        self.reads: list[anyio.Event] = []
        self.is_late = False
        self.failures = 0  # that come before the next answer

    async def get(self, tenant: str, backends: Any) -> Mapping[str, CatalogRow]:
        if self.failures:
            self.failures -= 1
            raise StorageUnavailable
        found, may_answer = self.row, anyio.Event()
        self.reads.append(may_answer)
        if self.is_late:
            await may_answer.wait()
        return {KEY[1]: found}

    async def until_asked(self, times: int) -> None:
        with anyio.fail_after(5):
            while len(self.reads) < times:
                await anyio.lowlevel.checkpoint()


class Rig:
    def __init__(self) -> None:
        self.store = LateStore()
        unused: Any = None
        self.catalog = Catalog(self.store, unused, unused, unused, unused, Metrics("test"))  # type: ignore[arg-type]
        self.changes: list[tuple[str, str]] = []
        self.catalog.changed.listen(self.changes.append)

    def revision(self) -> int:
        return self.catalog._entries[KEY][0].revision


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.catalog.entries(KEY[0], [KEY[1]])
    rig.store.is_late = True
    return rig


async def test_what_changes_while_something_is_read_again_is_read_again_too(rig: Rig):
    """Two nodes store something, one right after the other, while the database is slow."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.catalog.run)
        rig.store.row = row(2)
        rig.catalog.changed_elsewhere(KEY, is_shown=False)
        await rig.store.until_asked(2)
        rig.store.row = row(3)
        rig.catalog.changed_elsewhere(KEY, is_shown=False)
        rig.store.reads[1].set()
        await rig.store.until_asked(3)
        rig.store.reads[2].set()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert (rig.revision(), len(rig.changes)) == (3, 3)


async def test_a_late_answer_does_not_replace_what_was_read_after_it_was_asked_for(rig: Rig):
    """A tool that was rejected meanwhile would be shown, and called, again."""
    rig.catalog._entries = {KEY: (rig.catalog._entries[KEY][0], 0.0)}  # no longer fresh
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.catalog.entries, KEY[0], [KEY[1]])
        await rig.store.until_asked(2)
        rig.store.row = replace(row(2), policy="block")
        tasks.start_soon(rig.catalog._read_again, KEY)
        await rig.store.until_asked(3)
        rig.store.reads[2].set()
        await anyio.wait_all_tasks_blocked()
        assert rig.revision() == 2
        rig.store.reads[1].set()
    assert rig.revision() == 2
    (known,) = rig.catalog.cached(KEY[0], [KEY[1]])
    assert known is not None
    assert list(known.withheld) == ["tool_2"]
    assert rig.changes == [KEY, KEY]


async def test_what_cannot_be_read_again_is_read_until_it_can_as_open_sessions_read_nothing(rig: Rig):
    rig.store.is_late, rig.store.failures = False, 2
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.catalog.run)
        rig.store.row = replace(row(1), policy="block")
        rig.catalog.changed_elsewhere(KEY, is_shown=False)
        with anyio.fail_after(20):
            while not rig.changes[1:]:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    (known,) = rig.catalog.cached(KEY[0], [KEY[1]])
    assert known is not None
    assert list(known.withheld) == ["tool_1"]
    assert rig.store.failures == 0


async def test_what_open_sessions_show_is_read_again_though_it_is_no_longer_cached(rig: Rig):
    rig.store.is_late = False
    rig.catalog._drop(KEY)
    rig.store.row = row(2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.catalog.run)
        rig.catalog.changed_elsewhere(KEY, is_shown=False)
        await anyio.wait_all_tasks_blocked()
        assert rig.changes == [KEY]
        rig.catalog.changed_elsewhere(KEY, is_shown=True)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert (rig.revision(), rig.changes) == (2, [KEY, KEY])


async def test_a_decision_that_is_stored_is_no_error_where_it_cannot_be_read_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """The administrator was told that nothing was changed, and the other nodes were not told at once."""
    rig.store.is_late = False

    async def decide(*_: Any) -> None:
        rig.store.row, rig.store.failures = replace(row(1), policy="block"), 1

    monkeypatch.setattr(rig.catalog._deciding, "decide", decide)
    await rig.catalog.decide(KEY, Decision(False, ["tool_1"], None, "me"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.catalog.run)
        with anyio.fail_after(20):
            while not rig.changes[1:]:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    (known,) = rig.catalog.cached(KEY[0], [KEY[1]])
    assert known is not None
    assert list(known.withheld) == ["tool_1"]
