"""Checks of what must last: the directories, the secret key and the database."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from app.cli.doctor.findings import Check, State
from app.errors import GatewayError, SchemaMismatch
from app.settings.environment import PREFIX
from app.settings.settings import Settings
from app.storage import migrate
from app.storage.engine import Database
from app.storage.secret_key import SecretKeyCheck

LITTLE_MIB = 64  # of an SQLite database, its log of changes alone may grow to some MiB
_FREE_SPACE = "Free space there, or give the disk more: with none left every change is refused."
_RESTORE = "Restore it from a backup: docs/operations.md."
_OTHER_KEY = "Set the key it had before; if it was changed on purpose: trunkline secret-key accept."


def data_dir(path: Path) -> Check:
    """Whether this user can write it, and nobody else can read it."""
    check = _writable("data directory", path, "TRUNKLINE_DATA_DIR")
    if check.state is State.OK and (free_mib := _free_mib(_existing(path))) < LITTLE_MIB:
        state = State.OPTIONAL if free_mib else State.MISSING
        return Check(check.name, state, f"{path}, only {free_mib} MiB free", _FREE_SPACE)
    if check.state is State.OK and path.exists() and path.stat().st_mode & 0o077:
        advice = f"It holds keys and backends' secrets: chmod 700 {path}"
        return Check(check.name, State.OPTIONAL, f"{path} can be read by others", advice)
    return check


def homes(path: Path) -> Check:
    return _writable("homes", path, "TRUNKLINE_HOMES_DIR")


def _writable(name: str, path: Path, setting: str) -> Check:
    existing = _existing(path)
    try:
        with tempfile.TemporaryFile(dir=existing):
            free_mib = _free_mib(existing)
    except OSError as error:
        advice = f"Let the gateway's user write there, or choose another: {setting}."
        return Check(name, State.MISSING, f"cannot write in {existing}: {error.strerror}", advice)
    if existing != path:
        return Check(name, State.OK, f"{path} will be made at the first start; {free_mib} MiB free")
    return Check(name, State.OK, f"{path}, {free_mib} MiB free")


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _free_mib(path: Path) -> int:
    return shutil.disk_usage(path).free // 2**20


def secret_key(settings: Settings) -> Check:
    """Where it comes from, and whether the database was made with it."""
    name, path = "secret key", settings.data_dir / "secret_key"
    has_database = _database_exists(settings.database_url)
    if not settings.secret_key:
        if has_database:
            return Check(name, State.MISSING, f"there is a database, but its key is not in {path}", _RESTORE)
        return Check(name, State.OK, f"will be made in {path} at the first start")
    if any(os.environ.get(PREFIX + each) for each in ("SECRET_KEY", "SECRET_KEY_FILE")):
        detail = "from TRUNKLINE_SECRET_KEY"
    else:
        detail = f"kept in {path}; back it up together with the database"
    if not has_database:
        return Check(name, State.OK, detail)
    try:
        migrate.check(settings.database_url)
        fits = asyncio.run(_fits(settings.database_url, settings.secret_key))
    except GatewayError:  # the check of the database reports it
        fits = None
    if fits is False:
        return Check(name, State.MISSING, f"{detail}; the database was made with another one", _OTHER_KEY)
    return Check(name, State.OK, f"{detail}; the database was made with it" if fits else detail)


async def _fits(url: str, secret_key: bytes) -> bool | None:
    database = Database(url)
    try:
        return await SecretKeyCheck(database, secret_key).fits()
    finally:
        await database.aclose()


def _database_exists(url: str) -> bool:
    """A database server is assumed to exist; opening an SQLite file would create it."""
    return not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).exists()


def database(url: str) -> Check:
    """Whether it answers and its schema is up to date; does not create it."""
    name = "database"
    file = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
    if file is not None and not file.exists():
        return Check(name, State.OK, f"{file} will be made at the first start")
    try:
        migrate.check(url)
    except SchemaMismatch as error:
        return Check(name, State.MISSING, str(error), error.hint or "")
    except GatewayError as error:
        return Check(name, State.MISSING, str(error), "Check TRUNKLINE_DATABASE_URL, and that the database runs.")
    return Check(name, State.OK, f"{file or 'PostgreSQL'}, schema up to date")
