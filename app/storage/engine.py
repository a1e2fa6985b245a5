"""The database connection: short transactions, and the differences of SQLite and PostgreSQL.

Everything that only one of the two databases needs is in this file, in health/ and in migrate.py.
"""

import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy import (
    URL,
    CursorResult,
    Engine,
    Row,
    Select,
    create_engine,
    event,
    exc,
    exists,
    select,
)
from sqlalchemy.engine import Connection, ExceptionContext, make_url
from sqlalchemy.pool import ConnectionPoolEntry

from app.errors import StorageReadOnly, StorageUnavailable
from app.storage._connections import AsyncConnection, begun, connected, dispose
from app.storage._database_errors import FULL, UNCERTAIN, is_damaged, is_untold, translated
from app.storage._sqlite_file import SqliteFile
from app.storage._tables import metadata
from app.storage.audit import Act, record

WAIT_S = 5.0  # how long a transaction may wait for others, in this process and elsewhere; it takes milliseconds
ANSWER_S = 10.0  # a server that has not answered by then hangs: its own time-outs are shorter
CONNECTIONS = 8
WRITERS = 4  # the other connections stay free for reads
TRY_S = 0.5  # how long a change of nothing may wait for others

_BUSY_TIMEOUT_MS = "trunkline_busy_timeout_ms"
_ONE_QUERY = "trunkline_one_query"
_TAKEN = "trunkline_taken"  # of a connection
# A query without a table does not look at the file; and a dump that is being restored has not all tables yet, a schema
# of another version not all columns.
_TABLES: list[Any] = [exists(select(*each.c)) for each in metadata.sorted_tables]
_ANSWERS = select(*_TABLES)
_POSTGRESQL = {
    "application_name": "trunkline",
    "connect_timeout": int(WAIT_S),
    "tcp_user_timeout": int(WAIT_S * 1000),
    "prepare_threshold": None,  # prepared statements belong to a connection, which poolers swap
}

_T = TypeVar("_T")
_Committed = Callable[[Sequence[Act]], Awaitable[None]]
_Take = Callable[[CursorResult[Any]], _T]


async def _ignore(acts: Sequence[Act]) -> None:
    """Nobody is to be told."""


class _NoTurn(StorageUnavailable):
    """Other changes take too long: nothing is known of this one."""


class Database:
    """One engine for one database. Use `read()` and `write()`; close it, or its threads keep the process alive."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        self._file = SqliteFile(parsed) if is_sqlite else None
        self._single = _SqliteQueries(parsed, self._file) if self._file is not None else None
        parsed = parsed.set(drivername="sqlite+aiosqlite" if is_sqlite else "postgresql+psycopg_async")
        self._engine = create_engine(
            parsed,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=WAIT_S,
            pool_pre_ping=not is_sqlite,  # replaces connections from before a restart of the server
            hide_parameters=True,
            connect_args={} if is_sqlite else _POSTGRESQL,
        )
        if is_sqlite:
            prepare_sqlite(self._engine, self._file)
        else:
            prepare_postgresql(self._engine)
            event.listen(self._engine, "checkout", self._reconnect_if_due)
        self._must_reconnect = False
        # SQLite has one writer at a time, and waits by polling: we queue instead.
        self._writers = anyio.Semaphore(1 if is_sqlite else WRITERS)
        # SQLite always finishes; a server, or the network, can hang.
        self._answer_within_s = math.inf if is_sqlite else ANSWER_S
        self.refused: StorageUnavailable | None = None  # the last change that failed; DatabaseWatch takes it back
        self._committed: _Committed = _ignore
        # A server can refuse some changes only: for a permission, a lock, or the disk of one table.
        self.trial_tells_all = is_sqlite

    def __repr__(self) -> str:
        url = self._engine.url.set(query={})  # options can hold a password as well
        return f"<Database {url.render_as_string(hide_password=True)}>"

    @property
    def place(self) -> str:
        return place_of(self._engine.url)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads. Raises StorageUnavailable: the database does not answer."""
        async with self._shielded(begun(self._engine)) as connection:
            yield connection

    async def rows(self, query: Select[Any], **values: object) -> Sequence[Row[Any]]:
        """All rows of a query with these values. Raises: as `read`."""
        return await self._found(query, values, lambda result: result.all())

    async def row(self, query: Select[Any], **values: object) -> Row[Any] | None:
        """The one row of a query, or None. Otherwise as `rows`."""
        return await self._found(query, values, lambda result: result.one_or_none())

    async def _found(self, query: Select[Any], values: Mapping[str, object], take: _Take[_T]) -> _T:
        if self._single is not None:
            with translated(self._file):
                return await self._single.found(query, values, take)
        async with self._shielded(connected(self._engine)) as connection:
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
        is_all_written = False
        try:
            async with self._changing(WAIT_S) as connection:
                yield connection
                for act in acts:
                    if act is not None:
                        await record(connection, act)
                if self._file is not None:
                    self._file.require_same()
                is_all_written = True
        except StorageUnavailable as error:
            if is_all_written and is_untold(error.__cause__):
                hint = "It may have been: look at the object, or at the audit trail, before you try again."
                raise StorageUnavailable(UNCERTAIN, hint=hint) from error.__cause__
            raise
        if written := [act for act in acts if act is not None]:
            await self._committed(written)

    def after_commits(self, committed: _Committed) -> None:
        """Has this called after each `write` with acts, before its caller goes on."""
        self._committed = committed

    def forget_refusal(self) -> None:
        """Changes succeed again, as far as is known."""
        self.refused = None

    async def try_change(self) -> bool:
        """Commits a change of nothing; returns whether it did, or others were under way for too long.

        Raises:
            StorageUnavailable: the next change is likely to fail as well.
        """
        if self._file is not None and not self._file.has_room():
            self.refused = StorageUnavailable(FULL)
            raise self.refused
        try:
            async with self._changing(TRY_S) as connection:
                if self._file is not None:
                    number = (await connection.exec_driver_sql("PRAGMA user_version")).scalar_one()
                    await connection.exec_driver_sql(f"PRAGMA user_version = {int(number)}")  # writes a page
                else:
                    await connection.exec_driver_sql("SELECT txid_current()")  # has the commit written down
        except _NoTurn:
            return False
        return True

    @asynccontextmanager
    async def _changing(self, wait_s: float) -> AsyncIterator[AsyncConnection]:
        with anyio.move_on_after(wait_s) as queue:
            await self._writers.acquire()
        if queue.cancelled_caught:
            raise _NoTurn("too many changes at once")
        left_ms = int(max(0.0, queue.deadline - anyio.current_time()) * 1000)
        try:
            engine = self._engine.execution_options(**{_BUSY_TIMEOUT_MS: left_ms})
            async with self._shielded(begun(engine)) as connection:
                yield connection
        except StorageUnavailable as error:
            self.refused = error
            raise
        finally:
            self._writers.release()

    async def ping(self) -> None:
        """Raises StorageUnavailable where the database does not answer."""
        async with self.read() as connection:
            await connection.exec_driver_sql("SELECT 1")

    async def check(self) -> None:
        """Like `ping`; also raises StorageReadOnly where the database accepts no changes. All connections are then made
        anew: an open one goes on leading to a standby whose address is the primary's by now, and keeps what was the
        default when it was made."""
        if self._single is not None:
            await self.row(_ANSWERS)
            return
        async with self.read() as connection:
            await connection.execute(_ANSWERS)
            # "on" on a standby, and where an administrator has made it the default.
            is_read_only = (await connection.exec_driver_sql("SHOW transaction_read_only")).scalar_one() == "on"
        if is_read_only:
            self._must_reconnect = True
            raise StorageReadOnly

    def _reconnect_if_due(self, _: object, entry: ConnectionPoolEntry, __: object) -> None:
        was_taken, entry.info[_TAKEN] = _TAKEN in entry.info, True
        if self._must_reconnect and was_taken:  # SQLAlchemy refuses to replace one that was just made
            self._must_reconnect = False
            raise exc.InvalidatePoolError  # this connection is replaced, the others when they are taken next

    async def aclose(self) -> None:
        """Closes every connection. Idempotent."""
        with anyio.move_on_after(WAIT_S, shield=True):  # a cancelled start would leave its threads behind
            await dispose(self._engine)
        if self._single is not None:
            self._single.close()

    @asynccontextmanager
    async def _shielded(self, opened: AbstractAsyncContextManager[AsyncConnection]) -> AsyncIterator[AsyncConnection]:
        # Shielded: a connection that is abandoned in the middle of a statement could give its answer to the next user.
        # Time-outs bound how long that takes; after our own the connection is thrown away.
        with translated(self._file), anyio.fail_after(self._answer_within_s, shield=True):
            if self._file is not None:
                self._file.require_same()
            async with opened as connection:
                yield connection


class _SqliteQueries:
    """Single queries of SQLite, each in one turn of a thread. With the asynchronous driver it takes five turns of one,
    and three times the CPU time."""

    def __init__(self, url: URL, file: SqliteFile) -> None:
        self._file = file
        self._engine = create_engine(
            url.set(drivername="sqlite"),
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=WAIT_S,
            hide_parameters=True,
        ).execution_options(**{_ONE_QUERY: True})
        prepare_sqlite(self._engine, file)
        self._turns = anyio.CapacityLimiter(CONNECTIONS)

    async def found(self, query: Select[Any], values: Mapping[str, object], take: _Take[_T]) -> _T:
        """Raises TimeoutError: other queries take too long; and as SQLAlchemy does."""
        with anyio.fail_after(WAIT_S, shield=True):
            return await anyio.to_thread.run_sync(self._ask, query, values, take, limiter=self._turns)

    def _ask(self, query: Select[Any], values: Mapping[str, object], take: _Take[_T]) -> _T:
        self._file.require_same()
        with self._engine.connect() as connection:
            return take(connection.execute(query, values))

    def close(self) -> None:
        self._engine.dispose()


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


def prepare_sqlite(engine: Engine, file: SqliteFile | None = None) -> None:
    """Sets WAL, foreign keys and a busy time-out, and begins transactions when SQLAlchemy does. With `file` it opens
    only that one, and makes none.

    Python's sqlite3 begins a transaction only before the first change, so earlier reads would not be part of it; and a
    transaction that turns from reading to writing cannot wait for another writer. So sqlite3 is put into autocommit
    mode, and writers say BEGIN IMMEDIATE.
    """

    if file is not None:
        _open_only(engine, file)

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
        if file is not None:
            file.opened(connection)

    @event.listens_for(engine, "handle_error")
    def handle_error(context: ExceptionContext) -> None:
        # Connections are opened anew: they remember parts of the file, which may be restored.
        if is_damaged(context.original_exception):
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


def _open_only(engine: Engine, file: SqliteFile) -> None:
    @event.listens_for(engine, "do_connect")
    def do_connect(_: object, __: object, args: list[Any], options: dict[str, Any]) -> None:
        file.require_same()
        if (uri := file.uri()) is not None:
            args[:], options["uri"] = [uri], True

    @event.listens_for(engine, "close")
    def close(connection: Any, _: object) -> None:
        file.closed(connection)
