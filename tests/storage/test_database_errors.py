"""What errors of the database libraries become: words that say what is wrong."""

import sqlite3
import threading

import anyio
import psycopg
import pytest
from sqlalchemy import exc

from app.domain import Tenant
from app.errors import Conflict, StorageReadOnly, StorageUnavailable
from app.storage import _database_errors as failures
from app.storage._sqlite_file import GONE
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from app.telemetry.logs import Seldom


class SqliteError(sqlite3.OperationalError):
    """With the name that only the library itself can set."""

    def __init__(self, name: str) -> None:
        super().__init__("words of SQLite")
        self.sqlite_errorname = name


def meaning(error: Exception) -> StorageUnavailable:
    with pytest.raises(StorageUnavailable) as caught, failures.translated():
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SQLITE_FULL", failures.FULL),
        ("SQLITE_IOERR_WRITE", failures.IO_ERROR),
        ("SQLITE_BUSY", failures.LOCKED),
        ("SQLITE_BUSY_SNAPSHOT", failures.LOCKED),
        ("SQLITE_READONLY", failures.READ_ONLY_FILE),
        ("SQLITE_READONLY_DIRECTORY", failures.READ_ONLY_FILE),
        ("SQLITE_READONLY_DBMOVED", GONE),
        ("SQLITE_CORRUPT_INDEX", failures.DAMAGE),
        ("SQLITE_ERROR", failures.LACKS),
        ("SQLITE_PROTOCOL", "The database does not answer"),
    ],
)
def test_an_error_of_sqlite_has_words_of_its_own(name, words):
    found = meaning(exc.OperationalError("COMMIT", {}, SqliteError(name)))
    assert str(found) == words
    assert isinstance(found, StorageReadOnly) == (words == failures.READ_ONLY_FILE)
    assert "http" not in str(found.__cause__)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (exc.ProgrammingError, psycopg.errors.UndefinedTable(), failures.LACKS),
        (exc.ProgrammingError, psycopg.errors.InsufficientPrivilege(), failures.LACKS),
        (exc.OperationalError, psycopg.errors.DiskFull(), failures.FULL),
        (exc.OperationalError, psycopg.errors.QueryCanceled(), failures.LONG),
        (exc.OperationalError, psycopg.errors.LockNotAvailable(), failures.LONG),
        (exc.InternalError, psycopg.errors.DataCorrupted(), failures.DAMAGE),
        (exc.InternalError, psycopg.errors.IdleInTransactionSessionTimeout(), "The database does not answer"),
        (exc.NotSupportedError, psycopg.errors.FeatureNotSupported(), "The database does not answer"),
    ],
)
def test_an_error_of_postgresql_is_no_bug_of_the_gateway(kind, error, words):
    assert str(meaning(kind("SELECT", {}, error))) == words


def test_a_time_out_for_transactions_is_named():
    class TransactionTimeout(psycopg.errors.InternalError_):
        sqlstate = "25P04"  # of PostgreSQL 17

    assert "transaction_timeout" in str(meaning(exc.InternalError("SET", {}, TransactionTimeout())))


@pytest.mark.parametrize(
    "error",
    [
        exc.DataError("SELECT", {}, psycopg.errors.NumericValueOutOfRange()),
        exc.ProgrammingError("SELECT", {}, psycopg.ProgrammingError("cannot adapt type")),
        RuntimeError("something else"),
    ],
)
def test_a_mistake_of_the_program_stays_one(error):
    with pytest.raises(type(error)), failures.translated():
        raise error


def test_a_name_that_is_taken_is_a_conflict():
    with pytest.raises(Conflict), failures.translated():
        raise exc.IntegrityError("INSERT", {}, psycopg.errors.UniqueViolation())


def test_what_is_unusual_is_logged_once_with_its_cause(monkeypatch, caplog):
    monkeypatch.setattr(failures, "_unusual", Seldom())
    for _ in range(5):
        meaning(
            exc.ProgrammingError("SELECT 1", {}, psycopg.errors.UndefinedTable('relation "tenants" does not exist'))
        )
    (line,) = caplog.messages
    assert 'relation "tenants" does not exist' in line
    assert "\n" not in line


async def test_a_thread_that_cannot_be_started_is_unavailable_storage(sqlite_url, monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    database = Database(sqlite_url)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StorageUnavailable, match="limit on processes or threads"):
        await TenantRepository(database).get("default")
    with pytest.raises(StorageUnavailable, match="limit on processes or threads"):
        await TenantRepository(database).create(Tenant("x"))
    monkeypatch.undo()
    with anyio.fail_after(20):
        await TenantRepository(database).create(Tenant("x"))
        await TenantRepository(database).get("default")
    await database.aclose()
