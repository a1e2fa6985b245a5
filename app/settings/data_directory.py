"""The data directory: its default, and the secret key in it."""

import logging
import os
import pwd
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from app.settings._parsers import SECRET_KEY_BYTES, path, secret_key
from app.settings.environment import wrong
from app.settings.hosts import SHOWN

OLD_DATA_DIR = "trunkline-data"  # in the working directory: the default of the first version, kept where it exists

_LOST = (
    "restore it from the backup, or set it. If it is lost, so is everything made with it: put a new one there "
    "(`openssl rand -hex 32`) and run `trunkline secret-key accept`"
)

log = logging.getLogger(__name__)


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """The default: OLD_DATA_DIR if it exists, else below XDG_DATA_HOME or the user's home, so that each command finds
    what the gateway has made.

    Raises:
        SettingsError: the user has no home, or OLD_DATA_DIR belongs to another user.
    """
    old = _old_data_dir()
    if old is not None and old.is_dir():
        # Its owner decides which commands run; in a shared directory that could be anybody.
        if old.stat().st_uid != os.getuid():
            raise wrong("data_dir", f"{str(old)!r} belongs to another user; if you mean it, name it (--data-dir)")
        return old
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        home = environ.get("HOME") or _home_of_user()
        if not (os.path.isabs(home) and os.path.isdir(home)):
            raise wrong("data_dir", f"must be set: this user has no home directory (it is {home!r})")
        base = os.path.join(home, ".local", "share")
    return Path(base, "trunkline")


def is_in_working_directory(data_dir: Path) -> bool:
    """Whether it is OLD_DATA_DIR, which takes precedence over the default."""
    return data_dir == _old_data_dir()


def _old_data_dir() -> Path | None:
    """None: the working directory was removed."""
    try:
        return path(OLD_DATA_DIR)
    except ValueError:
        return None


def say_where_data_is(data_dir: Path) -> None:
    note = " (in the working directory, which takes precedence over the default)"
    log.info("data directory: %s%s", data_dir, note if is_in_working_directory(data_dir) else "")


def _home_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # containers may run under an id without a name
        return ""


def make_directory(directory: Path) -> None:
    """Only its owner may read it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        shown = repr(str(directory)[:SHOWN])
        raise wrong("data_dir", f"cannot make {shown}: {error.strerror}; set another (--data-dir)") from None


def kept_secret_key(data_dir: Path, database_url: str, *, make: bool) -> bytes:
    """The key of this data directory, created at the first start; empty if there is none yet and `make` is False."""
    file = data_dir / "secret_key"
    # Before the key: a node that starts at the same time creates its key before its database.
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
    # Written to another file and linked: if two nodes start at once, both read the same, complete key.
    descriptor, aside = tempfile.mkstemp(prefix=".secret_key.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        os.link(aside, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(aside)
