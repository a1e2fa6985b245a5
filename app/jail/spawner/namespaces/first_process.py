"""What makes a room, and its first process.

The builder enters the template's namespaces and makes others below them: a user namespace, in which nobody but the
template's own user exists, and in it all others; the file system is the template's, with a new /tmp, /dev/shm, /proc.
Its child's child is the first process of the new pid namespace: it adopts what is started in the room, and ends it.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import NoReturn

from app.jail.spawner import _network as network
from app.jail.spawner import syscalls, wire
from app.jail.spawner.namespaces._entering import FLAGS
from app.jail.spawner.namespaces.orders import MADE, failure

FIRST, PROGRAM = 1, 3  # pids inside: that of the first process, and of the fork; its parent was 2

_CLONE_PARENT, _SYS_CLONE = 0x8000, {"x86_64": 56, "aarch64": 220}
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same numbers on every architecture
_TREE_CLONE, _TREE_CLOEXEC, _RECURSIVE, _FROM_DESCRIPTOR = 1, 0o2000000, 0x8000, 4
_AT_FDCWD = -100
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_DETACH = 2
_OWNER = 0xB701  # NS_GET_USERNS
# bubblewrap covers these as root. What is covered, nobody may show anew who is not root; all of /proc is read-only.
_COVERED = ("sys", "sysrq-trigger", "irq", "bus")
_BY_SIGNAL = 128

_libc = ctypes.CDLL(None, use_errno=True)


def clone() -> int:
    """As os.fork(), but the child is our sibling."""
    return syscalls.call(_SYS_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD)


def build(pid: int, room: wire.Room, report: socket.socket, leash: int, proxy: int | None = None) -> None:
    """Makes a room below the namespaces of a template's fork. Its first process reports with descriptors of its
    namespaces (`FLAGS`), and lives until the program has ended, or the other end of `leash` is closed.

    Raises:
        OSError: it cannot be made.
    """
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    own_network = room["own_network"]
    _enter(pid, room)
    names = names_of(room)
    _own_user_namespace(proc, [each for each in names if each != "pid"])
    socket.sethostname(room["hostname"])
    if own_network:
        network.furnish(room, proxy)
    _furnish(room)
    if clone() == 0:
        in_child(lambda: _begin(proc, names, report, leash), report)


def _enter(pid: int, room: wire.Room) -> None:
    users, pids, mounts = (_open(f"/proc/{pid}/ns/{name}") for name in ("user", "pid", "mnt"))
    owner = fcntl.ioctl(mounts, _OWNER)  # bubblewrap makes another one in it, for the program
    is_ours = os.path.sameopenfile(owner, _open("/proc/self/ns/user"))
    for descriptor, name in ((owner, "user"), (pids, "pid"), (mounts, "mnt"), (users, "user")):
        if name != "user" or (not is_ours and (descriptor is owner or not os.path.sameopenfile(owner, users))):
            _setns(descriptor, name)
    if is_ours:
        _unshare(["mnt"])
        for name in _COVERED:
            _uncover(f"/proc/{name}")
    uid = room.get("uid")
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _uncover(path: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            _check(_libc.umount2(path.encode(), _DETACH), path)


def _own_user_namespace(proc: int, names: Sequence[str]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _unshare(names)
    # In the machine's pid namespace, which no template sees.
    syscalls.permit_inspection()
    try:
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            _write(proc, f"self/{name}", content)
    finally:
        syscalls.refuse_inspection()
    with contextlib.suppress(OSError):  # the filter of system calls forbids them too
        _write(proc, "sys/user/max_user_namespaces", "0")


def _write(directory: int, path: str, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


def _furnish(room: wire.Room) -> None:
    """A new /tmp, with what the sandbox shows below it; new shared memory and terminals."""
    shown = [(path, _copy(path)) for path in room["shown"]]
    size = f",size={room['tmp_bytes']}" if "tmp_bytes" in room else ""
    _mount("tmpfs", "/tmp", _MS_NOSUID | _MS_NODEV, f"mode=1777{size}")  # noqa: S108
    _mount("tmpfs", "/dev/shm", _MS_NOSUID | _MS_NODEV, f"mode=1777,size={room['shm_bytes']}")  # noqa: S108
    _mount("devpts", "/dev/pts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    for path in room["directories"]:
        os.makedirs(path, mode=0o700, exist_ok=True)
    for path, (descriptor, is_directory) in shown:
        _place(path, is_directory)
        empty = ctypes.c_char_p(b"")
        result = _libc.syscall(
            ctypes.c_long(_MOVE_MOUNT), ctypes.c_long(descriptor), empty, ctypes.c_long(_AT_FDCWD),
            ctypes.c_char_p(path.encode()), ctypes.c_long(_FROM_DESCRIPTOR),
        )  # fmt: skip
        _check(result, f"mount {path}")
        os.close(descriptor)
    for path, target in room["links"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)


def _copy(path: str) -> tuple[int, bool]:
    flags = _TREE_CLONE | _TREE_CLOEXEC | _RECURSIVE
    tree = _libc.syscall(
        ctypes.c_long(_OPEN_TREE), ctypes.c_long(_AT_FDCWD), ctypes.c_char_p(path.encode()), ctypes.c_long(flags)
    )
    return _check(tree, f"copy the mount of {path}"), os.path.isdir(path)


def _place(path: str, is_directory: bool) -> None:
    os.makedirs(path if is_directory else os.path.dirname(path), exist_ok=True)
    if not is_directory:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _mount(kind: str, path: str, flags: int, options: str) -> None:
    result = _libc.mount(kind.encode(), path.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(result, f"mount {path}")


def _begin(proc: int, names: Sequence[str], report: socket.socket, leash: int) -> None:
    """Only who is in a pid namespace can make one below it."""
    _unshare(["pid"])
    if clone() == 0:
        in_child(lambda: _live(proc, names, report, leash), report)


def _live(proc: int, names: Sequence[str], report: socket.socket, leash: int) -> NoReturn:
    """The first process of the room."""
    os.setsid()
    for signum in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(signum, signal.SIG_DFL)
    _mount("proc", "/proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
    found = [os.open(f"self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc) for name in names]
    socket.send_fds(report, [MADE], found)
    for each in (proc, report.detach(), *found):
        os.close(each)
    syscalls.bound_capabilities(0)
    syscalls.keep_capabilities(0)
    syscalls.renounce_privileges()
    syscalls.die_with_parent(signal.SIGKILL)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for each in range(3):
        os.dup2(nothing, each)
    syscalls.close_all_but(leash)
    if not os.read(leash, 1):
        os._exit(0)
    os.close(leash)
    while True:
        pid, status = os.wait()
        if pid == PROGRAM:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else _BY_SIGNAL - code)


def names_of(room: wire.Room) -> list[str]:
    """Its namespaces in the order in which they are entered: that of users first."""
    return [name for name in FLAGS if name != "net" or room["own_network"]]


def in_child(do: Callable[[], None], report: socket.socket) -> NoReturn:
    """Ends the process after it; what goes wrong is reported."""
    try:
        do()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - this is the top of the process
        with contextlib.suppress(OSError):
            report.send(failure(error))
    finally:
        os._exit(1)


def _setns(descriptor: int, name: str) -> None:
    _check(_libc.setns(descriptor, FLAGS[name]), f"enter the namespace {name} of the template")


def _unshare(names: Sequence[str]) -> None:
    _check(_libc.unshare(sum(FLAGS[each] for each in names)), f"make namespaces: {', '.join(names)}")


def _check(result: int, what: str) -> int:
    """Raises OSError: it could not be done."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
