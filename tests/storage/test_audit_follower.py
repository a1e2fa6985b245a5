"""AuditFollower: every act once, in the order of commits."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import anyio
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.util import greenlet_spawn

from app.errors import StorageUnavailable
from app.storage import audit_follower
from app.storage.audit import Act, record
from app.storage.audit_follower import AuditFollower
from app.storage.audit_queries import AuditLog, Which
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
    """What a follower has read."""

    def __init__(self, follower: AuditFollower) -> None:
        self.follower = follower
        self.targets: list[str] = []
        self.losses = 0

    async def look(self) -> None:
        acts = await self.follower.new()
        self.losses += acts is None
        self.targets += [each.target.removeprefix("keys/") for each in acts or ()]


@pytest.fixture
def heard(database: Database) -> Heard:
    return Heard(AuditFollower(database))


@pytest.fixture
def look(heard: Heard) -> Callable:
    return heard.look


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


async def test_who_is_far_behind_reads_all_of_it_in_portions(database, look, heard, monkeypatch):
    monkeypatch.setattr(audit_follower, "AT_ONCE", 6)
    await look()
    await write(database, *map(str, range(10)))
    await look()
    assert (len(heard.targets), heard.follower.is_behind) == (6, True)
    await look()
    assert (heard.targets, heard.losses, heard.follower.is_behind) == ([*map(str, range(10))], 1, False)


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


async def test_what_slow_writers_commit_is_told_in_order_and_nothing_is_lost(database, look, heard):
    """Each writes its row, which has its number then, and takes its time before it commits."""
    names, written = [f"{number:02}" for number in range(20)], list[str]()

    async def write_slowly(name: str, before_s: float, after_s: float) -> None:
        async with database.write() as connection:
            await anyio.sleep(before_s)
            await record(connection, act(name))
            await anyio.sleep(after_s)
        written.append(name)

    await look()
    async with anyio.create_task_group() as tasks:
        for number, name in enumerate(names):
            tasks.start_soon(write_slowly, name, number % 3 / 100, number % 4 / 100)
        while len(written) < len(names):
            await look()
            await anyio.sleep(0.001)
    await look()
    assert sorted(heard.targets) == names
    stored = await AuditLog(database).list(Which(), limit=100)
    assert [each.act.target.removeprefix("keys/") for each in reversed(stored)] == heard.targets


@only_postgresql  # SQLite has one writer at a time
async def test_who_writes_second_gets_the_larger_number_and_waits_only_from_row_to_commit(database, look, heard):
    await look()
    async with database.write() as slow, anyio.create_task_group() as tasks:
        await slow.execute(text("SELECT txid_current()"))  # it has begun to write
        await write(database, "quick")
        await record(slow, act("slow"))
        tasks.start_soon(write, database, "waits")
        await anyio.sleep(0.1)
        await look()
        assert heard.targets == ["quick"]
        await greenlet_spawn(slow.sync.commit)
    await look()
    assert heard.targets == ["quick", "slow", "waits"]


@only_postgresql
async def test_a_writer_that_stands_still_is_thrown_out_before_others_give_up(database, look, heard):
    await look()
    with pytest.raises(StorageUnavailable):  # noqa: PT012 - the end of the block is what fails
        async with database.write() as still:
            await record(still, act("still"))
            await write(database, "waits")
            await record(still, act("more"))
    await look()
    assert heard.targets == ["waits"]


async def test_it_goes_on_after_the_database_was_away(database, look, heard, monkeypatch):
    await look()
    await write(database, "a")
    with monkeypatch.context() as away:
        away.setattr(database, "rows", fails(StorageUnavailable()))
        with pytest.raises(StorageUnavailable):
            await look()
    await look()
    assert (heard.targets, heard.losses) == (["a"], 1)


async def test_after_a_row_that_cannot_be_read_it_begins_anew_behind_it(database, look, heard, monkeypatch):
    await look()
    await write(database, "odd")
    with monkeypatch.context() as odd:
        odd.setattr(database, "rows", fails(ValueError("a bug")))
        with pytest.raises(ValueError, match="a bug"):
            await look()
    await look()
    await write(database, "a")
    await look()
    assert (heard.targets, heard.losses) == (["a"], 2)


def fails(error: Exception) -> Callable:
    async def rows(*_: object, **__: object) -> None:
        raise error

    return rows
