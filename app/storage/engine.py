"""The database connection: short transactions, the differences of SQLite and PostgreSQL, library errors turned into
ours; and a watch that knows whether the database answers.

Everything that only one of the two databases needs is in this file and in migrate.py.
"""

import logging
import math
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from json import JSONDecodeError
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy import URL, CursorResult, Engine, Row, Select, create_engine, event, exc, select
from sqlalchemy.engine import Connection, ExceptionContext, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from app.errors import Conflict, NotFound, StorageReadOnly, StorageUnavailable
from app.storage.audit_act import Act, record
from app.storage.tables import tenants

WAIT_S = 5.0  # how long a transaction may wait for others, in this process and elsewhere; it takes milliseconds
ANSWER_S = 10.0  # a server that has not answered by then hangs: its own time-outs are shorter
CONNECTIONS = 8
WRITERS = 4  # the other connections stay free for reads
WATCH_EVERY_S = 1.0
LATE_S = 1.0  # after that the watch counts the database as not answering

_BUSY_TIMEOUT_MS = "trunkline_busy_timeout_ms"
_ONE_QUERY = "trunkline_one_query"
_ANSWERS = select(tenants.c.name).limit(1)  # a query without a table does not look at the file
_POSTGRESQL = {
    "application_name": "trunkline",
    "connect_timeout": int(WAIT_S),
    "tcp_user_timeout": int(WAIT_S * 1000),
    "prepare_threshold": None,  # prepared statements belong to a connection, which poolers swap
}
_IDLE = "25P03"  # `idle_in_transaction_session_timeout` has struck; psycopg counts that as an internal error
_READ_ONLY = "25006"  # read_only_sql_transaction
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")  # the file, or a part of it
_DAMAGE = "The database is damaged: restore its backup"
_FOREIGN_KEY = {"SQLITE_CONSTRAINT_FOREIGNKEY", "23503"}

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Take = Callable[[CursorResult[Any]], _T]


class Database:
    """One engine for one database. Use `read()` and `write()`; close it, or its threads keep the process alive."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._is_sqlite = is_sqlite = parsed.get_backend_name() == "sqlite"
        self._single = _SqliteQueries(parsed) if is_sqlite else None
        parsed = parsed.set(drivername="sqlite+aiosqlite" if is_sqlite else "postgresql+psycopg")
        self._engine = create_async_engine(
            parsed,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=WAIT_S,
            pool_pre_ping=not is_sqlite,  # replaces connections from before a restart of the server
            hide_parameters=True,
            connect_args={} if is_sqlite else _POSTGRESQL,
        )
        if is_sqlite:
            prepare_sqlite(self._engine.sync_engine)
        else:
            prepare_postgresql(self._engine.sync_engine)
        # SQLite has one writer at a time, and waits by polling: we queue instead.
        self._writers = anyio.Semaphore(1 if is_sqlite else WRITERS)
        # SQLite always finishes; a server, or the network, can hang.
        self._answer_within_s = math.inf if is_sqlite else ANSWER_S

    def __repr__(self) -> str:
        url = self._engine.url.set(query={})  # options can hold a password as well
        return f"<Database {url.render_as_string(hide_password=True)}>"

    @property
    def place(self) -> str:
        return place_of(self._engine.url)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads. Raises StorageUnavailable: the database does not answer."""
        async with self._shielded(self._engine.begin()) as connection:
            yield connection

    async def rows(self, query: Select[Any], **values: object) -> Sequence[Row[Any]]:
        """All rows of a query with these values. Raises: as `read`."""
        return await self._found(query, values, lambda result: result.all())

    async def row(self, query: Select[Any], **values: object) -> Row[Any] | None:
        """The one row of a query, or None. Otherwise as `rows`."""
        return await self._found(query, values, lambda result: result.one_or_none())

    async def _found(self, query: Select[Any], values: Mapping[str, object], take: _Take[_T]) -> _T:
        if self._single is not None:
            with _translated():
                return await self._single.found(query, values, take)
        async with self._shielded(self._engine.connect()) as connection:
            return take(await connection.execute(query, values))

    @asynccontextmanager
    async def write(self, *acts: Act | None) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write; commits at the end, rolls back on an exception.

        `acts` describe the change for the audit trail, which is written in the same transaction.

        Raises:
            Conflict: a name is taken.
            NotFound: the object that a row belongs to is gone.
            StorageReadOnly: the database accepts no changes.
            StorageUnavailable: the database does not answer, or other changes take too long.
        """
        with anyio.move_on_after(WAIT_S) as queue:
            await self._writers.acquire()
        if queue.cancelled_caught:
            raise StorageUnavailable("too many changes at once")
        left_ms = int(max(0.0, queue.deadline - anyio.current_time()) * 1000)
        try:
            engine = self._engine.execution_options(**{_BUSY_TIMEOUT_MS: left_ms})
            async with self._shielded(engine.begin()) as connection:
                yield connection
                for act in acts:
                    if act is not None:
                        await record(connection, act)
        finally:
            self._writers.release()

    async def ping(self) -> None:
        """Raises StorageUnavailable where the database does not answer."""
        async with self.read() as connection:
            await connection.exec_driver_sql("SELECT 1")

    async def check(self) -> None:
        """Like `ping`; also raises StorageReadOnly where the database accepts no changes."""
        if self._is_sqlite:
            await self.row(_ANSWERS)
            return
        async with self.read() as connection:
            # "on" on a standby, and where an administrator has made it the default.
            if (await connection.exec_driver_sql("SHOW transaction_read_only")).scalar_one() == "on":
                raise StorageReadOnly

    async def aclose(self) -> None:
        """Closes every connection. Idempotent."""
        with anyio.move_on_after(WAIT_S, shield=True):  # a cancelled start would leave its threads behind
            await self._engine.dispose()
        if self._single is not None:
            self._single.close()

    @asynccontextmanager
    async def _shielded(
        self, connected: AbstractAsyncContextManager[AsyncConnection]
    ) -> AsyncIterator[AsyncConnection]:
        # Shielded: a connection that is abandoned in the middle of a statement could give its answer to the next user.
        # Time-outs bound how long that takes; after our own the connection is thrown away.
        with _translated(), anyio.fail_after(self._answer_within_s, shield=True):
            async with connected as connection:
                yield connection


class _SqliteQueries:
    """Single queries of SQLite, each in one turn of a thread. With the asynchronous driver it takes five turns of one,
    and three times the CPU time."""

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(
            url.set(drivername="sqlite"),
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=WAIT_S,
            hide_parameters=True,
        ).execution_options(**{_ONE_QUERY: True})
        prepare_sqlite(self._engine)
        self._turns = anyio.CapacityLimiter(CONNECTIONS)

    async def found(self, query: Select[Any], values: Mapping[str, object], take: _Take[_T]) -> _T:
        """Raises TimeoutError: other queries take too long; and as SQLAlchemy does."""
        with anyio.fail_after(WAIT_S, shield=True):
            return await anyio.to_thread.run_sync(self._ask, query, values, take, limiter=self._turns)

    def _ask(self, query: Select[Any], values: Mapping[str, object], take: _Take[_T]) -> _T:
        with self._engine.connect() as connection:
            return take(connection.execute(query, values))

    def close(self) -> None:
        self._engine.dispose()


class DatabaseWatch:
    """Knows whether the database answers and accepts changes, without waiting for it: /readyz asks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._problem: StorageUnavailable | None = None
        self._asked_at: float | None = None

    @property
    def problem(self) -> str | None:
        """Why the database cannot be used now, or None."""
        if self._is_late():
            return "the database does not answer"
        return None if self._problem is None else str(self._problem)

    def is_away(self) -> bool:
        """Whether it does not even answer reads."""
        return self._is_late() or (self._problem is not None and not isinstance(self._problem, StorageReadOnly))

    async def run(self) -> None:
        """Checks the database every WATCH_EVERY_S."""
        while True:
            self._asked_at = time.monotonic()
            try:
                await self._database.check()
                self._is_now(None)
            except StorageUnavailable as error:
                self._is_now(error)
            self._asked_at = None
            await anyio.sleep(WATCH_EVERY_S)

    def _is_now(self, problem: StorageUnavailable | None) -> None:
        if str(problem) != str(self._problem):
            if problem is None:
                log.info("The database can be used again")
            else:
                log.warning("%s: %s", problem, problem.__cause__ or "asked just now")
        self._problem = problem

    def _is_late(self) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at > LATE_S


def place_of(url: URL | str) -> str:
    """The location of a database, for messages: a file, or server and name without user and password."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return os.path.abspath(str(parsed.database))
    port = "" if parsed.port is None else f":{parsed.port}"
    return f"postgresql://{parsed.host or ''}{port}/{parsed.database or ''}"


def prepare_postgresql(engine: Engine) -> None:
    """Sets time-outs on the server, so that no statement and no lock takes longer than WAIT_S."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        milliseconds = int(WAIT_S * 1000)
        # Not as options of the connection: poolers refuse those.
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute(f"SET {name} = {milliseconds}")
        cursor.close()
        connection.commit()


def prepare_sqlite(engine: Engine) -> None:
    """Sets WAL, foreign keys and a busy time-out, and begins transactions when SQLAlchemy does.

    Python's sqlite3 begins a transaction only before the first change, so earlier reads would not be part of it; and a
    transaction that turns from reading to writing cannot wait for another writer. So sqlite3 is put into autocommit
    mode, and writers say BEGIN IMMEDIATE.
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

    @event.listens_for(engine, "handle_error")
    def handle_error(context: ExceptionContext) -> None:
        # Connections are opened anew: they remember parts of the file, which may be restored.
        if _is_damaged(context.original_exception):
            context.is_disconnect = True

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        busy_timeout_ms = options.get(_BUSY_TIMEOUT_MS)
        if _ONE_QUERY in options:
            return  # a transaction by itself
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
        if _is_damaged(error.orig):
            raise StorageUnavailable(_DAMAGE) from error
        if isinstance(error, exc.OperationalError) or error.connection_invalidated or _code(error.orig) == _IDLE:
            raise StorageUnavailable from error
        raise
    except TimeoutError as error:
        raise StorageUnavailable from error
    except (UnicodeDecodeError, JSONDecodeError) as error:  # a value that nobody has written
        raise StorageUnavailable(_DAMAGE) from error


def _is_read_only(error: BaseException | None) -> bool:
    code = _code(error)
    return code == _READ_ONLY or (isinstance(code, str) and code.startswith("SQLITE_READONLY"))


def _is_damaged(error: BaseException | None) -> bool:
    code = _code(error)
    return isinstance(code, str) and code.startswith(_DAMAGED)


def _code(error: BaseException | None) -> object:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", None)  # an error of Python's own module has none
    return getattr(error, "sqlstate", None)
