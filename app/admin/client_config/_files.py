"""Changes a user's file: atomically, with a backup, without widening its permissions, and without overwriting what
another program has written in the meantime."""

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from app.admin.client_config._merging import Merged
from app.errors import Conflict, GatewayError, InvalidRequest

MAX_BYTES = 2**20
_OWNER_ONLY = 0o600
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Written:
    """What was done; nothing if there are no changes. `is_closed`: others could read the file before and cannot now."""

    path: Path
    merged: Merged
    backup: Path | None = None
    is_closed: bool = False


def put(path: Path, merge: Callable[[str], Merged], *, is_secret: bool, mode: int = _OWNER_ONLY) -> Written:
    """Changes the file, or creates it with this mode. With `is_secret` only its owner can read it afterwards.

    Raises:
        InvalidRequest: the file cannot be changed.
        Conflict: another program has changed it in the meantime.
        GatewayError: it cannot be written.
    """
    path = path.resolve()  # a symbolic link stays, its target is changed
    try:
        before, text = _read(path)
        try:
            merged = merge(text.removeprefix(_BOM).replace("\r\n", "\n"))
        except InvalidRequest as error:
            raise InvalidRequest(f"cannot change {str(path)!r}: {error}") from None
        if before is not None and not merged.changes:
            return Written(path, merged)
        mode = mode & ~_umask() if before is None else stat.S_IMODE(before.st_mode)
        is_closed = is_secret and before is not None and mode & 0o077 != 0
        mode = mode & _OWNER_ONLY if is_secret else mode
        content = merged.text.replace("\n", "\r\n") if "\r\n" in text else merged.text
        content = _BOM + content if text.startswith(_BOM) else content
        if before is None:
            path.parent.mkdir(mode=0o700 if mode == _OWNER_ONLY else 0o777, parents=True, exist_ok=True)
        backup = _replace(path, content.encode(), mode, before, text)
        return Written(path, merged, backup, is_closed)
    except UnicodeError:
        raise InvalidRequest(f"{str(path)!r} is not UTF-8 text") from None
    except OSError as error:
        raise GatewayError(f"cannot write {str(path)!r}: {error.strerror}") from None


def _read(path: Path) -> tuple[os.stat_result | None, str]:
    """The file's status and text; None if there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # does not wait for a pipe
    except FileNotFoundError:
        return None, ""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidRequest(f"{str(path)!r} is not a regular file")
    with open(descriptor, "rb") as file:
        if status.st_uid != os.geteuid() and os.geteuid() != 0:
            raise InvalidRequest(f"{str(path)!r} belongs to another user: run this as that user")
        if not os.access(path, os.W_OK):
            raise InvalidRequest(f"{str(path)!r} is read-only")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InvalidRequest(f"{str(path)!r} is larger than {MAX_BYTES} bytes")
    return status, content.decode("utf-8")


def _umask() -> int:
    mask = os.umask(0o077)  # the only way to read it
    os.umask(mask)
    return mask


def _replace(path: Path, content: bytes, mode: int, before: os.stat_result | None, text: str) -> Path | None:
    """Replaces the file atomically. Returns the backup of an existing one."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    backup = None
    try:
        _write(aside, content, mode, before)
        if before is None:
            os.link(aside, path)  # unlike a rename, fails if the file exists by now
            return None
        backup = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.bak")
        _write(backup, text.encode(), _OWNER_ONLY, before)
        now = os.stat(path, follow_symlinks=False)
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
            backup.unlink()
            raise Conflict(f"{str(path)!r} was changed by another program in the meantime; try again")
        os.replace(aside, path)
        return backup
    except FileExistsError:
        raise Conflict(f"{str(path)!r} was created by another program in the meantime; try again") from None
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()


def _write(path: Path, content: bytes, mode: int, owner: os.stat_result | None) -> None:
    """Creates the file, or leaves none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _OWNER_ONLY)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None:
                try:
                    os.fchown(descriptor, owner.st_uid if os.geteuid() == 0 else -1, owner.st_gid)
                except PermissionError:  # not a member of that group: our own must not get its access
                    mode &= ~0o070
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
    except BaseException:
        path.unlink()
        raise
