"""Tries what a sandbox forbids. Runs inside the sandbox, as a program: `python -I -S attempts.py TARGETS`.

TARGETS is a JSON object; what is missing is not tried:

    read, write   path by name
    connect       [host, port] by name; those of this machine listen: a refusal means that it was another
    datagram      [host, port] by name; whoever started this program sees what arrives
    unix          path of a listening socket by name; `@x` is an abstract one
    victim        pid of a process outside
    pids, files, disk_bytes, memory_bytes   the limits that should be reached
    proxy         [host, port] of the egress proxy, through which `connect` is tried as well

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
import time
from collections.abc import Callable, Mapping
from typing import Any

CONNECT_S = 0.3  # an address that does not answer was not refused
LEFT_BEHIND_S = 60
_MORE = 8  # tried beyond a limit
_CHUNK = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUSER, _CLONE_NEWNS, _MS_BIND, _MNT_DETACH = 0x10000000, 0x00020000, 4096, 2
_PTRACE_ATTACH, _PTRACE_DETACH = 16, 17
# The numbers of these are the same on x86_64 and aarch64, but for the first two.
_IS_ARM = os.uname().machine == "aarch64"
_KEYCTL = 219 if _IS_ARM else 250
_USERFAULTFD = 282 if _IS_ARM else 323
_IO_URING_SETUP = 425
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


def write(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)
    return "created"


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
    if " 200" in status:
        return status
    raise OSError(errno.EACCES, status)


def connect_unix(path: str) -> str:
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
    return "connected"


def attach(pid: int) -> str:
    if _libc.ptrace(_PTRACE_ATTACH, pid, None, None) != 0:
        raise _error()
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0x40000000)  # __WALL: it stops before it can be left
    _libc.ptrace(_PTRACE_DETACH, pid, None, None)
    return "attached"


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


def fill_past(limit: int) -> str:
    """In the home and the temporary directory together."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    paths = [os.path.join(os.environ[name], ".trunkline-probe") for name in ("HOME", "TMPDIR")]
    written = 0
    try:
        for path in paths:
            with open(path, "wb", buffering=0) as file:
                for _ in range(limit // _CHUNK + 1):
                    written += file.write(b"x" * _CHUNK)
    finally:
        for path in paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
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


def try_files(targets: Mapping[str, Any]) -> None:
    for name, path in targets.get("read", {}).items():
        report(f"read {name}", "files", lambda path=path: read(path))  # type: ignore[misc]
    for name, path in targets.get("write", {}).items():
        report(f"write {name}", "files", lambda path=path: write(path))  # type: ignore[misc]


def try_network(targets: Mapping[str, Any]) -> None:
    proxy = targets.get("proxy")
    for name, (host, port) in targets.get("connect", {}).items():
        report(f"connect {name}", "network", lambda host=host, port=port: connect(host, port))  # type: ignore[misc]
        if proxy:
            do = lambda host=host, port=port: through_proxy(tuple(proxy), host, port)  # noqa: E731
            report(f"connect {name} through the proxy", "network", do)
    for name, (host, port) in targets.get("datagram", {}).items():
        report(f"send a datagram to {name}", "network", lambda host=host, port=port: send_udp(host, port))  # type: ignore[misc]
    for name, path in targets.get("unix", {}).items():
        report(f"connect {name}", "network", lambda path=path: connect_unix(path))  # type: ignore[misc]


def try_processes(targets: Mapping[str, Any]) -> None:
    victim = targets.get("victim")
    if victim:
        report("read another process's environment", "processes", lambda: read(f"/proc/{victim}/environ"))
        report("trace another process", "processes", lambda: attach(victim))
        report("signal another process", "processes", lambda: os.kill(victim, 0))
        report("read another process's limits", "processes", lambda: resource.prlimit(victim, resource.RLIMIT_CORE))
    report("mount", "processes", mount)
    report("make a namespace", "processes", unshare)
    report("become another user", "processes", become_root)
    report(
        "use the kernel's keys", "processes", lambda: system_call(_KEYCTL, _KEYCTL_GET_KEYRING_ID, _SESSION_KEYRING, 0)
    )
    report("make an io_uring", "processes", lambda: system_call(_IO_URING_SETUP, 1, 0))
    report("handle page faults", "processes", lambda: system_call(_USERFAULTFD, 0))


def try_limits(targets: Mapping[str, Any]) -> None:
    if targets.get("pids"):
        report("fork past the limit", "pids", lambda: fork_past(targets["pids"]))
    if targets.get("files"):
        report("open files past the limit", "descriptors", lambda: open_past(targets["files"]))
    if targets.get("disk_bytes"):
        report("write past the limit", "disk", lambda: fill_past(targets["disk_bytes"]))


def main() -> None:
    targets: Mapping[str, Any] = json.loads(sys.argv[1])
    try_files(targets)
    try_network(targets)
    try_processes(targets)
    try_limits(targets)
    stay_behind()
    if targets.get("memory_bytes"):  # last: it may end this program
        report("allocate past the limit", "memory", lambda: allocate_past(targets["memory_bytes"]))
    time.sleep(targets.get("sleep", 0))


if __name__ == "__main__":
    main()
