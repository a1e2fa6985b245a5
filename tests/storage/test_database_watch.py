"""DatabaseWatch: changes that fail although the database is read. Outages are in tests/storage/."""

import sqlite3
from collections.abc import AsyncIterator, Callable

import anyio
import psycopg
import pytest

from app.domain import Tenant
from app.errors import StorageUnavailable
from app.storage import _database_errors as failures
from app.storage import database_watch as watch
from app.storage import engine
from app.storage._sqlite_file import SqliteFile
from app.storage.database_watch import DatabaseWatch
from app.storage.engine import Database
from app.storage.tenants import TenantRepository


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watch, "WATCH_EVERY_S", 0.01)
    monkeypatch.setattr(watch, "LATE_S", 60.0)  # an answer that takes long is none, but not here
    # Changes wait behind a trial as well, and the server ends a transaction in which this process stands still.
    monkeypatch.setattr(engine, "WAIT_S", 1.0)
    monkeypatch.setattr(engine, "TRY_S", 0.1)


@pytest.fixture
async def database(sqlite_url) -> AsyncIterator[Database]:
    database = Database(sqlite_url)
    yield database
    await database.aclose()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.01)


async def test_that_changes_fail_and_that_they_work_again_is_found_and_said_once(database, sqlite_url, caplog):
    caplog.set_level("INFO", "app.storage.database_watch")
    watching = DatabaseWatch(database)
    locker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watching.run)
        locker.execute("BEGIN IMMEDIATE")
        for number in range(3):
            with pytest.raises(StorageUnavailable, match="Another program keeps the database locked"):
                await TenantRepository(database).create(Tenant(f"t{number}"))
        await until(lambda: watching.refusal == failures.LOCKED)
        assert watching.problem is None
        assert not watching.is_away()
        locker.execute("COMMIT")
        await until(lambda: watching.refusal is None)
        tasks.cancel_scope.cancel()
    locker.close()
    await TenantRepository(database).create(Tenant("later"))
    first, second = caplog.messages
    assert first.startswith("Changes fail: Another program keeps the database locked: ")
    assert second == "The database takes changes again"


async def test_a_trial_that_has_to_wait_for_other_changes_says_nothing(database, caplog):
    caplog.set_level("INFO", "app.storage.database_watch")
    watching, trials, try_change = DatabaseWatch(database), 0, database.try_change

    async def counted() -> bool:
        nonlocal trials
        trials += 1
        return bool(await try_change())

    database.refused = StorageUnavailable(failures.LOCKED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "try_change", counted)
        async with anyio.create_task_group() as tasks:
            async with database.write():
                tasks.start_soon(watching.run)
                await until(lambda: trials >= 3)
                assert watching.refusal == failures.LOCKED
            await until(lambda: watching.refusal is None)
            tasks.cancel_scope.cancel()
    assert caplog.messages == [f"Changes fail: {failures.LOCKED}", "The database takes changes again"]


async def test_changes_of_one_table_that_fail_on_a_server_are_said_once_until_they_have_been_calm(
    postgres_database, caplog, monkeypatch
):
    monkeypatch.setattr(watch, "CALM_S", 2.0)
    caplog.set_level("INFO", "app.storage.database_watch")
    database = Database(postgres_database)
    watching = DatabaseWatch(database)
    async with anyio.create_task_group() as tasks:
        with psycopg.connect(postgres_database) as locker:
            locker.execute("LOCK TABLE tenants IN SHARE ROW EXCLUSIVE MODE")
            tasks.start_soon(watching.run)
            for number in range(3):
                with pytest.raises(StorageUnavailable):
                    await TenantRepository(database).create(Tenant(f"t{number}"))
                await until(lambda: watching.refusal is not None)
                await anyio.sleep(0.3)  # calm: trials succeed meanwhile
                assert watching.refusal is not None
        await until(lambda: watching.refusal is None)
        tasks.cancel_scope.cancel()
    await database.aclose()
    first, second = caplog.messages
    assert first.startswith("Changes fail: ")
    assert second == "The database takes changes again"


async def told(database: Database) -> None:
    """Waits until it is said that changes fail, and until that is over."""
    watching = DatabaseWatch(database)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watching.run)
        await until(lambda: watching.refusal is not None)
        await until(lambda: watching.refusal is None)
        tasks.cancel_scope.cancel()
    await database.aclose()


async def test_a_change_that_a_server_has_not_answered_is_not_told_of_once_it_answers(postgres_database, caplog):
    caplog.set_level("INFO", "app.storage.database_watch")
    database = Database(postgres_database)
    database.refused = StorageUnavailable()
    database.refused.__cause__ = TimeoutError()  # begun in an outage, and given up after it
    await told(database)
    assert caplog.messages == [
        "Changes fail: The database does not answer: TimeoutError",
        "The database takes changes again",
    ]


async def test_a_connection_that_broke_under_a_change_is_no_trouble_once_another_change_has_worked(
    postgres_database, caplog
):
    """As in a failover: for a minute it was said that changes fail."""
    caplog.set_level("INFO", "app.storage.database_watch")
    database = Database(postgres_database)
    with pytest.raises(StorageUnavailable):
        async with database.write() as connection:
            await connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
    await told(database)
    assert caplog.messages[-1] == "The database takes changes again"


async def test_a_full_disk_is_full_until_there_is_room(database, monkeypatch):
    watching, has_room = DatabaseWatch(database), False
    monkeypatch.setattr(SqliteFile, "has_room", lambda _: has_room)
    database.refused = StorageUnavailable(failures.FULL)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watching.run)
        await until(lambda: watching.refusal == failures.FULL)
        has_room = True
        await until(lambda: watching.refusal is None)
        tasks.cancel_scope.cancel()
    assert database.refused is None


async def test_a_change_of_nothing_is_tried_on_each_database(url):
    database = Database(url)
    await database.try_change()
    await TenantRepository(database).create(Tenant("later"))
    await database.try_change()
    await database.aclose()


@pytest.mark.parametrize(
    ("harm", "mend"),
    [
        ("ALTER TABLE api_keys RENAME TO gone", "ALTER TABLE gone RENAME TO api_keys"),
        ("ALTER TABLE audit RENAME COLUMN changes TO gone", "ALTER TABLE audit RENAME COLUMN gone TO changes"),
    ],
)
async def test_a_table_or_a_column_that_is_away_is_noticed(url, harm, mend):
    database = Database(url)
    await database.check()
    async with database.write() as connection:
        await connection.exec_driver_sql(harm)
    try:
        with pytest.raises(StorageUnavailable, match="lacks a table, a column"):
            await database.check()
    finally:
        async with database.write() as connection:
            await connection.exec_driver_sql(mend)
    await database.check()
    await database.aclose()


async def test_a_database_that_answers_late_each_time_is_slow_until_it_is_quick_again(database, monkeypatch, caplog):
    monkeypatch.setattr(watch, "LATE_S", 0.1)
    caplog.set_level("INFO", "app.storage.database_watch")
    watching, seconds, answers = DatabaseWatch(database), 0.15, 0

    async def check() -> None:
        nonlocal answers
        await anyio.sleep(seconds)
        answers += 1

    monkeypatch.setattr(database, "check", check)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watching.run)
        await until(lambda: answers == 1)
        assert not caplog.messages
        await until(lambda: answers >= 2 and watching.slowness == watch.SLOW)
        for _ in range(50):
            assert watching.slowness == watch.SLOW  # while it is asked, and in between
            assert watching.problem is None  # nobody is refused: it answers
            assert not watching.is_away()
            await anyio.sleep(0.01)
        seconds = 0.0
        await until(lambda: watching.slowness is None)
        monkeypatch.setattr(watch, "SLOW_LATE_S", 0.1)
        seconds = 0.15
        await until(lambda: watching.slowness is not None)
        await until(lambda: watching.problem == "the database does not answer")
        tasks.cancel_scope.cancel()
    assert caplog.messages == [watch.SLOW, "The database answers in time again", watch.SLOW]
