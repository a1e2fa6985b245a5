"""The database connection: short transactions, SQLite's peculiarities, library errors turned into ours.

Everything that only SQLite needs is in this file.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
from sqlalchemy import Engine, event, exc
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from app.errors import Conflict, NotFound, StorageUnavailable

BUSY_TIMEOUT_S = 5.0  # how long SQLite waits for another process's write transaction
CONNECTIONS = 16
WRITERS = 8  # the other connections stay free for reads, which a locked SQLite still answers
QUEUE_S = 0.5  # a transaction is milliseconds: who waits longer for a connection had better come again

_WRITES = "trunkline_writes"
_FOREIGN_KEY = {"SQLITE_CONSTRAINT_FOREIGNKEY", "23503"}


class Database:
    """One engine for one database. Use `read()` and `write()`; close it, or its threads keep the process alive."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        if is_sqlite:
            parsed = parsed.set(drivername="sqlite+aiosqlite")
        self._engine = create_async_engine(
            parsed, pool_size=CONNECTIONS, max_overflow=0, pool_timeout=QUEUE_S, hide_parameters=True
        )
        if is_sqlite:
            prepare_sqlite(self._engine.sync_engine)
        self._writing = self._engine.execution_options(**{_WRITES: True})
        self._writers = anyio.Semaphore(WRITERS)

    def __repr__(self) -> str:
        return f"<Database {self._engine.url.render_as_string(hide_password=True)}>"

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads.

        Raises:
            StorageUnavailable: the database does not answer.
        """
        with _translated():
            async with self._engine.begin() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write; commits at the end, rolls back on an exception.

        Raises:
            Conflict: a name is taken.
            NotFound: the object that a row belongs to is gone.
            StorageUnavailable: the database does not answer, or somebody else writes for too long.
        """
        with anyio.move_on_after(QUEUE_S) as queue:
            await self._writers.acquire()
        if queue.cancelled_caught:
            raise StorageUnavailable("too many changes at once")
        try:
            with _translated():
                async with self._writing.begin() as connection:
                    yield connection
        finally:
            self._writers.release()

    async def ping(self) -> None:
        """Asks the database something.

        Raises:
            StorageUnavailable: it does not answer.
        """
        async with self.read() as connection:
            await connection.exec_driver_sql("SELECT 1")

    async def aclose(self) -> None:
        """Closes every connection. Idempotent."""
        await self._engine.dispose()


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
            f"busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "foreign_keys = ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except exc.IntegrityError as error:
        if _code(error.orig) in _FOREIGN_KEY:
            raise NotFound("Tenant not found") from error
        raise Conflict("an object with this name or id exists already") from error
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise StorageUnavailable from error


def _code(error: BaseException | None) -> object:
    if isinstance(error, sqlite3.Error):
        return error.sqlite_errorname
    return getattr(error, "sqlstate", None)
