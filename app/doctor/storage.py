"""Where a node keeps what must last: its directories, its secret key and its database."""

import asyncio
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from app.doctor.findings import Check, State
from app.doctor.subject import Subject
from app.errors import GatewayError, SchemaMismatch
from app.storage import Database, migrate
from app.storage.secret_key import SecretKeyCheck

SMALLEST_KEY_BYTES = 32

_RESTORE = "Restore it from a backup: docs/operations.md."
_OTHER_KEY = "Give the gateway the key it had; if it was changed on purpose: trunkline secret-key accept."


def data_dir(path: Path) -> Check:
    """Written by this user, read by nobody else."""
    check = _writable("data directory", path, "TRUNKLINE_DATA_DIR")
    if check.state is State.OK and path.exists() and path.stat().st_mode & 0o077:
        advice = f"It holds keys and backends' secrets: chmod 700 {path}"
        return Check(check.name, State.OPTIONAL, f"{path} can be read by others", advice)
    return check


def homes(path: Path) -> Check:
    """Where the tenants' backends have their homes."""
    return _writable("homes", path, "TRUNKLINE_HOMES_DIR")


def _writable(name: str, path: Path, setting: str) -> Check:
    """Three cases: it is there and can be written, it can be made, neither."""
    existing = next(each for each in (path, *path.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free_mib = shutil.disk_usage(existing).free // 2**20
    except OSError as error:
        advice = f"Give it to the gateway's user, or choose another: {setting}."
        return Check(name, State.MISSING, f"cannot write in {existing}: {error.strerror}", advice)
    if existing != path:
        return Check(name, State.OK, f"{path} will be made at the first start; {free_mib} MiB free")
    return Check(name, State.OK, f"{path}, {free_mib} MiB free")


def secret_key(subject: Subject) -> Check:
    """Whether it is kept, and the one that the database was made with."""
    name, path = "secret key", subject.data_dir / "secret_key"
    if subject.secret_key_is_set:
        found = Check(name, State.OK, "from TRUNKLINE_SECRET_KEY")
    elif not path.exists() and _database_exists(subject.database_url):
        return Check(name, State.MISSING, f"there is a database, but its key is not in {path}", _RESTORE)
    elif not path.exists():
        return Check(name, State.OK, f"will be made in {path} at the first start")
    else:
        found = _kept_key(name, path)
    if found.state is not State.OK or not subject.secret_key or not _database_exists(subject.database_url):
        return found
    try:
        migrate.check(subject.database_url)
        fits = asyncio.run(_fits(subject.database_url, subject.secret_key))
    except GatewayError:  # as the check of the database says
        return found
    if fits is False:
        return Check(name, State.MISSING, f"{found.detail}; the database was made with another one", _OTHER_KEY)
    return replace(found, detail=f"{found.detail}; the database was made with it") if fits else found


def _kept_key(name: str, path: Path) -> Check:
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        return Check(name, State.MISSING, f"{path} cannot be used: {error}", _RESTORE)
    if len(key) < SMALLEST_KEY_BYTES:
        return Check(name, State.MISSING, f"{path} is too short", _RESTORE)
    return Check(name, State.OK, f"kept in {path}; back it up together with the database")


async def _fits(url: str, secret_key: bytes) -> bool | None:
    database = Database(url)
    try:
        return await SecretKeyCheck(database, secret_key).fits()
    finally:
        await database.aclose()


def _database_exists(url: str) -> bool:
    """A server is asked; a file that is not there yet must not be made."""
    return not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).exists()


def database(url: str) -> Check:
    """Whether it answers and has today's schema; it is not made."""
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
