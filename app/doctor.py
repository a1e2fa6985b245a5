"""What works on this machine: one check per thing that a node needs or could use, each well under a second or bounded.

Looks only: makes no directory, no key and no table. Handed plain values; `None` for them means that the settings are
wrong, and what depends on them is left out.
"""

import asyncio
import ctypes
import errno
import http.client
import ipaddress
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from app.errors import GatewayError, SchemaMismatch
from app.spawner.client import Command, SpawnerClient, SpawnFailed
from app.storage import Database, migrate
from app.storage.secret_key import SecretKeyCheck

if TYPE_CHECKING:
    from app.redis.survey import Survey

PROBE_S = 2.0  # for whatever could hang: a child process, a peer that does not answer
SPAWN_S = 10.0
LEAST_FILES = 256  # a node with a few sessions
FILES_PER_PROCESS = 4  # three pipes and the client's connection
LEAST_MEMORY_MIB = 256
SMALLEST_KEY_BYTES = 32
LEAST_REDIS = (6, 2)
MOST_SKEW_S = 5.0  # nodes take 15 s of each other; between them and Redis it should be far less
SLOW_REDIS_S = 0.02  # a command has 250 ms in all

_SYS_LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture
_LANDLOCK_VERSION = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_NAMESPACES = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "mount": 0x00020000, "ipc": 0x08000000}
_UNSHARE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(int(sys.argv[1])) != 0)"
_CONTROLLERS = ("memory", "pids", "cpu", "freezer")
_RESTORE = "Restore it from a backup: docs/operations.md."
_OTHER_KEY = "Give the gateway the key it had; if it was changed on purpose: trunkline secret-key accept."
_libc = ctypes.CDLL(None, use_errno=True)


class State(StrEnum):
    """`MISSING` keeps a node from working; `OPTIONAL` is not here either, and a node works without it."""

    OK = "ok"
    MISSING = "missing"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `advice` says what to do next where something is missing."""

    name: str
    state: State
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the node on this machine would run with."""

    host: str
    port: int
    data_dir: Path
    database_url: str
    secret_key_is_set: bool
    max_processes: int
    redis_url: str | None = None
    node_url: str | None = None
    host_is_wildcard: bool = False
    host_is_loopback: bool = True
    secret_key: bytes = field(default=b"", repr=False)  # empty: there is none yet
    homes: Path | None = None


def examine(subject: Subject | None, settings_problem: str = "") -> list[Check]:
    """Every check, in the order in which a person would repair things."""
    checks = [_python()]
    if subject is None:
        checks.append(Check("settings", State.MISSING, settings_problem, "Correct it: docs/settings.md has the list."))
    else:
        checks += [
            Check("settings", State.OK, f"serves on {subject.host}:{subject.port}"),
            _data_dir(subject.data_dir),
            *([_homes(subject.homes)] if subject.homes else []),
            _secret_key(subject),
            _database(subject.database_url),
            *([_redis(subject.redis_url), _node_url(subject)] if subject.redis_url else []),
            _port(subject.host, subject.port),
            _open_files(subject.max_processes),
            _memory(subject.max_processes),
        ]
    checks += _spawner()
    checks += [_runtime(name) for name in ("node", "npx", "uvx", "git")]
    return [*checks, _landlock(), _seccomp(), _namespaces(), _bubblewrap(), _cgroups()]


def is_well(checks: Sequence[Check]) -> bool:
    """Whether nothing that is needed is missing."""
    return all(check.state is not State.MISSING for check in checks)


def as_json(checks: Sequence[Check]) -> str:
    """For machines."""
    return json.dumps({"ok": is_well(checks), "checks": [asdict(check) for check in checks]}, indent=2)


def as_table(checks: Sequence[Check]) -> str:
    """For people: a line each, what to do next below it, and the sum of it all."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:<9} {check.name:<17} {check.detail}")
        if check.advice and check.state is not State.OK:
            lines.append(f"{'':<28}{check.advice}")
    missing = [check.name for check in checks if check.state is State.MISSING]
    closing = f"missing: {', '.join(missing)}" if missing else "everything that is needed is here"
    return "\n".join([*lines, "", closing])


# --- what a node needs


def _python() -> Check:
    return Check("python", State.OK, f"{platform.python_version()}, {platform.machine()}, Linux {platform.release()}")


def _data_dir(path: Path) -> Check:
    check = _writable("data directory", path, "TRUNKLINE_DATA_DIR")
    if check.state is State.OK and path.exists() and path.stat().st_mode & 0o077:
        advice = f"It holds keys and backends' secrets: chmod 700 {path}"
        return Check(check.name, State.OPTIONAL, f"{path} can be read by others", advice)
    return check


def _homes(path: Path) -> Check:
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


def _secret_key(subject: Subject) -> Check:
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


def _database(url: str) -> Check:
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


def _redis(url: str) -> Check:
    # Here, because redis-py takes a quarter of a second to import, and every command imports this module.
    from app.redis.survey import survey  # noqa: PLC0415

    try:
        return _judge(asyncio.run(survey(url)))
    except (GatewayError, ValueError) as error:
        return Check("redis", State.MISSING, str(error), "Check TRUNKLINE_REDIS_URL, and that Redis runs.")


def _judge(found: "Survey") -> Check:
    """The worst that is to be said: too old, forgets routes, another time, far away; or nothing."""
    name, version = "redis", ".".join(map(str, found.version))
    detail = f"version {version}, answers in {found.latency_s * 1000:.1f} ms"
    if found.version < LEAST_REDIS:
        advice = f"Use {'.'.join(map(str, LEAST_REDIS))} or later."
        return Check(name, State.MISSING, f"version {version} lacks commands that are needed", advice)
    if found.policy not in (None, "noeviction"):
        advice = "Set it to noeviction: what is evicted is a session that other nodes cannot find."
        return Check(name, State.OPTIONAL, f"{detail}; maxmemory-policy is {found.policy}", advice)
    if abs(found.ahead_s) > MOST_SKEW_S:
        advice = "Set the clocks of all machines by NTP: nodes refuse each other's requests when they differ."
        return Check(name, State.OPTIONAL, f"{detail}; its clock differs by {found.ahead_s:+.1f} s", advice)
    if found.latency_s > SLOW_REDIS_S:
        advice = "It should be in the same data centre: a session that is opened waits for it."
        return Check(name, State.OPTIONAL, detail, advice)
    return Check(name, State.OK, detail)


def _node_url(subject: Subject) -> Check:
    """Two ways in which other nodes would not find this one, and whether it answers if it runs."""
    name, url = "node address", subject.node_url
    if url is None and subject.host_is_wildcard:
        advice = "Set TRUNKLINE_NODE_URL to how other nodes reach this one, like http://10.0.0.5:8080."
        return Check(name, State.MISSING, f"TRUNKLINE_HOST is {subject.host}, which names no place", advice)
    if url is None:
        place = "this machine alone" if subject.host_is_loopback else "other machines"
        return Check(name, State.OK, f"made of HOST and PORT: reached from {place}")
    parts = urlsplit(url)
    try:
        places = socket.getaddrinfo(parts.hostname, parts.port or parts.scheme, type=socket.SOCK_STREAM)
    except OSError as error:
        return Check(name, State.MISSING, f"{parts.hostname}: {error.strerror}", "Check TRUNKLINE_NODE_URL.")
    if subject.host_is_loopback and parts.scheme == "http" and not _is_here(str(places[0][4][0])):
        advice = "Listen where others can connect: TRUNKLINE_HOST."
        return Check(name, State.MISSING, f"{url}, but the node listens on {subject.host} alone", advice)
    return Check(name, State.OK, url)


def _is_here(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _port(host: str, port: int) -> Check:
    name, family = "port", socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _gateway_answers(host, port):
            return Check(name, State.OK, f"a gateway answers on {host}:{port}")
        advice = "Stop what listens there, or choose another: TRUNKLINE_PORT."
        return Check(name, State.MISSING, f"cannot listen on {host}:{port}: {error.strerror}", advice)
    return Check(name, State.OK, f"{port} is free" if port else "any free one")


def _gateway_answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_S)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().read(200).find(b'"alive"') >= 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _open_files(max_processes: int) -> Check:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LEAST_FILES + FILES_PER_PROCESS * max_processes
    detail = f"{limit} open files; {max_processes} processes (MAX_PROCESSES) want {wanted}"
    if limit in (resource.RLIM_INFINITY, -1) or limit >= wanted:
        return Check("open files", State.OK, detail)
    state = State.OPTIONAL if limit >= LEAST_FILES else State.MISSING
    return Check("open files", state, detail, "Raise it (LimitNOFILE=, ulimit -n), or lower TRUNKLINE_MAX_PROCESSES.")


def _memory(max_processes: int) -> Check:
    available = psutil.virtual_memory().available // 2**20
    detail = f"{available} MiB available; up to {max_processes} backend processes (MAX_PROCESSES)"
    if available >= LEAST_MEMORY_MIB:
        return Check("memory", State.OK, detail)
    return Check("memory", State.OPTIONAL, detail, f"A node wants {LEAST_MEMORY_MIB} MiB and what its backends use.")


def _spawner() -> list[Check]:
    """Starts one process as every backend is started, and reads what became of its privileges."""
    try:
        status = asyncio.run(asyncio.wait_for(_status_of_a_child(), SPAWN_S))
    except (SpawnFailed, OSError, TimeoutError) as error:
        advice = "Is there a limit on processes (ulimit -u, pids.max)?"
        return [Check("spawner", State.MISSING, f"cannot start a process: {error}", advice)]
    value = re.search(r"^NoNewPrivs:\s*(\d)", status, re.MULTILINE)
    checks = [Check("spawner", State.OK, "can start a process")]
    if value is None or value[1] != "1":
        return [*checks, Check("no_new_privs", State.MISSING, "is not set in a child", "Linux 3.5 or later has it.")]
    return [*checks, Check("no_new_privs", State.OK, "backends cannot gain privileges")]


async def _status_of_a_child() -> str:
    spawner, ended = SpawnerClient(), asyncio.Event()
    code = "print(open('/proc/self/status').read())"
    command = Command([sys.executable, "-I", "-S", "-c", code], {"PATH": os.defpath, "LANG": "C.UTF-8"})
    ours, theirs = os.pipe()
    try:
        stdio = [os.open(os.devnull, os.O_RDWR), theirs, os.open(os.devnull, os.O_RDWR)]
        await spawner.spawn(command, stdio, lambda _: ended.set())
        await ended.wait()
        return os.read(ours, 65536).decode()  # a pipe holds as much, and nobody writes any more
    finally:
        os.close(ours)
        await spawner.aclose()


# --- what some backends need


def _runtime(name: str) -> Check:
    path = shutil.which(name)
    if path:
        return Check(name, State.OK, path)
    return Check(name, State.OPTIONAL, "is not on PATH", f"Only backends whose command is, or uses, {name} need it.")


# --- what the sandbox can be built of


def _landlock() -> Check:
    abi = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION))
    if abi > 0:
        return Check("landlock", State.OK, f"ABI {abi}")
    return _no_layer("landlock", os.strerror(ctypes.get_errno()))


def _seccomp() -> Check:
    # A filter at address 0: EFAULT from a kernel that has filters, EINVAL from one that has not. Nothing is set.
    _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), None, 0, 0)
    number = ctypes.get_errno()
    if number in (errno.EFAULT, errno.EACCES):
        return Check("seccomp", State.OK, "filters")
    return _no_layer("seccomp", os.strerror(number))


def _namespaces() -> Check:
    def can(flag: int) -> bool:
        probe = [sys.executable, "-I", "-S", "-c", _UNSHARE, str(_NAMESPACES["user"] | flag)]
        return _succeeds(probe)

    if not can(0):
        return _no_layer("user namespaces", "not for this user (sysctl, AppArmor or the container's seccomp profile)")
    found = [name for name, flag in _NAMESPACES.items() if name == "user" or can(flag)]
    return Check("user namespaces", State.OK, ", ".join(found))


def _bubblewrap() -> Check:
    path = shutil.which("bwrap")
    if path is None:
        return _no_layer("bubblewrap", "bwrap is not on PATH (Debian: apt-get install bubblewrap)")
    if _succeeds([path, "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc", "/bin/true"]):
        return Check("bubblewrap", State.OK, path)
    return _no_layer("bubblewrap", f"{path} cannot make a sandbox here")


def _cgroups(mounts: Path = Path("/proc/self/mountinfo")) -> Check:
    """Which limits could be set: a controller counts where its directory can be written."""
    found = []
    for line in mounts.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        root = Path(fields.split()[4])
        if kind == "cgroup2":
            has = (root / "cgroup.controllers").read_text().split() if (root / "cgroup.controllers").exists() else []
            found.append(_controllers("v2", root, has))
        elif kind == "cgroup":
            has = [each for each in _CONTROLLERS if each in options.split()[-1].split(",")]
            found += [_controllers("v1", root, has)] if has else []
    if not found:
        return _no_layer("cgroups", "none are mounted")
    if not any("writable" in each for each in found):
        return _no_layer("cgroups", "; ".join(found))
    return Check("cgroups", State.OK, "; ".join(found))


def _controllers(version: str, root: Path, names: Sequence[str]) -> str:
    access = "writable" if os.access(root, os.W_OK) else "read-only"
    return f"{version} {' '.join(names) or 'without controllers'} {access}"


def _no_layer(name: str, detail: str) -> Check:
    return Check(name, State.OPTIONAL, detail, "For the sandbox of a later version; nothing needs it now.")


def _succeeds(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
