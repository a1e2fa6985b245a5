"""What a process in a sandbox asked for and could not get, although this machine has it."""

import contextlib
import ctypes
import os
import stat
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal, NamedTuple

from app.jail.spawner._paths_inside import MOST_KNOWN, READ, SEARCH, WRITE, Users, open_inside
from app.jail.spawner.wire import Confinement, Missed

Access = Literal["read", "write"]

_TEXT_BYTES = 4096  # PATH_MAX
_SCRIPT_BYTES = 128
_ADDRESS_BYTES = 128
_HERE = -100  # AT_FDCWD
_UNIX, _INET, _INET6 = 1, 2, 10
_DNS = 53
_LISTENS = ("0A", "07")  # states of sockets in /proc/PID/net/tcp, and /udp
_CREATES = os.O_CREAT | os.O_TRUNC
# Every sandbox has its own, or programs do well without them.
_NOT_MISSED = (
    "/proc", "/dev", "/sys", "/run/nscd", "/var/run/nscd",
    "/etc/ld.so.preload", "/etc/locale.alias", "/etc/localtime", "/etc/timezone", "/etc/gitconfig", "/etc/inputrc",
    "/etc/terminfo",
)  # fmt: skip
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - which only a sandbox with namespaces has of its own
_CUSTOMIZING = ("sitecustomize.py", "usercustomize.py")

_BITS = {"open": READ, "look": 0, "write": WRITE, "execute": SEARCH, "connect": WRITE}


class Call(NamedTuple):
    """A system call that names a file or an address. `numbers`: on x86_64 and aarch64. The rest are indices of its
    arguments; `at` is the directory's descriptor."""

    name: str
    numbers: tuple[int | None, int | None]
    does: Literal["open", "look", "write", "execute", "connect"]
    path: int
    at: int | None = None
    flags: int | None = None


CALLS: tuple[Call, ...] = (
    Call("open", (2, None), "open", 0, flags=1),
    Call("openat", (257, 56), "open", 1, 0, 2),
    Call("openat2", (437, 437), "open", 1, 0),
    Call("creat", (85, None), "write", 0),
    Call("stat", (4, None), "look", 0),
    Call("lstat", (6, None), "look", 0),
    Call("newfstatat", (262, 79), "look", 1, 0),
    Call("statx", (332, 291), "look", 1, 0),
    Call("access", (21, None), "look", 0),
    Call("faccessat", (269, 48), "look", 1, 0),
    Call("faccessat2", (439, 439), "look", 1, 0),
    Call("readlink", (89, None), "look", 0),
    Call("readlinkat", (267, 78), "look", 1, 0),
    Call("chdir", (80, 49), "look", 0),
    Call("mkdir", (83, None), "write", 0),
    Call("mkdirat", (258, 34), "write", 1, 0),
    Call("rename", (82, None), "write", 1),
    Call("renameat", (264, 38), "write", 3, 2),
    Call("renameat2", (316, 276), "write", 3, 2),
    Call("execve", (59, 221), "execute", 0),
    Call("execveat", (322, 281), "execute", 1, 0),
    Call("connect", (42, 203), "connect", 1, 0, 2),
    Call("sendto", (44, 206), "connect", 4, 0, 5),
)


class Judge:
    """Knows what a sandbox allows: by the rules of Landlock, or by what exists in its mount namespace, and by the modes
    where the process has a user of its own."""

    def __init__(self, confinement: Confinement) -> None:
        rules = confinement.get("landlock", {})
        self._has_rules = "read" in rules or "write" in rules
        self._writable = [os.path.realpath(each) for each in rules.get("write", ())]
        self._readable = [os.path.realpath(each) for each in rules.get("read", ())] + self._writable
        self._ports = rules.get("connect")
        self._forwarded = [ip_network(each) for each in confinement.get("forwarded", {"networks": ()})["networks"]]
        self._present: set[str] = set()
        self._users = Users()

    def missed(self, pid: int, call: Call, arguments: Sequence[int]) -> Missed | None:
        """What this call will not get. Raises OSError if its process cannot be read, or is gone."""
        if call.does == "connect":
            return self._missed_address(pid, arguments[call.path], arguments[call.flags or 0])
        text = _text(pid, arguments[call.path])
        path = _absolute(pid, text, None if call.at is None else arguments[call.at])
        if path is not None and self._has_rules and path.startswith(f"{_SHARED_MEMORY}/") and call.does != "look":
            return {"kind": "file", "what": _SHARED_MEMORY, "access": "write", "is_directory": True}
        if path is None or _is_within(path, _NOT_MISSED):
            return None
        flags = 0
        if call.name == "openat2":
            flags = int.from_bytes(_memory(pid, arguments[2], 8), "little")
        elif call.flags is not None:
            flags = arguments[call.flags]
        if call.does == "open" and flags & os.O_PATH:
            return self._missed_file(pid, path, "look", creates=False)
        writes = call.does == "write" or bool(flags & (os.O_ACCMODE | _CREATES))
        creates = call.does == "write" or bool(flags & os.O_CREAT)
        missed = self._missed_file(pid, path, "write" if writes else call.does, creates=creates)
        if missed is None and call.does == "execute":
            interpreter = _interpreter(pid, path)
            if interpreter is not None:
                return self._missed_file(pid, interpreter, "execute", creates=False)
        return missed

    # --- files

    def _missed_file(self, pid: int, path: str, does: str, *, creates: bool) -> Missed | None:
        if does != "write" and path in self._present:
            return None
        if self._has_rules:
            missed = None if does == "look" else self._outside_rules(path, does, creates=creates)
        else:
            missed = _outside_namespace(pid, path, does, creates=creates)
            missed = missed or self._closed_to_user(pid, path, does, creates=creates)
        if missed is None and does != "write":
            if len(self._present) >= MOST_KNOWN:
                self._present.clear()
            self._present.add(path)
        return missed

    def _outside_rules(self, path: str, does: str, *, creates: bool) -> Missed | None:
        if not os.path.exists(path) and not (creates and os.path.exists(os.path.dirname(path))):
            return None
        real = os.path.realpath(path)
        if _is_within(real, self._writable if does == "write" else self._readable):
            return None
        return _file(real, "write" if does == "write" else "read")

    def _closed_to_user(self, pid: int, path: str, does: str, *, creates: bool) -> Missed | None:
        bits = _BITS[does]
        if _is_of_python(path):
            return None
        found = _look_inside(pid, path)
        if found is None and creates:
            path, bits = os.path.dirname(path), WRITE | SEARCH
        elif found is not None and found.is_directory and does == "write":
            bits = 0  # it is there already
        kept_out = self._users.kept_out(pid, path, bits)
        if kept_out is None:
            return None
        closed, uid = kept_out
        missed = _file(closed, "write" if closed == path and bits & WRITE else "read")
        return None if missed is None else {**missed, "uid": uid}

    # --- addresses

    def _missed_address(self, pid: int, address: int, size: int) -> Missed | None:
        if not address or size < 4:
            return None
        content = _memory(pid, address, min(size, _ADDRESS_BYTES))
        family = int.from_bytes(content[:2], "little")
        if family == _UNIX:
            return self._missed_socket(pid, content[2:])
        if family not in (_INET, _INET6):
            return None
        port = int.from_bytes(content[2:4], "big")
        host = ip_address(content[4:8] if family == _INET else content[8:24])
        if not port:  # glibc asks which of its own addresses it would use
            return None
        if self._ports is not None:
            if port in self._ports:
                return None
        elif _same_network(pid) or (self._is_own(host) and port in _listening(pid)):
            return None
        if port == _DNS:
            return {"kind": "address", "what": "names (DNS)"}
        missed: Missed = {"kind": "address", "what": f"[{host}]:{port}" if family == _INET6 else f"{host}:{port}"}
        if host.is_loopback and port not in _listening(os.getpid()):
            missed["is_heard"] = False
        return missed

    def _is_own(self, host: IPv4Address | IPv6Address) -> bool:
        """Whether it is local in a network of the process's own: who listens at a port there has its connections."""
        real = getattr(host, "ipv4_mapped", None) or host
        return host.is_loopback or real.is_loopback or any(real in each for each in self._forwarded)

    def _missed_socket(self, pid: int, name: bytes) -> Missed | None:
        if name.startswith(b"\0"):
            return None  # an abstract one
        path = _absolute(pid, os.fsdecode(name.partition(b"\0")[0]), None)
        if path is None or _is_within(path, _NOT_MISSED):
            return None
        return self._missed_file(pid, path, "connect", creates=False)


def _outside_namespace(pid: int, path: str, does: str, *, creates: bool) -> Missed | None:
    found = _look_inside(pid, path)
    if found is not None:
        is_missed = does == "write" and found.is_read_only and _is_writable(path)
        return _file(path, "write") if is_missed else None
    parent = os.path.dirname(path)
    if not os.path.exists(path) and not (creates and os.path.exists(parent)):
        return None
    nearest = _nearest_inside(pid, parent)
    if nearest is None or (creates and nearest.path == parent and not nearest.is_read_only):
        return None
    # A link may be there itself, and lead to a place that is not.
    is_link = _look_inside(pid, path, os.O_NOFOLLOW) is not None
    missed = _file(os.path.realpath(path) if is_link else path, "write" if does == "write" else "read")
    return {**missed, "is_hidden": True} if missed is not None and nearest.is_own else missed


class _Found(NamedTuple):
    """A path that a process has. `is_own`: it is writable, and not on the same mount as the root: the home, /tmp."""

    path: str
    is_read_only: bool = False
    is_own: bool = False
    is_directory: bool = False


def _nearest_inside(pid: int, path: str) -> _Found | None:
    """The path, or else the nearest of the directories above it that the process has."""
    found = _look_inside(pid, path)
    while found is None and path != "/":
        path = os.path.dirname(path)
        found = _look_inside(pid, path)
    return found


def _look_inside(pid: int, path: str, flags: int = 0) -> _Found | None:
    """What the process finds at this path."""
    try:
        found = open_inside(pid, path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return _Found(path)
    try:
        status = os.fstat(found)
        is_read_only = bool(os.fstatvfs(found).f_flag & os.ST_RDONLY)
        is_own = not is_read_only and status.st_dev != os.stat(f"/proc/{pid}/root").st_dev
        return _Found(path, is_read_only, is_own, stat.S_ISDIR(status.st_mode))
    finally:
        os.close(found)


def _file(path: str, access: Access) -> Missed | None:
    if _is_within(path, _NOT_MISSED) or _is_of_python(path):  # where a link leads
        return None
    missed: Missed = {"kind": "file", "what": path, "access": access, "is_directory": os.path.isdir(path)}
    return missed if os.path.lexists(path) else {**missed, "is_new": True}


def _is_of_python(path: str) -> bool:
    """Whether Python does well without it: a compiled module, or what every start of it asks for."""
    return "/__pycache__" in path or os.path.basename(path) in _CUSTOMIZING


def _is_writable(path: str) -> bool:
    """Whether it could be written outside the sandbox: it is on no read-only mount there."""
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    with contextlib.suppress(OSError):
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    return False


def _is_within(path: str, directories: Sequence[str]) -> bool:
    return any(path == each or each == "/" or path.startswith(each + "/") for each in directories)


def _interpreter(pid: int, path: str) -> str | None:
    """What the first line of a script names."""
    try:  # inside only: as seen from here, a symbolic link could lead anywhere, and to open a device can have effects
        place = open_inside(pid, path)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return None
        with open(f"/proc/self/fd/{place}", "rb", buffering=0) as file:
            beginning = file.read(_SCRIPT_BYTES)
    except OSError:
        return None
    finally:
        os.close(place)
    words = beginning[2:].partition(b"\n")[0].split() if beginning.startswith(b"#!") else []
    return os.path.normpath(os.fsdecode(words[0])) if words and words[0].startswith(b"/") else None


# --- the process


def _memory(pid: int, address: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)


def _text(pid: int, address: int) -> str:
    """A path; read up to the end of its page first, as the next one may be missing."""
    first = _TEXT_BYTES - address % _TEXT_BYTES
    text = _memory(pid, address, first)
    if b"\0" not in text:
        text += _memory(pid, address + first, _TEXT_BYTES - first)
    return os.fsdecode(text.partition(b"\0")[0])


def _absolute(pid: int, path: str, directory: int | None) -> str | None:
    """The path as the process sees it; None if it names nothing but a descriptor."""
    if not path:
        return None
    if not path.startswith("/"):
        number = _HERE if directory is None else ctypes.c_int(directory & 0xFFFFFFFF).value
        base = os.readlink(f"/proc/{pid}/cwd" if number == _HERE else f"/proc/{pid}/fd/{number}")
        if not base.startswith("/"):
            return None
        path = f"{base}/{path}"
    return "/" + os.path.normpath(path).lstrip("/")


def _same_network(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")


def _listening(pid: int) -> set[int]:
    """Ports on which somebody listens in the process's network."""
    ports = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}") as file:
            rows = [line.split() for line in file.readlines()[1:]]
            ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] in _LISTENS}
    return ports
