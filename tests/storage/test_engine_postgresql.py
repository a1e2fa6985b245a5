"""What can happen to a database at the other end of a network, and on a server that others use too."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import anyio
import psutil
import psycopg
import pytest
from sqlalchemy import event

from app.domain import Tenant
from app.errors import StorageReadOnly, StorageUnavailable
from app.storage import database_watch as health_watch
from app.storage import engine
from app.storage.database_watch import DatabaseWatch
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from tests.integration.stopwatch import stopwatch_of
from tests.postgres import empty


@pytest.fixture
def url(postgres_database: str) -> str:
    empty(postgres_database)
    return postgres_database


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    yield database
    await database.aclose()


class Wire:
    """Between the gateway and the server; can be frozen, like a network that loses everything."""

    def __init__(self, url: str) -> None:
        self._host, self._port = url.split("@")[1].split("/")[0].split(":")
        self._url, self._writers = url, list[asyncio.StreamWriter]()
        self._flows = asyncio.Event()
        self._flows.set()

    async def __aenter__(self) -> "Wire":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._url.replace(f":{self._port}/", f":{port}/")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        self._flows.set()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(self._host, int(self._port))
        self._writers += [writer, ours]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pump, reader, ours)
            tasks.start_soon(self._pump, theirs, writer)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while block := await source.read(65536):
                await self._flows.wait()
                target.write(block)
        except OSError:
            pass
        target.close()


async def test_the_server_ends_what_takes_too_long(url, monkeypatch):
    monkeypatch.setattr(engine, "WAIT_S", 1.0)
    database = Database(url)
    with anyio.fail_after(20), pytest.raises(StorageUnavailable):
        async with database.read() as connection:
            await connection.exec_driver_sql("SELECT pg_sleep(60)")
    await database.ping()
    await database.aclose()


async def test_a_row_that_somebody_else_holds_is_waited_for_and_not_for_ever(url, monkeypatch):
    monkeypatch.setattr(engine, "WAIT_S", 1.0)
    database = Database(url)
    async with await psycopg.AsyncConnection.connect(url) as locker:
        await locker.execute("SELECT * FROM tenants FOR UPDATE")
        with anyio.fail_after(20), pytest.raises(StorageUnavailable):
            await TenantRepository(database).replace(Tenant("default"))
        assert (await TenantRepository(database).get("default")).version == 1
    await TenantRepository(database).replace(Tenant("default"))
    await database.aclose()


async def test_connections_that_the_server_has_closed_are_replaced_unseen(url, database):
    async with anyio.create_task_group() as tasks:
        for _ in range(engine.CONNECTIONS):
            tasks.start_soon(database.ping)
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    for number in range(2 * engine.CONNECTIONS):
        await TenantRepository(database).create(Tenant(f"t{number}"))


async def test_a_connection_that_dies_in_the_middle_is_unavailable_storage(url, database):
    with pytest.raises(StorageUnavailable, match="does not answer"):  # and so nothing was changed
        await _cut_off(url, database)
    await database.ping()


async def test_a_change_whose_commit_got_no_answer_may_have_been_carried_out(url, database):
    pid = 0

    def cut_off(_: object) -> None:
        with psycopg.connect(url, autocommit=True) as administrator:
            administrator.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    async def change() -> None:
        nonlocal pid
        async with database.write() as connection:
            pid = (await connection.exec_driver_sql("SELECT pg_backend_pid()")).scalar_one()

    await database.ping()
    event.listen(database._engine, "commit", cut_off)
    with pytest.raises(StorageUnavailable, match="did not say whether") as caught:
        await change()
    assert "look at the object" in (caught.value.hint or "")


async def _cut_off(url: str, database: Database) -> None:
    async with database.write() as connection:
        pid = (await connection.exec_driver_sql("SELECT pg_backend_pid()")).scalar_one()
        with psycopg.connect(url, autocommit=True) as administrator:
            administrator.execute("SELECT pg_terminate_backend(%s)", [pid])
        await connection.exec_driver_sql("SELECT 1")


async def test_a_server_that_is_not_there_is_unavailable_at_once():
    database = Database("postgresql://postgres@127.0.0.1:1/none")
    async with stopwatch_of([psutil.Process()]) as watch:
        with anyio.fail_after(30), pytest.raises(StorageUnavailable):
            await database.ping()
        assert watch.seconds < 4  # to wait for one that is there takes five
    await database.aclose()


@pytest.fixture
def refused(url: str) -> Iterator[dict[str, str]]:
    """Addresses with which the server lets nobody in, by why."""
    name = f"refused_{url.rpartition('/')[2]}"
    roles = {"user": "NOLOGIN", "connections": "LOGIN CONNECTION LIMIT 0"}
    with psycopg.connect(url, autocommit=True) as connection:
        for role, options in roles.items():
            connection.execute(f"CREATE ROLE {name}_{role} {options}".encode())
    addresses = {role: url.replace("//postgres@", f"//{name}_{role}@") for role in roles}
    yield {**addresses, "name": url.replace(url.rpartition("/")[2], name)}
    with psycopg.connect(url, autocommit=True) as connection:
        for role in roles:
            connection.execute(f"DROP ROLE {name}_{role}".encode())


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("user", "refuses the user or the password"),
        ("connections", "no connection left"),
        ("name", "no database of this name"),
    ],
)
async def test_why_a_server_lets_nobody_in_is_said(refused, why, words):
    database = Database(refused[why])
    with pytest.raises(StorageUnavailable, match=words):
        await database.ping()
    await database.aclose()


async def test_a_frozen_server_is_given_up_seen_by_readiness_at_once_and_found_again(url, monkeypatch):
    monkeypatch.setattr(engine, "ANSWER_S", 60.0)
    async with Wire(url) as wire, anyio.create_task_group() as tasks:
        database = Database(wire.url)
        watch = DatabaseWatch(database)
        tasks.start_soon(watch.run)
        await TenantRepository(database).get("default")
        with anyio.fail_after(30):
            while watch.problem is not None:
                await anyio.sleep(0.01)
        database._answer_within_s = 1.0  # not before it has answered, which may take longer on a busy machine
        wire.freeze()
        async with stopwatch_of([psutil.Process()]) as stopwatch:
            with pytest.raises(StorageUnavailable):
                await TenantRepository(database).get("default")
            assert stopwatch.seconds < 8
        with anyio.fail_after(30):
            while watch.problem is None:
                await anyio.sleep(0.01)
        database._answer_within_s = 60.0
        wire.thaw()
        with anyio.fail_after(30):
            while watch.problem is not None:
                await anyio.sleep(0.01)
        await TenantRepository(database).create(Tenant("later"))
        tasks.cancel_scope.cancel()
        await database.aclose()


async def test_a_password_is_in_no_message(url):
    database = Database("postgresql://somebody:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in repr(database)
    with pytest.raises(StorageUnavailable) as caught:
        await database.ping()
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"
    await database.aclose()


def _set_read_only(url: str, is_read_only: bool) -> None:
    """As a wrong standby; connections that exist keep what they had."""
    name = url.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {is_read_only}'.encode())


@pytest.fixture
def read_only_url(url: str) -> Iterator[str]:
    _set_read_only(url, True)
    yield url
    _set_read_only(url, False)


async def test_a_database_that_takes_no_changes_says_so_and_is_read_all_the_same(read_only_url):
    database = Database(read_only_url)
    await database.ping()
    assert (await TenantRepository(database).get("default")).name == "default"
    for attempt in (TenantRepository(database).create(Tenant("new")), database.check()):
        with pytest.raises(StorageReadOnly, match="read-only"):
            await attempt
    await database.aclose()


async def test_a_node_that_was_led_to_a_standby_takes_changes_when_its_address_leads_to_the_primary(read_only_url):
    """Nobody closes the connections that it has by then: it was read-only until it was started again."""
    database = Database(read_only_url)
    async with database.read(), database.read():
        pass  # two connections are kept
    with pytest.raises(StorageReadOnly):
        await database.check()
    async with database.read() as busy:
        with pytest.raises(StorageReadOnly):
            await database.check()
        _set_read_only(read_only_url, False)
        await busy.exec_driver_sql("SELECT 1")
        await database.check()
    for number in range(9):
        await TenantRepository(database).create(Tenant(f"later-{number}"))
    await database.aclose()


async def test_a_connection_that_was_just_made_is_not_made_anew(read_only_url):
    """SQLAlchemy makes a connection anew once, and refuses the second time: a bug in the gateway, clients were told."""
    database = Database(read_only_url)
    async with database.read():
        pass  # this one is kept

    def checked(*_: object) -> None:
        database._must_reconnect = True  # as another task's check does while this one connects

    event.listen(database._engine, "connect", checked)
    checked()
    for _ in range(2):
        with pytest.raises(StorageReadOnly):
            await TenantRepository(database).create(Tenant("new"))
    await database.aclose()


async def test_the_watch_tells_a_database_that_is_read_only_from_one_that_is_away(read_only_url, monkeypatch):
    monkeypatch.setattr(health_watch, "WATCH_EVERY_S", 0.02)
    monkeypatch.setattr(health_watch, "LATE_S", 60.0)  # an answer that takes long is none, but not here
    database = Database(read_only_url)
    watch = DatabaseWatch(database)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        with anyio.fail_after(30):
            while watch.problem != "The database is read-only: it may be a standby":
                await anyio.sleep(0.01)
        assert not watch.is_away()
        _set_read_only(read_only_url, False)
        await database.aclose()  # its connections are as old as the setting
        with anyio.fail_after(30):
            while watch.problem is not None:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    await database.aclose()


async def test_the_watch_says_once_that_the_database_is_away_and_once_that_it_is_back(url, monkeypatch, caplog):
    monkeypatch.setattr(health_watch, "WATCH_EVERY_S", 0.01)
    monkeypatch.setattr(health_watch, "LATE_S", 60.0)  # an answer that takes long is none, but not here
    database, rounds = Database(url), 0
    check = database.check

    async def sometimes() -> None:
        nonlocal rounds
        rounds += 1
        if 5 <= rounds < 10:
            raise StorageUnavailable
        await check()

    monkeypatch.setattr(database, "check", sometimes)
    caplog.set_level("INFO", "app.storage.database_watch")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(DatabaseWatch(database).run)
        with anyio.fail_after(30):
            while rounds < 15:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    await database.aclose()
