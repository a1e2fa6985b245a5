"""The database connection: short transactions, the peculiarities of SQLite and PostgreSQL, library errors turned
into ours.

Everything that only one of the two needs is in this file and in migrate.py.
"""

import math
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
from sqlalchemy import URL, Delete, Engine, Update, event, exc
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.errors import ConcurrentChange, Conflict, NotFound, StorageReadOnly, StorageUnavailable
from app.storage.audit_act import Act, record

WAIT_S = 5.0  # how long a transaction may wait for others, in this process and elsewhere; it takes milliseconds
ANSWER_S = 10.0  # a server that has not answered by then has frozen: its own time-outs have passed
CONNECTIONS = 8
WRITERS = 4  # the other connections stay free for reads

_BUSY_TIMEOUT_MS = "trunkline_busy_timeout_ms"
_POSTGRESQL = {
    "application_name": "trunkline",
    "connect_timeout": int(WAIT_S),
    "tcp_user_timeout": int(WAIT_S * 1000),
    "prepare_threshold": None,  # prepared statements belong to a connection, which poolers swap
}
_IDLE = "25P03"  # `idle_in_transaction_session_timeout` has struck; psycopg counts that as an internal error
_READ_ONLY = "25006"  # read_only_sql_transaction
_FOREIGN_KEY = {"SQLITE_CONSTRAINT_FOREIGNKEY", "23503"}

Read = Callable[[], Awaitable[object]]  # raises where what it reads is gone


class Database:
    """One engine for one database. Use `read()` and `write()`; close it, or its threads keep the process alive."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._is_sqlite = is_sqlite = parsed.get_backend_name() == "sqlite"
        parsed = parsed.set(drivername="sqlite+aiosqlite" if is_sqlite else "postgresql+psycopg")
        self._engine = create_async_engine(
            parsed,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=WAIT_S,
            pool_pre_ping=not is_sqlite,  # connections of before a restart of the server are replaced unseen
            hide_parameters=True,
            connect_args={} if is_sqlite else _POSTGRESQL,
        )
        if is_sqlite:
            prepare_sqlite(self._engine.sync_engine)
        else:
            prepare_postgresql(self._engine.sync_engine)
        # SQLite has one writer at a time, and its own way of waiting is to look again now and then: we queue.
        self._writers = anyio.Semaphore(1 if is_sqlite else WRITERS)
        # SQLite ends what it began by itself; a server, or the way to it, can freeze.
        self._answer_within_s = math.inf if is_sqlite else ANSWER_S

    def __repr__(self) -> str:
        url = self._engine.url.set(query={})  # options can hold a password as well
        return f"<Database {url.render_as_string(hide_password=True)}>"

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return place_of(self._engine.url)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads.

        Raises:
            StorageUnavailable: the database does not answer.
        """
        async with self._transaction(self._engine) as connection:
            yield connection

    @asynccontextmanager
    async def write(self, *acts: Act | None) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write; commits at the end, rolls back on an exception.

        `acts` are what the change is to the audit trail, which gets them in the same transaction.

        Raises:
            Conflict: a name is taken.
            NotFound: the object that a row belongs to is gone.
            StorageReadOnly: the database takes no changes.
            StorageUnavailable: the database does not answer, or somebody else writes for too long.
        """
        with anyio.move_on_after(WAIT_S) as queue:
            await self._writers.acquire()
        if queue.cancelled_caught:
            raise StorageUnavailable("too many changes at once")
        left_ms = int(max(0.0, queue.deadline - anyio.current_time()) * 1000)
        try:
            async with self._transaction(self._engine.execution_options(**{_BUSY_TIMEOUT_MS: left_ms})) as connection:
                yield connection
                for act in acts:
                    if act is not None:
                        await record(connection, act)
        finally:
            self._writers.release()

    async def ping(self) -> None:
        """Asks the database something.

        Raises:
            StorageUnavailable: it does not answer.
        """
        async with self.read() as connection:
            await connection.exec_driver_sql("SELECT 1")

    async def check(self) -> None:
        """Asks whether it answers, and takes changes.

        Raises:
            StorageReadOnly: it takes none now.
            StorageUnavailable: it does not answer.
        """
        async with self.read() as connection:
            if self._is_sqlite:
                await connection.exec_driver_sql("SELECT 1")
                return
            # "on" at a standby, and where an administrator has made it the default.
            if (await connection.exec_driver_sql("SHOW transaction_read_only")).scalar_one() == "on":
                raise StorageReadOnly

    async def aclose(self) -> None:
        """Closes every connection. Idempotent."""
        with anyio.move_on_after(WAIT_S, shield=True):  # a start that was cancelled would leave their threads
            await self._engine.dispose()

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        # What has begun is finished, whatever becomes of the caller: a connection that was left in the middle could
        # hand its answer to the next one. The time-outs bound how long that can take; a connection on which ours
        # strikes is thrown away.
        with _translated(), anyio.fail_after(self._answer_within_s, shield=True):
            async with engine.begin() as connection:
                yield connection


def place_of(url: URL | str) -> str:
    """Where a database is, for people: a file, or server and name without user and password."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return os.path.abspath(str(parsed.database))
    port = "" if parsed.port is None else f":{parsed.port}"
    return f"postgresql://{parsed.host or ''}{port}/{parsed.database or ''}"


def prepare_postgresql(engine: Engine) -> None:
    """Time-outs at the server, so that no statement and no lock is waited for longer than WAIT_S."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        milliseconds = int(WAIT_S * 1000)
        # Not as start-up options of the connection: poolers refuse those.
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute(f"SET {name} = {milliseconds}")
        cursor.close()
        connection.commit()


async def change_one(connection: AsyncConnection, statement: Update | Delete, what: str, read_again: Read) -> None:
    """Carries out what changes or deletes one row as it was read.

    Raises:
        What `read_again` raises: it is gone.
        ConcurrentChange: it is another version now.
    """
    if (await connection.execute(statement)).rowcount:
        return
    await read_again()
    raise ConcurrentChange(f"the {what} was changed by somebody else; read it again")


def prepare_sqlite(engine: Engine) -> None:
    """WAL, foreign keys, a busy time-out, and transactions that begin when SQLAlchemy says so.

    Python's sqlite3 begins a transaction of its own only before the first change, so a read before it
    would not belong to it; and a transaction that turns from reading to writing cannot wait for another
    writer. So sqlite3 is put into its raw mode and writers say BEGIN IMMEDIATE.
    """

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout = {int(WAIT_S * 1000)}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "foreign_keys = ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        busy_timeout_ms = connection.get_execution_options().get(_BUSY_TIMEOUT_MS)
        if busy_timeout_ms is None:
            connection.exec_driver_sql("BEGIN")
        else:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {busy_timeout_ms}")
            connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        if _code(error.orig) in _FOREIGN_KEY:
            raise NotFound("Tenant not found") from error
        raise Conflict("an object with this name or id exists already") from error
    except (exc.InterfaceError, exc.TimeoutError) as error:
        raise StorageUnavailable from error
    except exc.DBAPIError as error:
        if _is_read_only(error.orig):
            raise StorageReadOnly from error
        if isinstance(error, exc.OperationalError) or error.connection_invalidated or _code(error.orig) == _IDLE:
            raise StorageUnavailable from error
        raise
    except TimeoutError as error:
        raise StorageUnavailable from error


def _is_read_only(error: BaseException | None) -> bool:
    code = _code(error)
    return code == _READ_ONLY or (isinstance(code, str) and code.startswith("SQLITE_READONLY"))


def _code(error: BaseException | None) -> object:
    if isinstance(error, sqlite3.Error):
        return error.sqlite_errorname
    return getattr(error, "sqlstate", None)
