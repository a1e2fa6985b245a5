"""What the errors of the database libraries mean, in words for whoever is on call."""

import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError

from sqlalchemy import exc

from app.errors import Conflict, NotFound, StorageReadOnly, StorageUnavailable
from app.storage._sqlite_file import GONE, SqliteFile
from app.telemetry.logs import Seldom

DAMAGE = "The database is damaged: restore its backup"
FULL = "The disk of the database is full"
LOCKED = "Another program keeps the database locked"
IO_ERROR = "The disk of the database fails (disk I/O error)"
LONG = "The database takes too long: it is overloaded, or another program holds a lock"
LACKS = "The database lacks a table, a column or a permission that this version needs"
NO_THREAD = "The node can start no thread: its limit on processes or threads is reached (pids.max, TasksMax, ulimit -u)"
READ_ONLY_FILE = "The database is read-only: its file, its folder or its file system cannot be written"
UNCERTAIN = "The database did not say whether the change was carried out"

_READ_ONLY = "25006"  # read_only_sql_transaction
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "XX001", "XX002")  # the file, or a part of it
_FOREIGN_KEY = {"SQLITE_CONSTRAINT_FOREIGNKEY", "23503"}
_OF_OUR_TRIGGERS = "P0001"  # raise_exception
_FULL = ("SQLITE_FULL", "53100")
_NEED_ROOM = ("SQLITE_IOERR", "SQLITE_CANTOPEN")  # what a full disk can look like as well
# By how the code begins.
_WORDS = {
    "SQLITE_READONLY_DBMOVED": GONE,
    "SQLITE_IOERR": IO_ERROR,
    "SQLITE_BUSY": LOCKED,
    "SQLITE_LOCKED": LOCKED,
    "SQLITE_CANTOPEN": "The database file cannot be opened",
    "SQLITE_ERROR": LACKS,  # "no such table"
    "42": LACKS,
    "3D000": "The database server has no database of this name",
    "28": "The database server refuses the user or the password",
    "53300": "The database server has no connection left (max_connections, or the limit of this user or database)",
    "55P03": LONG,  # lock_timeout
    "57014": LONG,  # statement_timeout
    "25P04": "The database server ends transactions too early (transaction_timeout)",
}
# Who connects is told no code by the library, but the server's own words: by these, in English.
_SAID = {
    "28": re.compile(
        "password authentication failed|no password supplied|authentication failed for|no pg_hba.conf entry"
        '|role ".*" does not exist|not permitted to log in|permission denied for database'
    ),
    "3D000": re.compile('database ".*" does not exist'),
    "53300": re.compile("too many clients|too many connections|remaining connection slots"),
}
_UNTOLD = ("08", "57P")  # the connection has failed, or the server is going down

_unusual = Seldom()
log = logging.getLogger(__name__)


@contextmanager
def translated(file: SqliteFile | None = None) -> Iterator[None]:
    """Errors of the libraries become ours; those of the program itself stay what they are.

    Raises:
        Conflict: a name is taken.
        NotFound: the object that a row belongs to is gone.
        StorageReadOnly: the database accepts no changes.
        StorageUnavailable: it cannot be used for another reason.
    """
    try:
        yield
    except exc.IntegrityError as error:
        if code_of(error.orig) in _FOREIGN_KEY:
            raise NotFound("Tenant not found") from error
        raise Conflict("an object with this name or id exists already") from error
    except exc.DBAPIError as error:
        if _is_our_mistake(error):
            raise
        _without_address(error)
        raise _meaning(error, file) from error
    except (exc.TimeoutError, TimeoutError) as error:
        if isinstance(error, exc.TimeoutError):
            _without_address(error)
        raise StorageUnavailable from error
    except (UnicodeDecodeError, JSONDecodeError) as error:  # a value that nobody has written
        raise StorageUnavailable(DAMAGE) from error
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        _unusual.error(log, NO_THREAD)
        raise StorageUnavailable(NO_THREAD) from error


def _is_our_mistake(error: exc.DBAPIError) -> bool:
    """With a value, or in the use of the driver; not a database that is not as it should be."""
    code = code_of(error.orig)
    if isinstance(error, exc.DataError) or code == _OF_OUR_TRIGGERS:
        return True
    return isinstance(error, exc.ProgrammingError) and code is None and not error.connection_invalidated


def _meaning(error: exc.DBAPIError, file: SqliteFile | None) -> StorageUnavailable:
    code = code_of(error.orig) or _code_said(error) or ""
    if code.startswith(_FULL) or (code.startswith(_NEED_ROOM) and file is not None and not file.has_room()):
        return StorageUnavailable(FULL)
    words = next((words for start, words in _WORDS.items() if code.startswith(start)), None)
    if code == _READ_ONLY:
        return StorageReadOnly()
    if code.startswith("SQLITE_READONLY") and words is None:
        hint = "Nothing was changed. The gateway's user must be able to write the file and its folder."
        return StorageReadOnly(READ_ONLY_FILE, hint=hint)
    if is_damaged(error.orig):
        return StorageUnavailable(DAMAGE)
    if not isinstance(error, exc.OperationalError | exc.InterfaceError):  # not an outage as others
        _unusual.error(log, f"{words or 'The database refuses what it is asked'}: {in_one_line(error)}")
    return StorageUnavailable(words)


def _code_said(error: exc.DBAPIError) -> str | None:
    """Of an error in connecting."""
    said = str(error.orig)
    return next((code for code, words in _SAID.items() if words.search(said)), None)


def _without_address(error: exc.SQLAlchemyError) -> None:
    """Its text ends with an address of SQLAlchemy's documents otherwise, which helps nobody on call."""
    vars(error).update(code=None)


def is_damaged(error: BaseException | None) -> bool:
    return (code_of(error) or "").startswith(_DAMAGED)


def is_untold(error: BaseException | None) -> bool:
    """Whether a server may have carried out what it was asked when this happened, and only its answer is missing."""
    if isinstance(error, exc.DBAPIError):
        code = code_of(error.orig)
        return code is None or code.startswith(_UNTOLD)
    return isinstance(error, TimeoutError)


def in_one_line(error: BaseException) -> str:
    """For the log: what the database said, without the query."""
    said = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    return f"{type(said).__name__}: {' '.join(str(said).split())}".removesuffix(": ")


def code_of(error: BaseException | None) -> str | None:
    """What the database itself calls it: a name of SQLite, or an SQLSTATE. An error of a driver's own has none."""
    name = "sqlite_errorname" if isinstance(error, sqlite3.Error) else "sqlstate"
    return getattr(error, name, None)
