"""AuditFollower: every act once, in whatever order it becomes visible. Window: the same as arithmetic."""

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import anyio
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import StorageUnavailable
from app.storage import audit_follower
from app.storage.audit import AuditEntry, AuditLog
from app.storage.audit_act import Act, record
from app.storage.audit_follower import SETTLED_S, AuditFollower, Window
from app.storage.engine import Database
from tests.postgres import empty

only_postgresql = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
AT = datetime(2026, 1, 1, tzinfo=UTC)
_ticks = itertools.count()


def act(target: str) -> Act:
    return Act(
        "acme", ("default", "cli", "uid 0"), "key.revoke", f"keys/{target}", AT + timedelta(seconds=next(_ticks))
    )


class Heard:
    """What a follower told."""

    def __init__(self) -> None:
        self.targets: list[str] = []
        self.losses = 0

    def entries(self, entries: Sequence[AuditEntry]) -> None:
        self.targets += [entry.act.target.removeprefix("keys/") for entry in entries]

    def loss(self) -> None:
        self.losses += 1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def look(database: Database, heard: Heard) -> Callable:
    follower = AuditFollower(database)
    return lambda: follower.look(heard.entries, heard.loss)


async def write(database: Database, *targets: str) -> None:
    for target in targets:
        await AuditLog(database).append(act(target))


async def test_what_was_there_before_is_not_told_and_what_comes_is_told_once(database, look, heard):
    await write(database, "before")
    await look()
    assert (heard.targets, heard.losses) == ([], 1)
    await write(database, "a", "b")
    await look()
    await look()
    await write(database, "c")
    await look()
    assert (heard.targets, heard.losses) == (["a", "b", "c"], 1)


async def test_the_first_act_of_an_empty_trail_is_told(database, look, heard):
    await look()
    await write(database, "a")
    await look()
    assert (heard.targets, heard.losses) == (["a"], 1)


async def test_more_than_a_page_is_told_whole_and_in_order(database, look, heard, monkeypatch):
    monkeypatch.setattr(audit_follower, "PAGE", 3)
    await look()
    names = [f"{number:02}" for number in range(20)]
    await write(database, *names)
    await look()
    await look()
    assert (heard.targets, heard.losses) == (names, 1)


async def test_who_is_too_far_behind_is_told_that_something_is_missing(database, look, heard, monkeypatch):
    monkeypatch.setattr(audit_follower, "PAGE", 3)
    monkeypatch.setattr(audit_follower, "MAX_PAGES", 2)
    monkeypatch.setattr(audit_follower, "FIRST_LOOK", 2)
    await look()
    await write(database, *map(str, range(10)))
    await look()
    assert heard.losses == 2
    await write(database, "later")
    await look()
    assert (heard.targets[-1], heard.losses) == ("later", 2)


@only_postgresql  # nobody else can make triggers sleep
async def test_a_database_that_was_replaced_is_noticed(database, url, look, heard):
    await write(database, "a", "b")
    await look()
    empty(url)
    await look()
    assert heard.losses == 2
    await write(database, "c")
    await look()
    assert heard.targets == ["c"]


@only_postgresql
@pytest.mark.parametrize("later", [0, 1, 2, 3])
async def test_a_standby_that_lacks_the_last_acts_is_noticed(database, url, look, heard, later):
    """It was promoted before they came to it: what they had changed is as it was, and later acts get their ids."""
    await write(database, "before")
    await look()
    await write(database, "a", "b")
    await look()
    with psycopg.connect(url, autocommit=True) as connection:
        ((last,),) = connection.execute("SELECT max(id) FROM audit").fetchall()
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM audit WHERE id > %s", [last - 2])
        connection.execute("SELECT setval(pg_get_serial_sequence('audit', 'id'), %s)", [last - 2])
    await write(database, *map(str, range(later)))
    await look()
    assert heard.losses == 2
    await look()
    await write(database, "c")
    await look()
    assert (heard.targets[-1], heard.losses) == ("c", 2)


@only_postgresql  # SQLite has one writer at a time
async def test_what_becomes_visible_later_than_a_larger_id_is_told_too(database, look, heard):
    await write(database, "before")
    await look()
    async with database.write() as slow:
        await record(slow, act("slow"))
        await write(database, "quick")
        await look()
        assert heard.targets == ["quick"]
    await look()
    assert (heard.targets, heard.losses) == (["quick", "slow"], 1)


@only_postgresql
async def test_what_was_being_written_at_the_start_is_told(database, look, heard):
    await write(database, "before")
    async with database.write() as slow:
        await record(slow, act("slow"))
        await write(database, "quick")
        await look()
    await look()
    assert heard.targets == ["slow"]


async def test_it_goes_on_after_the_database_was_away(database, heard, monkeypatch):
    monkeypatch.setattr(audit_follower, "POLL_S", 0.01)
    follower, is_away = AuditFollower(database), True
    read = follower._read

    async def sometimes(floor: int) -> list[AuditEntry]:
        if is_away:
            raise StorageUnavailable
        return await read(floor)

    monkeypatch.setattr(follower, "_read", sometimes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follower.run, heard.entries, heard.loss)
        with anyio.fail_after(20):
            while not heard.losses:
                await anyio.sleep(0.01)
            await write(database, "a")
            is_away = False
            while not heard.targets:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert (heard.targets, heard.losses) == (["a"], 1)


# --- pure


@given(st.data())
def test_whatever_the_order_in_which_ids_become_visible_each_is_new_once(data):
    """Each id is visible at most SETTLED_S after a larger one was."""
    now, window, told = 0.0, Window({}, 0.0), list[int]()
    ids = list(range(1, data.draw(st.integers(1, 40)) + 1))
    written = {each: each + data.draw(st.floats(0, SETTLED_S - 0.5)) for each in ids}  # one second apart, commits later
    while now < len(ids) + 2 * SETTLED_S:
        now += data.draw(st.floats(0.1, 30.0))
        visible = [each for each in ids if written[each] <= now and each >= window.floor]
        assert not window.floor or window.floor in visible
        told += window.new(dict.fromkeys(visible, AT))
        window.settle(now, now)
    assert sorted(told) == ids


def test_a_window_does_not_grow_for_ever():
    window = Window(dict.fromkeys([1, 2], AT), 0.0)
    for number in range(3, 10_000):
        window.new(dict.fromkeys(range(window.floor, number), AT))
        window.settle(float(number), float(number))
    assert len(window._seen) <= SETTLED_S + 2
    assert len(window._marks) <= SETTLED_S + 2


async def test_what_could_not_be_carried_out_is_not_taken_for_told(database, heard, monkeypatch):
    """Whoever hears of several entries fails at the first: of the others nobody knows. Everything is looked up."""
    monkeypatch.setattr(audit_follower, "POLL_S", 0.01)

    def fail(entries: Sequence[AuditEntry]) -> None:
        raise ValueError("a bug")

    await write(database, "before")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(AuditFollower(database).run, fail, heard.loss)
        with anyio.fail_after(10):
            while not heard.losses:
                await anyio.sleep(0.01)
            await write(database, "a", "b")
            while heard.losses < 2:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
