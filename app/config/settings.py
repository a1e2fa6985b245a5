"""The node's settings: environment variables `TRUNKLINE_<NAME>`, secrets also as `TRUNKLINE_<NAME>_FILE`.

The only reader of the environment. Everything below `gateway.py` is handed plain values, never this object.
An empty variable counts as not set.
"""

import binascii
import difflib
import ipaddress
import logging
import math
import os
import pwd
import re
import secrets
import tempfile
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from app.config import urls
from app.errors import SettingsError

log = logging.getLogger(__name__)

PREFIX = "TRUNKLINE_"
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
ACCESS_LOGS = ("off", "errors", "all")
SECRET_KEY_BYTES = 32
MIB_PER_PROCESS = 100  # a small Python or node server with its imports done
OLD_DATA_DIR = "trunkline-data"  # in the working directory: the default of the first version, kept where it exists
COMMAND_LINE = ("URL", "KEY", "KEY_FILE")  # variables of commands that speak to a gateway; a node reads none of them
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_T = TypeVar("_T")

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?", re.IGNORECASE)
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://" + urls.AUTHORITY.pattern)


# --- parsers: text in, value out; a ValueError says what is wrong and what is allowed


def _host(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if _HOST_NAME.fullmatch(text):
            return text
    raise ValueError(f"{text!r} is not an IP address or a host name")


def _node_name(text: str) -> str:
    if not _NODE_NAME.fullmatch(text):
        raise ValueError(
            f"{text[:80]!r} is no name for a node: allowed are up to 63 of a-z, 0-9 and -, the last not at either end"
        )
    return text


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError(f"{text[:40]!r} is not a whole number; allowed are {least} to {most}")
        if not least <= int(text) <= most:
            raise ValueError(f"{text} is out of range; allowed are {least} to {most}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    value = _number(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{text[:40]!r} is not a number of seconds; allowed are positive, finite numbers")
    return value


def _delay(text: str) -> float:
    value = _number(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{text[:40]!r} is not a number of seconds; allowed are 0 and positive, finite numbers")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _data_dir(text: str) -> Path:
    if "\0" in text:
        raise ValueError("a path has no NUL character")
    return Path(text).expanduser().absolute()


def _list_of(pattern: re.Pattern[str], example: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item.strip().lower() for item in text.split(",") if item.strip())
        for item in items:
            if not pattern.fullmatch(item):
                raise ValueError(f"{item[:200]!r} is not of the form {example}; wildcards are not allowed")
        return items

    return parse


def _networks(text: str) -> tuple[IpNetwork, ...]:
    networks = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(item))
        except ValueError as error:
            raise ValueError(f"{error}; allowed are addresses and networks like 10.0.0.0/8") from None
    return tuple(networks)


def is_postgresql(database_url: str) -> bool:
    """Whether the database is a server that several nodes can share."""
    return database_url.startswith("postgresql:")


def _secret_key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text) if re.fullmatch(r"[0-9a-fA-F]+", text) else _from_base64(text)
    except (ValueError, binascii.Error):
        raise ValueError("it is neither hex nor base64") from None
    if len(key) < SECRET_KEY_BYTES:
        raise ValueError(
            f"it has {len(key)} bytes; needed are {SECRET_KEY_BYTES} random bytes or more, in hex or base64 "
            "(`openssl rand -hex 32` makes them)"
        )
    return key


def _from_base64(text: str) -> bytes:
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    return b64decode(standard + "=" * (-len(standard) % 4), validate=True)


def _access_log(text: str) -> str:
    if text.lower() not in ACCESS_LOGS:
        raise ValueError(f"{text[:40]!r} is none of {', '.join(ACCESS_LOGS)}")
    return text.lower()


def _log_level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(f"{text[:40]!r} is not a level; allowed are {', '.join(LOG_LEVELS)}")
    return text.lower()


# --- the settings


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """Where data is kept when nobody says where: a place of the user, so that each command finds what the gateway has
    made. Three cases, in this order: what an earlier version has made in the working directory, XDG_DATA_HOME, home.

    Raises:
        SettingsError: the user has no home, or the directory here is somebody else's.
    """
    old = _data_dir(OLD_DATA_DIR)
    if old.is_dir():
        # Whoever makes it decides which commands run: in a shared directory that could be anybody.
        if old.stat().st_uid != os.getuid():
            raise _wrong("data_dir", f"{str(old)!r} belongs to another user; if it is meant, name it (--data-dir)")
        return old
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        home = environ.get("HOME") or _home_of_user()
        if not (os.path.isabs(home) and os.path.isdir(home)):
            raise _wrong("data_dir", f"must be set: this user has no home directory (it is {home!r})")
        base = os.path.join(home, ".local", "share")
    return Path(base, "trunkline")


def is_in_working_directory(data_dir: Path) -> bool:
    """Whether it is the one that goes before the default."""
    return data_dir == _data_dir(OLD_DATA_DIR)


def say_where_data_is(settings: "Settings") -> None:
    """For the log of a node: who runs a command later needs to know."""
    if is_in_working_directory(settings.data_dir):
        log.info("data directory: %s (in the working directory, which goes before the default)", settings.data_dir)
    else:
        log.info("data directory: %s", settings.data_dir)


def _home_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container may run as a number that nobody has a name for
        return ""


def _setting(parse: Callable[[str], _T], *, default: Any = None, secret: bool = False) -> Any:
    """`default` is a value, or a function of the settings read so far."""
    return field(repr=not secret, metadata={"parse": parse, "secret": secret, "default": default})


def _default_database(values: Mapping[str, Any]) -> str:
    return f"sqlite:///{values['data_dir'] / 'trunkline.db'}"


def _default_max_processes(_: Mapping[str, Any]) -> int:
    return max(8, _memory_bytes() // 2**20 // MIB_PER_PROCESS)


def _memory_bytes() -> int:
    """What this machine or container has."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    return min(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One node's configuration, checked. Made by `from_env`."""

    host: str = _setting(_host, default="127.0.0.1")
    port: int = _setting(_whole(0, 65535), default=8080)
    data_dir: Path = _setting(_data_dir)
    homes_dir: Path | None = _setting(_data_dir)
    public_url: str | None = _setting(urls.public_url)
    allowed_hosts: tuple[str, ...] = _setting(_list_of(urls.AUTHORITY, "HOST or HOST:PORT"), default=())
    allowed_origins: tuple[str, ...] = _setting(_list_of(_ORIGIN, "https://HOST"), default=())
    trusted_proxies: tuple[IpNetwork, ...] = _setting(_networks, default=())
    outbound_allow: tuple[IpNetwork, ...] = _setting(_networks, default=())
    database_url: str = _setting(urls.database_url, default=_default_database, secret=True)
    redis_url: str | None = _setting(urls.redis_url, secret=True)
    node_url: str | None = _setting(urls.node_url)
    node_name: str | None = _setting(_node_name)
    secret_key: bytes = _setting(_secret_key, secret=True)
    log_level: str = _setting(_log_level, default="info")
    access_log: str = _setting(_access_log, default="errors")
    drain_s: float = _setting(_seconds, default=30.0)
    drain_delay_s: float = _setting(_delay, default=0.0)
    max_processes: int = _setting(_whole(1, 1_000_000), default=_default_max_processes)
    pool_wait_s: float = _setting(_seconds, default=30.0)
    max_connections: int = _setting(_whole(1, 1_000_000), default=10_000)
    max_connections_per_address: int = _setting(_whole(1, 1_000_000), default=256)
    shed_lag_s: float = _setting(_seconds, default=1.0)
    shed_sessions_percent: int = _setting(_whole(1, 100), default=85)
    shed_calls_percent: int = _setting(_whole(1, 100), default=95)
    max_sessions: int = _setting(_whole(1, 10_000_000), default=10_000)
    max_body_bytes: int = _setting(_whole(1024, 2**30), default=4 * 2**20)
    max_line_bytes: int = _setting(_whole(1024, 2**30), default=16 * 2**20)
    keepalive_s: float = _setting(_seconds, default=15.0)
    stream_after_s: float = _setting(_seconds, default=15.0)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, make: bool = True, **overrides: object) -> "Settings":
        """Reads and checks everything; makes the data directory and, where none is set, the secret key in it.

        `overrides` are settings by field name, from the command line or a test; None is no override. Without `make`
        nothing is made, and `secret_key` is empty where none is set or kept yet.

        Raises:
            SettingsError: one line that names the variable and says what is allowed.
        """
        _refuse_unknown(environ)
        values: dict[str, Any] = {}
        for each in fields(cls):
            text = _text_of(overrides.get(each.name)) or _read(environ, each.name, secret=each.metadata["secret"])
            if text:
                values[each.name] = _parsed(each.name, each.metadata["parse"], text)
            elif each.name == "data_dir":
                values[each.name] = default_data_dir(environ)
            elif each.name == "secret_key":
                _refuse_public_without_key(values["host"])
                _refuse_shared_without_key(values["database_url"], values["redis_url"])
                values[each.name] = _kept_secret_key(values["data_dir"], values["database_url"], make=make)
            else:
                default = each.metadata["default"]
                values[each.name] = default(values) if callable(default) else default
            if make and each.name == "data_dir":
                _make_directory(values["data_dir"])
        if values["homes_dir"] in (values["data_dir"], *values["data_dir"].parents):
            raise _wrong("homes_dir", "must not be DATA_DIR or around it: what is in there is not for backends")
        return cls(**values)

    @property
    def homes(self) -> Path:
        """Where the homes of the tenants' backends are."""
        return self.homes_dir or self.data_dir / "homes"


def is_wildcard(host: str) -> bool:
    """Whether it stands for every address of this machine, and so names none that others could connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_LOST = (
    "put it back from the backup, or set it. If it is lost, so is what was made with it: put another one there "
    "(`openssl rand -hex 32`) and say so to the database with `trunkline secret-key accept`"
)
NAMES = tuple(each.name.upper() for each in fields(Settings))
_SECRETS = frozenset(each.name.upper() for each in fields(Settings) if each.metadata["secret"])


def _wrong(name: str, problem: str) -> SettingsError:
    return SettingsError(f"{PREFIX}{name.upper()}: {problem}")


def _text_of(override: object) -> str:
    if override is None:
        return ""
    if isinstance(override, bytes):
        return override.hex()
    return ",".join(map(str, override)) if isinstance(override, tuple | list) else str(override)


def _parsed(name: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise _wrong(name, str(error)) from None


def _read(environ: Mapping[str, str], name: str, *, secret: bool) -> str:
    variable = PREFIX + name.upper()
    text, path = environ.get(variable, "").strip(), environ.get(variable + "_FILE", "") if secret else ""
    if text and path:
        raise _wrong(name, f"set either it or {variable}_FILE, not both")
    if not path:
        return text
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "it is not text"
        raise _wrong(name + "_file", f"cannot read {_shown_path(path)}: {problem}") from None
    if not text:
        raise _wrong(name + "_file", f"{path!r} is empty")
    return text


def _shown_path(path: str) -> str:
    """A path, unless it could be the secret itself, set in the wrong variable."""
    return repr(path) if path.startswith(("/", ".", "~")) else "the file that it names"


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    """A misspelt setting must not be silently without effect. `…_BIN` and `TEST…` belong to scripts and tests."""
    known = {*NAMES, *(name + "_FILE" for name in _SECRETS)}
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or name in known or name in COMMAND_LINE:
            continue
        if variable.endswith("_BIN") or name.startswith("TEST"):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        suggestion = f"did you mean {PREFIX}{near[0]}?" if near else f"allowed are {', '.join(sorted(known))}"
        raise _wrong(ascii(name)[1:-1], f"there is no such setting; {suggestion}")


def _refuse_public_without_key(host: str) -> None:
    if not is_loopback(host):
        raise _wrong(
            "secret_key",
            f"must be set where TRUNKLINE_HOST is not a loopback address (it is {host}): "
            f"{SECRET_KEY_BYTES} random bytes or more, in hex or base64 (`openssl rand -hex 32` makes them)",
        )


def _refuse_shared_without_key(database_url: str, redis_url: str | None) -> None:
    if is_postgresql(database_url) or redis_url:
        shared = "TRUNKLINE_REDIS_URL is set" if redis_url else "TRUNKLINE_DATABASE_URL is a PostgreSQL server"
        raise _wrong(
            "secret_key",
            f"must be set where {shared}, and be the same on each node: "
            f"{SECRET_KEY_BYTES} random bytes or more, in hex or base64 (`openssl rand -hex 32` makes them)",
        )


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _wrong("data_dir", f"cannot make {str(path)!r}: {error.strerror}; set another (--data-dir)") from None


def _kept_secret_key(data_dir: Path, database_url: str, *, make: bool) -> bytes:
    """The key of this data directory, made at the first start; empty if it is not made yet and must not be."""
    path = data_dir / "secret_key"
    # Looked at first: who starts at the same time makes the key before the database.
    has_database = Path(database_url.removeprefix("sqlite:///")).exists()
    try:
        if not path.exists():
            if not make:
                return b""
            if has_database:
                raise _wrong("secret_key", f"there is a database, but its key is not in {str(path)!r}; {_LOST}")
            _write_new(path, secrets.token_hex(SECRET_KEY_BYTES))
        return _secret_key(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise _wrong("data_dir", f"cannot keep the secret key in {str(path)!r}: {error}") from None


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
