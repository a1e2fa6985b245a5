"""The database connection: SQLite's modes, several writers, and errors in our own words."""

import sqlite3
import threading

import anyio
import pytest
from sqlalchemy import exc

from app.domain import Tenant
from app.errors import StorageUnavailable
from app.storage import Database, TenantRepository, engine


async def test_sqlite_runs_with_wal_foreign_keys_and_a_busy_timeout(database):
    async with database.read() as connection:
        for pragma, value in (("journal_mode", "wal"), ("foreign_keys", 1), ("busy_timeout", 5000), ("synchronous", 1)):
            assert (await connection.exec_driver_sql(f"PRAGMA {pragma}")).scalar_one() == value


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


async def test_a_lock_held_by_another_process_delays_writers_only_and_not_for_ever(url, monkeypatch):
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.1)
    database = Database(url)
    locker = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        locker.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
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
    monkeypatch.setattr(engine, "QUEUE_S", 0.05)
    for _ in range(engine.WRITERS):
        await database._writers.acquire()
    with anyio.fail_after(5), pytest.raises(StorageUnavailable, match="too many changes"):
        await TenantRepository(database).create(Tenant("x"))
    for _ in range(engine.WRITERS):
        database._writers.release()
    await TenantRepository(database).create(Tenant("x"))


async def test_an_exception_rolls_back_and_frees_the_writer(database):
    for _ in range(2 * engine.WRITERS):
        with pytest.raises(ZeroDivisionError):
            async with database.write() as connection:
                await connection.exec_driver_sql("DELETE FROM tenants")
                raise ZeroDivisionError
    assert (await TenantRepository(database).get("default")).name == "default"


async def test_a_cancelled_transaction_leaves_nothing_behind(database):
    for _ in range(2 * engine.CONNECTIONS):
        with anyio.move_on_after(0):
            await TenantRepository(database).create(Tenant("x"))
    assert [tenant.name for tenant in await TenantRepository(database).list(limit=9)] == ["default"]


async def test_a_file_that_is_no_database_is_unavailable_storage(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/nowhere/test.db")
    with pytest.raises(StorageUnavailable) as caught:
        await database.ping()
    assert isinstance(caught.value.__cause__, exc.OperationalError)
    await database.aclose()


async def test_closing_twice_is_fine_and_ends_every_thread(url):
    before = threading.active_count()
    database = Database(url)
    await database.ping()
    assert threading.active_count() == before + 1
    await database.aclose()
    await database.aclose()
    assert threading.active_count() == before
    assert repr(database).startswith("<Database sqlite+aiosqlite:///")
