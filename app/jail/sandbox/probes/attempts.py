"""Tries what a sandbox forbids. Runs inside the sandbox, as a program: `python -I -S attempts.py`.

It waits for one line on stdin, a JSON object; without one it does nothing. What is missing in it is not tried:

    read, change, create   path by name; `create` is a path that does not exist, in a directory that does
    metadata               path of a file by name
    processes              [pid, start time] of processes outside, by name
    connect                [host, port] by name; those of this machine listen: a refusal means that it was another
    datagram               [host, port] by name; whoever started this program sees what arrives
    unix                   path of a listening socket by name; `@x` is an abstract one
    ask                    [host, port] by name, asked of the egress proxy only
    proxy                  [host, port] of the egress proxy, of which `connect` is asked as well
    variables              names of the gateway's own variables
    anothers               path of a file that only another user may read
    pids, files, disk_bytes, memory_bytes   the limits that should be reached

Each attempt is one JSON line: `attempt`, the `guarantee` that forbids it, `outcome` ("denied" or "done") and `detail`.
The last attempts leave a process behind that holds stdout open: it must be gone soon after this program.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

CONNECT_S = 0.3  # an address that does not answer was not refused
LEFT_BEHIND_S = 60
_RUN = f"-{os.urandom(4).hex()}"  # others probe at the same time, and where nothing is confined, in the same places
_MORE = 8  # tried beyond a limit
_CHUNK = 1 << 20
_MAX_DESCRIPTOR = 256
_REFUSED = (" 400 ", " 403 ")  # any other answer of the proxy means that it has tried

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUSER, _CLONE_NEWNS, _MS_BIND, _MNT_DETACH = 0x10000000, 0x00020000, 4096, 2
_PTRACE_SEIZE, _PR_GET_NO_NEW_PRIVS = 0x4206, 39
# The numbers of these are the same on x86_64 and aarch64, but for the first two.
_IS_ARM = os.uname().machine == "aarch64"
_KEYCTL = 219 if _IS_ARM else 250
_USERFAULTFD = 282 if _IS_ARM else 323
_IO_URING_SETUP = 425
_UFFD_USER_MODE_ONLY = 1  # what needs no privilege
_KEYCTL_GET_KEYRING_ID, _SESSION_KEYRING = 0, -3


def report(attempt: str, guarantee: str, do: Callable[[], object]) -> None:
    """Tries it and writes the outcome. Only an error that the kernel gave is a refusal."""
    try:
        detail, outcome = str(do() or ""), "done"
    except OSError as error:
        detail, outcome = errno.errorcode.get(error.errno or 0, str(error)), "denied"
    except MemoryError:
        detail, outcome = "ENOMEM", "denied"
    line = {"attempt": attempt, "guarantee": guarantee, "outcome": outcome, "detail": detail[:200]}
    os.write(1, json.dumps(line).encode() + b"\n")


def read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if os.path.isdir(path):
            return f"{len(os.listdir(descriptor))} entries"
        return f"{len(os.read(descriptor, 4096))} bytes"
    finally:
        os.close(descriptor)


def create(path: str) -> str:
    path += _RUN
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)
    return "created"


def open_to_write(path: str) -> str:
    """Changes nothing: who can open it could."""
    os.close(os.open(path, os.O_WRONLY))
    return "opened"


def change_metadata(path: str) -> str:
    """To what they are."""
    mode = os.stat(path).st_mode
    os.chmod(path, mode & 0o7777)
    os.utime(path)
    return "changed"


def connect(host: str, port: int) -> str:
    """Silence is a success: something has left the machine."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except TimeoutError:
        return "no answer"
    except socket.gaierror as error:
        raise OSError(errno.ENETUNREACH, str(error)) from error
    return "connected"


def send_udp(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"?", (host, port))
    return "sent"


def through_proxy(proxy: tuple[str, int], host: str, port: int) -> str:
    with socket.create_connection(proxy, 5.0) as line:
        line.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        status = line.recv(4096).split(b"\r\n", 1)[0].decode(errors="replace")
    if any(each in status for each in _REFUSED):
        raise OSError(errno.EACCES, status)
    return status


def connect_unix(path: str) -> str:
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
    return "connected"


def outside(pid: int, started: str) -> int:
    """The pid, if it is that process: in a namespace of its own another one may have the number."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        found = file.read().rpartition(b")")[2].split()[19].decode()
    if found != started:
        raise ProcessLookupError(errno.ESRCH, "another process")
    return pid


def attach(pid: int) -> None:
    """In a child, which lets go at its end; the other process does not notice."""
    _in_child(lambda: _must(_libc.ptrace(_PTRACE_SEIZE, pid, None, None)))


def mount() -> None:
    """A directory of its own onto itself: where it succeeds, it is undone."""
    path = temporary("mount").encode()
    os.mkdir(path)
    try:
        _must(_libc.mount(path, path, None, ctypes.c_ulong(_MS_BIND), None))
        _libc.umount2(path, _MNT_DETACH)
    finally:
        os.rmdir(path)


def temporary(purpose: str) -> str:
    return os.path.join(os.environ.get("TMPDIR", "/tmp"), f".trunkline-probe-{purpose}-{os.getpid()}")  # noqa: S108


def unshare() -> None:
    """In a child: what succeeds would change all later attempts."""
    _in_child(lambda: _must(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS)))


def become_root() -> None:
    """Another user than the one that it is; for who is not root, root."""
    other = 65533 if os.getuid() == 0 else 0
    _in_child(lambda: os.setresuid(other, other, other))


def system_call(number: int, *arguments: int) -> None:
    found = _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(each) for each in arguments])
    if found < 0:
        # EFAULT and EINVAL come from the call itself: it was not refused.
        if ctypes.get_errno() in (errno.EFAULT, errno.EINVAL):
            return
        raise _error()


def fork_past(limit: int) -> str:
    children = []
    try:
        for _ in range(limit + _MORE):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return f"{len(children)} processes"


def open_past(limit: int) -> str:
    opened = []
    try:
        for _ in range(limit + _MORE):
            opened.append(os.open("/dev/null", os.O_RDONLY))  # noqa: PERF401 - what was opened must be closed
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return f"{len(opened)} files"


def gain_rights() -> str:
    """By a program that has more of them than whoever runs it."""
    if _libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0):
        raise PermissionError(errno.EPERM, "no_new_privs")
    return "programs may have more rights"


def find_descriptors() -> str:
    found = []
    for descriptor in range(3, _MAX_DESCRIPTOR):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            found.append(descriptor)
    if not found:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return f"{len(found)} descriptors"


def find_variables(names: "list[str]") -> str:
    found = [name for name in names if name in os.environ]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "no variable of the gateway")
    return " ".join(found)


def fill_past(directory: str, limit: int, files: int) -> str:
    """One byte over the limit, in so many files."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    paths = [os.path.join(directory, f".trunkline-probe-{number}{_RUN}") for number in range(files)]
    written, part = 0, b"x" * (limit // files + 1)
    try:
        for path in paths:
            with open(path, "xb", buffering=0) as file:
                for start in range(0, len(part), _CHUNK):
                    written += file.write(part[start : start + _CHUNK])
    finally:
        for path in paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
    if written < files * len(part):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return f"{written} bytes"


def allocate_past(limit: int) -> str:
    """Touches every page; the kernel may kill this program for it."""
    held = [bytearray(b"x" * _CHUNK) for _ in range(2 * limit // _CHUNK)]
    return f"{len(held)} MiB"


def stay_behind() -> str:
    """A daemon: it leaves the session, the group and the parent, and empties what it was given but stdout."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(
                sys.executable, [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({LEFT_BEHIND_S})"], {}
            )
        os._exit(0)
    os.wait()
    return "started"


def _in_child(do: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            do()
        except OSError as error:
            os._exit(error.errno or 1)
        except BaseException:  # noqa: BLE001 - the end of a forked child
            os._exit(1)
        os._exit(0)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        raise OSError(abs(number), os.strerror(abs(number)))


def _must(result: int) -> None:
    if result != 0:
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def try_each(kind: str, guarantee: str, do: Callable[..., object], targets: "Mapping[str, Any] | None") -> None:
    """`kind` has the target's name in it; a target is the arguments of `do`."""
    for name, target in (targets or {}).items():
        arguments = target if isinstance(target, list) else [target]
        report(kind.format(name), guarantee, lambda arguments=arguments: do(*arguments))  # type: ignore[misc]


def try_rights(targets: Mapping[str, Any]) -> None:
    report("run programs with more rights", "rights", gain_rights)
    report("use descriptors of the gateway", "rights", find_descriptors)
    if targets.get("variables"):
        report("read variables of the gateway", "rights", lambda: find_variables(targets["variables"]))
    if targets.get("anothers"):
        report("read a file that only another user may", "rights", lambda: read(targets["anothers"]))
    report("become another user", "rights", become_root)


def try_files(targets: Mapping[str, Any]) -> None:
    try_each("read {}", "files", read, targets.get("read"))
    try_each("change {}", "files", open_to_write, targets.get("change"))
    try_each("create {}", "files", create, targets.get("create"))
    try_each("change mode and times of {}", "metadata", change_metadata, targets.get("metadata"))


def try_network(targets: Mapping[str, Any]) -> None:
    proxy = targets.get("proxy")
    try_each("connect to {}", "network", connect, targets.get("connect"))
    if proxy:
        asked = {**targets.get("connect", {}), **targets.get("ask", {})}
        do = lambda host, port: through_proxy(tuple(proxy), host, port)  # noqa: E731
        try_each("connect to {} through the proxy", "network", do, asked)
    try_each("send a datagram to {}", "network", send_udp, targets.get("datagram"))
    try_each("connect to {}", "network", connect_unix, targets.get("unix"))


def try_processes(targets: Mapping[str, Any]) -> None:
    others: Mapping[str, Any] = targets.get("processes", {})

    def try_with(kind: str, guarantee: str, do: Callable[[int], object]) -> None:
        try_each(kind, guarantee, lambda pid, started: do(outside(pid, started)), others)

    try_with("read the environment of {}", "processes", lambda pid: read(f"/proc/{pid}/environ"))
    try_with("read the arguments of {}", "arguments", lambda pid: read(f"/proc/{pid}/cmdline"))
    try_with("reach the files of {} through /proc", "processes", lambda pid: read(f"/proc/{pid}/root/"))
    try_with("trace {}", "processes", attach)
    try_with("read the limits of {}", "processes", lambda pid: resource.prlimit(pid, resource.RLIMIT_CORE))
    # A signal that is ignored unless a process asks for it.
    try_with("signal {}", "processes", lambda pid: os.kill(pid, signal.SIGWINCH))


def try_the_kernel() -> None:
    report("mount", "processes", mount)
    report("make a namespace", "processes", unshare)
    keyring = (_KEYCTL_GET_KEYRING_ID, _SESSION_KEYRING, 0)
    report("use the kernel's keys", "processes", lambda: system_call(_KEYCTL, *keyring))
    report("make an io_uring", "processes", lambda: system_call(_IO_URING_SETUP, 1, 0))
    report("handle page faults", "processes", lambda: system_call(_USERFAULTFD, _UFFD_USER_MODE_ONLY))


def try_limits(targets: Mapping[str, Any]) -> None:
    if targets.get("pids"):
        report("fork past the limit", "pids", lambda: fork_past(targets["pids"]))
    if targets.get("files"):
        report("open files past the limit", "descriptors", lambda: open_past(targets["files"]))
    limit = targets.get("disk_bytes")
    if limit:
        directories = {"home": [os.environ["HOME"]], "shared memory": ["/dev/shm"]}  # noqa: S108
        try_each(
            "write past the limit to a file in {}", "file size", lambda path: fill_past(path, limit, 1), directories
        )
        try_each("write past the limit to files in {}", "disk", lambda path: fill_past(path, limit, 3), directories)


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return
    targets: Mapping[str, Any] = json.loads(line)
    try_rights(targets)
    try_files(targets)
    try_network(targets)
    try_processes(targets)
    try_the_kernel()
    try_limits(targets)
    stay_behind()
    if targets.get("memory_bytes"):  # last: it may end this program
        report("allocate past the limit", "memory", lambda: allocate_past(targets["memory_bytes"]))


if __name__ == "__main__":
    main()
