"""Migrates a database to the schema of this version, or checks that it has it.

Synchronous: call it before the event loop runs, or in a thread.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, exc, make_url, text

import app
from app.errors import SchemaMismatch, SettingsError, StorageUnavailable
from app.storage.engine import prepare_sqlite

_PACKAGE = Path(app.__file__).parent
# Inside the package where that was installed from a wheel, beside it in a checkout and in the image.
MIGRATIONS = next(
    each / "migrations" for each in (_PACKAGE, _PACKAGE.parent) if (each / "migrations" / "env.py").exists()
)
CONNECT_S = 5

_MAGIC = b"SQLite format 3\0"
_ADVISORY_LOCK = 0x7472756E6B6C696E  # "trunklin": any number that nobody else locks


def prepare(url: str, begin: Callable[[str], None] = lambda _: None) -> None:
    """For a node that starts: `upgrade` on SQLite, where it is the only user, else `check`. Raises as those."""
    if make_url(url).get_backend_name() == "sqlite":
        upgrade(url, begin)
    else:
        check(url)


def upgrade(url: str, begin: Callable[[str], None] = lambda _: None) -> None:
    """Applies missing migrations, under a lock: several processes may call it at once. `begin` is told what it does.

    Raises:
        SchemaMismatch: the database was migrated by a newer version.
        StorageUnavailable: the database does not answer.
        SettingsError: the file is something else than a database.
    """
    begin("waiting for the database")
    with _lock(make_url(url)), _connection(url) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _ADVISORY_LOCK})
        if _revision(connection) != _head():
            settings = config(connection)
            settings.attributes["on_version_apply"] = _announcing(_missing(_revision(connection)), begin)
            command.upgrade(settings, "head")


def check(url: str) -> None:
    """Raises SchemaMismatch where the schema is not this version's, or StorageUnavailable."""
    with _connection(url) as connection:
        revision = _revision(connection)
    if revision != _head():
        raise SchemaMismatch(f"the database has schema {revision or 'none'}, this version needs {_head()}")


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration; `migrations/env.py` takes the connection from it."""
    settings = Config()
    settings.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings


def _head() -> str | None:
    return ScriptDirectory(str(MIGRATIONS)).get_current_head()


def _revision(connection: Connection) -> str | None:
    revision = MigrationContext.configure(connection).get_current_revision()
    known = {each.revision for each in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaMismatch(
            f"the database has schema {revision}, which this version does not know",
            hint="Run the newer version of trunkline that made it, or restore a backup.",
        )
    return revision


def _missing(revision: str | None) -> list[str]:
    """What the migrations after this one are about, in order."""
    missing = ScriptDirectory(str(MIGRATIONS)).iterate_revisions("head", revision or "base")
    return [each.doc.rstrip(".") for each in missing][::-1]


def _announcing(subjects: Sequence[str], begin: Callable[[str], None]) -> Callable[..., None]:
    """Tells what the first migration is about, and after each, when Alembic calls it, what the next one is about."""
    steps = (f"migrating {number} of {len(subjects)}: {subject}" for number, subject in enumerate(subjects, 1))

    def migrated(**_: object) -> None:
        begin(next(steps, "saving what was migrated"))

    migrated()
    return migrated


@contextmanager
def _connection(url: str) -> Iterator[Connection]:
    parsed = make_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    engine = create_engine(
        parsed if is_sqlite else parsed.set(drivername="postgresql+psycopg"),
        hide_parameters=True,
        connect_args={} if is_sqlite else {"connect_timeout": CONNECT_S},
    )
    if is_sqlite:
        prepare_sqlite(engine)
    try:
        with engine.begin() as connection:
            yield connection
    except (exc.OperationalError, exc.DatabaseError) as error:
        raise StorageUnavailable(f"the database cannot be used: {' '.join(str(error.orig).split())}") from error
    finally:
        engine.dispose()


@contextmanager
def _lock(url: URL) -> Iterator[None]:
    """On SQLite a lock file; on PostgreSQL the transaction of the migrations takes an advisory lock."""
    if url.get_backend_name() != "sqlite":
        yield
        return
    _refuse_what_is_no_database(Path(str(url.database)))
    lock = _open_private(f"{url.database}.migrating")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The database holds secrets of backends: a new one is readable by its owner only.
        os.close(_open_private(str(url.database)))
        yield
    finally:
        os.close(lock)  # and so unlocks


def _refuse_what_is_no_database(file: Path) -> None:
    """Before anything is made beside it. Raises SettingsError."""
    problem = None
    try:
        if file.is_dir():
            problem = "is a directory; it must be a file"
        elif not file.parent.is_dir():
            problem = "is in no directory that exists"
        elif file.exists():
            with file.open("rb") as opened:
                if opened.read(len(_MAGIC)) not in (_MAGIC, b""):
                    problem = "is not a SQLite database"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    if problem is not None:
        raise SettingsError(f"TRUNKLINE_DATABASE_URL: {str(file)[:100]!r} {problem}")


def _open_private(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageUnavailable(f"cannot write {path!r}: {error.strerror}") from error
