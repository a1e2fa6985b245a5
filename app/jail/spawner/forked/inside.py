"""Runs in the backend's own interpreter (Python 3.9 or later), which gets it as text: `run` is given what to do.

`record`: runs the program, and says which modules it has imported when it is asked. `template`: imports them, and forks
a process for each socket that it is sent; that one gets its descriptors, environment and rules through its socket from
the spawner, and then runs the program. A template never sees any of those, and never runs the program.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

PACKET_BYTES = 1 << 20
WAIT_S = 5.0
EXIT_NOT_STARTED = 127
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_PATH_BENEATH, _NET_PORT = 1, 2
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_SECCOMP, _PR_CAPBSET_DROP = 22, 24
_CAPABILITY_VERSION_3 = 0x20080522
_RLIMIT_LOCKS = 10  # see app/jail/spawner/tree.py
_SETNS, _NEW_USER = {"x86_64": 308, "aarch64": 268}, 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)
Preload = Callable[[dict[str, Any]], dict[str, Any]]


def run(task: dict[str, Any], preload: Preload, be_different: Callable[[], None]) -> None:
    """Returns only by running the program to its end, in this process or in a fork of it."""
    channel = socket.socket(fileno=task["socket"])
    channel.setblocking(True)
    channel.set_inheritable(False)
    argv = [task["name"] if task["kind"] == "script" else "-m", *task["args"]]
    vars(sys).update(argv=argv, orig_argv=task["argv"])
    if task["kind"] == "script":
        vars(sys.modules["__main__"]).update(__file__=task["name"], __cached__=None)
    _set_path(task)
    if task["mode"] == "record":
        threading.Thread(target=_tell_modules, args=(channel,), daemon=True).start()
    else:
        _serve(channel, task, preload, be_different)
    _run_program(task)


def _set_path(task: dict[str, Any]) -> None:
    """What Python puts first into `sys.path`: the directory of a script, the working directory for a module."""
    task["has_path"] = bool(sys.path) and sys.path[0] == ""
    if task["has_path"]:
        script = task["kind"] == "script"
        sys.path[0] = os.path.dirname(os.path.realpath(task["name"])) if script else os.getcwd()


def _run_program(task: dict[str, Any]) -> None:
    if task["kind"] == "module":
        vars(runpy)["_run_module_as_main"](task["name"])  # which `-m` calls
        return
    with open(task["name"], "rb") as file:
        code = compile(file.read(), task["name"], "exec", dont_inherit=True)
    exec(code, vars(sys.modules["__main__"]))  # noqa: S102 - it is the program that was to be started


# --- record


def _tell_modules(channel: socket.socket) -> None:
    while channel.recv(16):
        names = [name for name in list(sys.modules) if name != "__main__" and not name.startswith("<")]
        channel.send(json.dumps({"modules": names}).encode())


# --- template


def _serve(channel: socket.socket, task: dict[str, Any], preload: Preload, be_different: Callable[[], None]) -> None:
    """Returns in a fork that has become a session's process."""
    environment = dict(os.environ)
    _adopt_orphans(True)  # what the imports start is found, whoever has started it
    report = preload(task)
    _adopt_orphans(False)
    changed = {name: os.environ.get(name) for name in {*environment, *os.environ}}
    changed = {name: value for name, value in changed.items() if value != environment.get(name)}
    gc.collect()
    gc.freeze()
    channel.send(json.dumps(report).encode())
    while True:
        packet, descriptors = _receive(channel, 1)
        if not packet:
            if task["has_rooms"]:  # which end with this process: the node kills it when there are none
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                signal.pause()
            os._exit(0)
        if not descriptors:
            continue
        if _fork_twice(descriptors[0]):
            channel.close()
            _become(socket.socket(fileno=descriptors[0]), task, changed, be_different)
            return
        os.close(descriptors[0])


def _adopt_orphans(adopts: bool) -> None:
    """Where that is refused, only children are found."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(adopts), *[ctypes.c_ulong(0)] * 3)


def _fork_twice(session: int) -> bool:
    """True in the grandchild, which is the spawner's child as soon as the child has ended."""
    _flush()
    try:
        child = os.fork()
    except OSError as error:
        os.write(session, _complaint(error, "fork", "fork"))
        return False
    if child:
        with contextlib.suppress(ChildProcessError):  # the program ignores SIGCHLD: the kernel has waited for it
            os.waitpid(child, 0)
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        os.write(session, _complaint(error, "fork", "fork"))
        os._exit(EXIT_NOT_STARTED)
    return True


def _flush() -> None:
    """What the imports have printed would be printed again by each fork."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(Exception):  # it may be closed, or of a kind that does not flush
                stream.flush()
    _libc.fflush(None)


def _receive(channel: socket.socket, most: int) -> tuple[bytes, list[int]]:
    descriptors = array.array("i")
    packet, ancillary, _, _ = channel.recvmsg(
        PACKET_BYTES, socket.CMSG_SPACE(most * descriptors.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return packet, descriptors.tolist()


# --- what a session's process does before the program


def _become(
    spawner: socket.socket, task: dict[str, Any], changed: dict[str, str | None], be_different: Callable[[], None]
) -> None:
    stage, cwd = "fork", ""
    try:
        spawner.send(b"here")
        if task["has_rooms"]:
            stage = "namespaces"
            _enter_room(spawner)
            spawner.send(b"here")
        packet, descriptors = _receive(spawner, 3)
        order = json.loads(packet)
        for name, step in _steps(order, descriptors, task, changed):
            stage, cwd = name, order["cwd"]
            step()
        stage = "random numbers"
        be_different()
        spawner.send(b"ok")
        spawner.close()
    except BaseException as error:  # noqa: BLE001 - this is the top of the process
        try:
            spawner.send(_complaint(error, stage, cwd if stage == "chdir" else stage))
        finally:
            os._exit(EXIT_NOT_STARTED)


def _complaint(error: BaseException, stage: str, subject: str) -> bytes:
    number = getattr(error, "errno", None) or errno.EINVAL
    told = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return json.dumps({"errno": number, "stage": stage, "message": f"{told}: {subject[:500]!r}"}).encode()


def _enter_room(spawner: socket.socket) -> None:
    """Returns in a process in the room, whose parent is the first process there.

    The call stops until the spawner's side has made it, and more of them, in this process's place
    (namespaces/_entering.py).
    """
    word, descriptors = _receive(spawner, 8)
    if word != b"room":
        os._exit(EXIT_NOT_STARTED)
    _call(_SETNS[os.uname().machine], descriptors[0], _NEW_USER)
    for each in descriptors:
        os.close(each)
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3) == 0:
        capability += 1
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, sets))
    for _ in range(2):
        if os.fork():
            os._exit(0)
    _await_parent(1)  # who adopts us waits for us


def _steps(
    order: dict[str, Any], descriptors: list[int], task: dict[str, Any], changed: dict[str, str | None]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """In this order: each may need what a later one takes away."""
    yield "setsid", os.setsid
    if "mark" in order:  # of another user: the spawner may not be allowed to
        yield "limits", lambda: _wear(order["mark"])
    yield "descriptors", lambda: _take(descriptors)
    yield "chdir", lambda: os.chdir(order["cwd"])
    yield "death signal", lambda: _die_with(order["parent"])
    yield "landlock", lambda: _restrict(order["landlock"])
    if "filter" in order:
        yield "seccomp", lambda: _filter(bytes.fromhex(order["filter"]))
    yield "environment", lambda: _set_environment(order["env"], changed)
    if task["kind"] == "module" and task["has_path"]:
        yield "path", _move_path


def _take(descriptors: list[int]) -> None:
    if len(descriptors) != 3:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)


def _wear(mark: int) -> None:
    limit = (ctypes.c_uint64 * 2)(mark, mark)
    _check(_libc.prlimit(0, _RLIMIT_LOCKS, limit, None))


def _die_with(parent: int) -> None:
    """The kernel sends the signal at the end of the parent: until that is the right one, it may not be set."""
    _await_parent(parent)
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL), *[ctypes.c_ulong(0)] * 3))
    if os.getppid() != parent:
        os._exit(EXIT_NOT_STARTED)


def _await_parent(parent: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            raise OSError(errno.ECHILD, "the parent is another one")
        time.sleep(0.0002)


def _filter(program: bytes) -> None:
    """On top of the template's."""
    content = ctypes.create_string_buffer(program)

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]

    described = Filter(len(program) // 8, ctypes.addressof(content))
    _check(
        _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(described), ctypes.c_ulong(0), ctypes.c_ulong(0))
    )


def _restrict(rules: dict[str, Any] | None) -> None:
    """The rules as the spawner has made them from `wire.Landlock`: masks of rights, and what has which rights."""
    if rules is None:
        return
    masks = (ctypes.c_uint64 * 3)(*rules["masks"])
    ruleset = _call(_CREATE_RULESET, ctypes.byref(masks), ctypes.c_size_t(ctypes.sizeof(masks)), 0)
    try:
        for path, of_directory, of_file in rules["paths"]:
            _allow_path(ruleset, path, of_directory, of_file)
        for port, right in rules["ports"]:
            rule = (ctypes.c_uint64 * 2)(right, port)
            _call(_ADD_RULE, ruleset, _NET_PORT, ctypes.byref(rule), 0)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: str, of_directory: int, of_file: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        rights = of_directory if os.stat(descriptor).st_mode & 0o170000 == 0o040000 else of_file
        if rights:
            rule = ctypes.create_string_buffer(
                rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
            )
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: Any) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _set_environment(environment: dict[str, str], changed: dict[str, str | None]) -> None:
    """The session's, and what the imports have changed, as they would have in a process of their own."""
    os.environ.clear()
    os.environ.update(environment)
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _move_path() -> None:
    sys.path[0] = os.getcwd()
