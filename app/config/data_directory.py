"""The directory where a node keeps what it has made: where it is when nobody says where, and the secret key in it."""

import logging
import os
import pwd
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from app.config.environment import wrong
from app.config.parsers import SECRET_KEY_BYTES, path, secret_key

OLD_DATA_DIR = "trunkline-data"  # in the working directory: the default of the first version, kept where it exists

_LOST = (
    "put it back from the backup, or set it. If it is lost, so is what was made with it: put another one there "
    "(`openssl rand -hex 32`) and say so to the database with `trunkline secret-key accept`"
)

log = logging.getLogger(__name__)


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """Where data is kept when nobody says where: a place of the user, so that each command finds what the gateway has
    made. Three cases, in this order: what an earlier version has made in the working directory, XDG_DATA_HOME, home.

    Raises:
        SettingsError: the user has no home, or the directory here is somebody else's.
    """
    old = path(OLD_DATA_DIR)
    if old.is_dir():
        # Whoever makes it decides which commands run: in a shared directory that could be anybody.
        if old.stat().st_uid != os.getuid():
            raise wrong("data_dir", f"{str(old)!r} belongs to another user; if it is meant, name it (--data-dir)")
        return old
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        home = environ.get("HOME") or _home_of_user()
        if not (os.path.isabs(home) and os.path.isdir(home)):
            raise wrong("data_dir", f"must be set: this user has no home directory (it is {home!r})")
        base = os.path.join(home, ".local", "share")
    return Path(base, "trunkline")


def is_in_working_directory(data_dir: Path) -> bool:
    """Whether it is the one that goes before the default."""
    return data_dir == path(OLD_DATA_DIR)


def say_where_data_is(data_dir: Path) -> None:
    """For the log of a node: who runs a command later needs to know."""
    if is_in_working_directory(data_dir):
        log.info("data directory: %s (in the working directory, which goes before the default)", data_dir)
    else:
        log.info("data directory: %s", data_dir)


def _home_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container may run as a number that nobody has a name for
        return ""


def make_directory(directory: Path) -> None:
    """Nobody else may read it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise wrong("data_dir", f"cannot make {str(directory)!r}: {error.strerror}; set another (--data-dir)") from None


def kept_secret_key(data_dir: Path, database_url: str, *, make: bool) -> bytes:
    """The key of this data directory, made at the first start; empty if it is not made yet and must not be."""
    file = data_dir / "secret_key"
    # Looked at first: who starts at the same time makes the key before the database.
    has_database = Path(database_url.removeprefix("sqlite:///")).exists()
    try:
        if not file.exists():
            if not make:
                return b""
            if has_database:
                raise wrong("secret_key", f"there is a database, but its key is not in {str(file)!r}; {_LOST}")
            _write_new(file, secrets.token_hex(SECRET_KEY_BYTES))
        return secret_key(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise wrong("data_dir", f"cannot keep the secret key in {str(file)!r}: {error}") from None


def _write_new(path: Path, text: str) -> None:
    # Written aside and linked, so that of two first starts at once both read the same, whole key.
    descriptor, aside = tempfile.mkstemp(prefix=".secret_key.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        os.link(aside, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(aside)
