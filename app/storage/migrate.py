"""Migrates a database to the schema of this version, or checks that it has it.

Synchronous: call it before the event loop runs, or in a thread.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, exc, inspect, make_url, text

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
        if (revision := _revision(connection)) != _revisions()[-1]:
            from app.storage._alembic import apply  # noqa: PLC0415 - only who migrates needs Alembic

            apply(MIGRATIONS, connection, revision, begin)


def check(url: str) -> None:
    """Raises SchemaMismatch where the schema is not this version's, or StorageUnavailable."""
    with _connection(url) as connection:
        revision = _revision(connection)
    if revision != (head := _revisions()[-1]):
        raise SchemaMismatch(f"the database has schema {revision or 'none'}, this version needs {head}")


def _revisions() -> list[str]:
    """All that this version knows, in order: each file's name begins with its own."""
    return sorted(each.name.partition("_")[0] for each in (MIGRATIONS / "versions").glob("*.py"))


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if revision is not None and revision not in _revisions():
        raise SchemaMismatch(
            f"the database has schema {revision}, which this version does not know",
            hint="Run the newer version of trunkline that made it, or restore a backup.",
        )
    return revision


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
