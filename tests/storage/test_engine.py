"""The database connection: several writers, cancelled callers, and errors in our own words; then what only SQLite has.

What only PostgreSQL has is in test_engine_postgresql.py.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import psycopg
import pytest
from sqlalchemy import exc, select

from app.domain import Tenant
from app.errors import StorageReadOnly, StorageUnavailable
from app.storage import engine
from app.storage._database_errors import translated
from app.storage._tables import calls, tenants
from app.storage.engine import Database
from app.storage.tenants import TenantRepository


async def test_sqlite_runs_with_wal_foreign_keys_and_a_busy_timeout(sqlite_url):
    database = Database(sqlite_url)
    async with database.read() as connection:
        for pragma, value in (("journal_mode", "wal"), ("foreign_keys", 1), ("busy_timeout", 5000), ("synchronous", 1)):
            assert (await connection.exec_driver_sql(f"PRAGMA {pragma}")).scalar_one() == value
    await database.aclose()


@pytest.fixture
def patient(monkeypatch):
    """Nobody gives up: on a busy machine many changes at once take long."""
    monkeypatch.setattr(engine, "WAIT_S", 60.0)


@pytest.mark.usefixtures("patient")
async def test_many_writers_at_once_all_succeed(url, database):
    other = Database(url)
    try:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                repository = TenantRepository(database if number % 2 else other)
                tasks.start_soon(repository.create, Tenant(f"t{number}"))
        assert len(await TenantRepository(database).list(limit=100)) == 41
    finally:
        await other.aclose()


async def test_a_lock_held_by_another_process_delays_writers_only_and_not_for_ever(sqlite_url, monkeypatch):
    monkeypatch.setattr(engine, "WAIT_S", 0.2)
    database = Database(sqlite_url)
    locker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        locker.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as tasks:
            for _ in range(2 * engine.CONNECTIONS):
                tasks.start_soon(_refused, TenantRepository(database))
            await anyio.wait_all_tasks_blocked()
            assert (await TenantRepository(database).get("default")).name == "default"
        locker.execute("COMMIT")
        await TenantRepository(database).create(Tenant("later"))
    finally:
        locker.close()
        await database.aclose()


async def _refused(repository: TenantRepository) -> None:
    with pytest.raises(StorageUnavailable):
        await repository.create(Tenant("x"))


async def test_writers_queue_for_a_bounded_time(database, monkeypatch):
    monkeypatch.setattr(engine, "WAIT_S", 0.05)
    writers = database._writers.value
    for _ in range(writers):
        await database._writers.acquire()
    with anyio.fail_after(20), pytest.raises(StorageUnavailable, match="too many changes"):
        await TenantRepository(database).create(Tenant("x"))
    for _ in range(writers):
        database._writers.release()
    await TenantRepository(database).create(Tenant("x"))


async def test_an_exception_rolls_back_and_frees_the_writer(database):
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await _delete_all_and_fail(database)
    assert (await TenantRepository(database).get("default")).name == "default"


async def _delete_all_and_fail(database: Database) -> None:
    async with database.write() as connection:
        await connection.exec_driver_sql("DELETE FROM tenants")
        raise ZeroDivisionError


async def test_what_has_begun_is_finished_though_its_caller_is_cancelled(database):
    repository = TenantRepository(database)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(repository.create, Tenant("begun"))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert [tenant.name for tenant in await repository.list(limit=9)] == ["begun", "default"]


async def test_cancelled_callers_keep_no_connection_and_no_writer(patient, database):
    repository = TenantRepository(database)
    for number in range(4 * engine.CONNECTIONS):
        with anyio.move_on_after(number % 8 / 2000):
            await repository.create(Tenant(f"t{number}"))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in range(engine.CONNECTIONS):
                tasks.start_soon(repository.create, Tenant(f"later{number}"))


async def test_a_query_sees_what_was_written_just_before(database):
    repository = TenantRepository(database)
    for number in range(20):
        await repository.create(Tenant(f"t{number}"))
        assert (await repository.get(f"t{number}")).name == f"t{number}"


async def test_more_queries_than_connections_are_all_answered(patient, database):
    repository, found = TenantRepository(database), list[str]()

    async def ask() -> None:
        found.append((await repository.get("default")).name)

    async with anyio.create_task_group() as tasks:
        for _ in range(5 * engine.CONNECTIONS):
            tasks.start_soon(ask)
    assert found == ["default"] * 5 * engine.CONNECTIONS


async def test_queries_whose_callers_are_cancelled_keep_no_connection(patient, database):
    repository = TenantRepository(database)
    for number in range(8 * engine.CONNECTIONS):
        with anyio.move_on_after(number % 8 / 4000):
            await repository.get("default")
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(2 * engine.CONNECTIONS):
                tasks.start_soon(repository.get, "default")


async def test_a_query_without_its_table_is_unavailable_storage(sqlite_url):
    database = Database(sqlite_url)
    async with database.write() as connection:
        await connection.exec_driver_sql("DROP TABLE calls")
    with pytest.raises(StorageUnavailable):
        await database.rows(select(calls))
    await database.aclose()


async def test_queries_wait_for_others_for_a_bounded_time(sqlite_url, monkeypatch):
    monkeypatch.setattr(engine, "WAIT_S", 0.1)
    database, may_go_on = Database(sqlite_url), threading.Event()
    assert database._single is not None
    ask = database._single._ask

    def slow(*given):
        may_go_on.wait(20)
        return ask(*given)

    monkeypatch.setattr(database._single, "_ask", slow)
    repository, found = TenantRepository(database), list[str]()

    async def get() -> None:
        found.append((await repository.get("default")).name)

    async with anyio.create_task_group() as tasks:
        for _ in range(engine.CONNECTIONS):
            tasks.start_soon(get)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(StorageUnavailable):
            await repository.get("default")
        may_go_on.set()
    assert found == ["default"] * engine.CONNECTIONS  # what has begun is finished
    await database.aclose()


def _threads_since(before: set[threading.Thread]) -> set[threading.Thread]:
    """By themselves, not by number: a thread of an earlier test may end meanwhile."""
    return set(threading.enumerate()) - before


async def _no_threads_since(before: set[threading.Thread]) -> None:
    with anyio.fail_after(20):
        while _threads_since(before):
            await anyio.sleep(0.001)  # a thread has no event to wait for


async def test_a_file_that_is_no_database_is_unavailable_storage(tmp_path):
    before = set(threading.enumerate())
    database = Database(f"sqlite:///{tmp_path}/nowhere/test.db")
    with pytest.raises(StorageUnavailable) as caught:
        await database.ping()
    assert isinstance(caught.value.__cause__, exc.OperationalError)
    await database.aclose()
    await _no_threads_since(before)


_Ask = Callable[[], Awaitable[object]]


@pytest.mark.parametrize("place", [0, 4096], ids=["its head", "what follows"])
@pytest.mark.parametrize("was_open", [True, False])
async def test_a_damaged_file_is_unavailable_storage_until_it_is_restored(sqlite_url, place, was_open):
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    good, database = path.read_bytes(), Database(sqlite_url)
    questions: list[_Ask] = [partial(database.rows, select(tenants)), partial(TenantRepository(database).list, limit=5)]
    for ask in questions if was_open else ():
        await ask()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"x" * (len(good) - place))
    if not was_open:  # what one has read it may know for longer
        for ask in (*questions, database.check):
            with pytest.raises(StorageUnavailable, match="damaged") as caught:
                await ask()
            assert isinstance(caught.value.__cause__, exc.DBAPIError)
            assert caught.value.__cause__.connection_invalidated  # the next one looks at the file anew
    for ask in questions:
        with contextlib.suppress(StorageUnavailable):
            await ask()
    with path.open("r+b") as file:
        file.write(good)
    with anyio.fail_after(10):
        while True:
            with contextlib.suppress(StorageUnavailable):
                for ask in (*questions, database.check):
                    await ask()
                break
    await database.aclose()


@pytest.mark.parametrize("value", ["cast(x'ff' as text)", "'{not json'"], ids=["no UTF-8", "no JSON"])
async def test_a_value_that_nobody_has_written_is_a_damage(sqlite_url, value):
    database = Database(sqlite_url)
    async with database.write() as connection:
        await connection.exec_driver_sql(f"UPDATE tenants SET limits = {value}")
    questions: list[_Ask] = [partial(database.rows, select(tenants)), partial(TenantRepository(database).list, limit=5)]
    for ask in questions:
        with pytest.raises(StorageUnavailable):
            await ask()
    await database.aclose()


def test_a_transaction_that_was_idle_for_too_long_is_unavailable_storage():
    """It may be that of a connection that is being made, on a machine that stood still."""
    with pytest.raises(StorageUnavailable), translated():
        raise exc.InternalError("COMMIT", {}, psycopg.errors.IdleInTransactionSessionTimeout())


async def test_closing_twice_is_fine_and_ends_every_thread(sqlite_url):
    before = set(threading.enumerate())
    database = Database(sqlite_url)
    await database.ping()
    assert len(_threads_since(before)) == 1
    await database.aclose()
    await database.aclose()
    await _no_threads_since(before)
    assert repr(database).startswith("<Database sqlite+aiosqlite:///")


async def test_a_file_that_takes_no_changes_says_so(sqlite_url):
    database = Database(sqlite_url)

    async def write() -> None:
        async with database.write() as connection:
            await connection.exec_driver_sql("PRAGMA query_only = ON")  # as a file system that is mounted so
            await connection.exec_driver_sql("DELETE FROM tenants")

    with pytest.raises(StorageReadOnly):
        await write()
    await database.check()
    await database.aclose()
