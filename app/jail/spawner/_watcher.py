"""Watches what a backend asks the kernel for, so that a check can say what its sandbox kept from it.

For diagnosis only: a seccomp filter holds back the calls that name a file or an address, until the watcher has read the
name and lets them go on; and those that the process's own filters deny, which it answers with their error. What the
sandbox forbids stays forbidden. If the watcher dies, all these calls fail.
"""

import contextlib
import errno
import fcntl
import json
import operator
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

from app.jail.spawner import _seccomp as seccomp
from app.jail.spawner import syscalls
from app.jail.spawner._confinement import out_of_the_way
from app.jail.spawner._missed import CALLS, Call, Judge
from app.jail.spawner._system_call_numbers import NUMBERS
from app.jail.spawner.wire import MISSED_BYTES, Confinement, Missed, Order

_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_NOTIFY, _ALLOW, _ERROR, _ACTION = 0x7FC00000, 0x7FFF0000, 0x00050000, 0xFFFF0000
_STEP = struct.Struct("=HBBI")
_LOAD, _AND, _JUMP, _JUMP_EQUAL, _JUMP_NOT_LESS, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
_COMPARISONS: dict[int, Callable[[int, int], object]] = {
    _JUMP_EQUAL: operator.eq, _JUMP_NOT_LESS: operator.ge, _JUMP_ANY_BIT: operator.and_,
}  # fmt: skip
_AT_NUMBER = 0
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102  # ioctls of the listener
_GO_ON = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_REQUEST = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; then the data: number, architecture, instruction, arguments
_DATA = slice(16, None)
_ANSWER = struct.Struct("=QqiI")  # id, value, error, flags
_SECCOMP, _COLUMNS = {"x86_64": 317, "aarch64": 277}, {"x86_64": 0, "aarch64": 1}
_FAMILIES = {1: "AF_UNIX", 2: "AF_INET", 10: "AF_INET6", 16: "AF_NETLINK", 17: "AF_PACKET"}
_REASON_BYTES = 200
_EXIT_FAILED = 127
_IGNORED = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})


def begin(order: Order, log: int) -> tuple[Confinement, int, int]:
    """Forks. This process becomes the watcher and, for everybody else, stays the backend: it has its pid and its group,
    and ends as the child does. So it is an ancestor of all that it watches, as Yama demands of whoever reads memory.

    The child returns with what is left for it to give up, a descriptor to keep until exec, and the pid of its parent.
    If the kernel refuses, the reason is written down, and it goes on unwatched with everything that it was to give up.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    watcher, spawner = os.getpid(), os.getppid()
    child = os.fork()
    if child == 0:
        ours.close()
        channel = out_of_the_way(theirs.detach())
        is_watched = _hand_over(order["confinement"], channel)
        confined = _without_filters(order["confinement"]) if is_watched else order["confinement"]
        return confined, channel, watcher
    try:
        _stand_aside({log, ours.fileno()})
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() == spawner:
            _Watcher(order["confinement"], child, log).run(ours)
            _end_as(child)
    finally:
        os._exit(_EXIT_FAILED)


def _hand_over(confinement: Confinement, channel: int) -> bool:
    """Filters this process and all it will start, and gives the watcher the listener; False if the kernel refuses."""
    with socket.socket(fileno=os.dup(channel)) as watcher:
        syscalls.renounce_privileges()
        try:
            listener = _listen(_program(confinement))
        except OSError as error:
            watcher.send(f"the kernel refuses: {error.strerror}".encode())
            return False
        socket.send_fds(watcher, [b"\0"], [listener])
    os.close(listener)
    return True


def _without_filters(confinement: Confinement) -> Confinement:
    """Their errors would come before a notification: the watcher gives them instead, and without it all calls fail."""
    confined: Confinement = {**confinement, "seccomp": []}
    if "inner_seccomp" in confined:
        confined["inner_seccomp"] = []
    return confined


def _program(confinement: Confinement) -> bytes:
    """Notifies of what names a file or an address, and of what the process's filters deny.

    Calls that do not exist for it (ENOSYS: another architecture, clone3) fail without a notification."""
    steps = list(
        _STEP.iter_unpack(seccomp.program([*confinement.get("seccomp", ()), *confinement.get("inner_seccomp", ())]))
    )
    for at, (code, if_true, if_false, operand) in enumerate(steps):
        if code == _RETURN and operand & _ACTION == _ERROR and operand != _ERROR | errno.ENOSYS:
            steps[at] = (code, if_true, if_false, _NOTIFY)
    numbers = sorted(_calls())
    steps[-1:] = [(_LOAD, 0, 0, _AT_NUMBER)]
    steps += [(_JUMP_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    return b"".join(_STEP.pack(*step) for step in steps)


def _listen(program: bytes) -> int:
    """Sets the filter; returns its listener."""
    description = struct.pack("HxxxxxxQ", len(program) // _STEP.size, syscalls.address(program))
    number = _SECCOMP[os.uname().machine]
    try:  # from Linux 5.19: a signal that comes meanwhile does not make the process ask again
        flags = _NEW_LISTENER | _WAIT_KILLABLE
        return syscalls.call(number, _SET_MODE_FILTER, flags, syscalls.address(description))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return syscalls.call(number, _SET_MODE_FILTER, _NEW_LISTENER, syscalls.address(description))


def _calls() -> dict[int, Call]:
    column = _COLUMNS[os.uname().machine]
    return {number: call for call in CALLS if (number := call.numbers[column]) is not None}


def _stand_aside(kept: set[int]) -> None:
    """Gives up the backend's pipes, and lives until the backend has ended, whatever signal the group gets."""
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


class _Watcher:
    """Answers the kernel, and writes down what its judge says.

    What the filters deny is answered by their own error. But those for the program inside a wrapper apply to it only,
    that is from the wrapper's first exec on: it has not run before, and the exec waits for this answer.
    """

    def __init__(self, confinement: Confinement, child: int, log: int) -> None:
        self._judge = Judge(confinement)
        self._child = os.pidfd_open(child)
        self._log = _Log(log)
        self._filters = [seccomp.program(confinement.get("seccomp", ()))]
        self._inner_filters = [seccomp.program(confinement["inner_seccomp"])] if "inner_seccomp" in confinement else []
        self._is_executed, self._is_program = False, not confinement.get("is_wrapped", False)
        self._calls = _calls()
        self._names = {number: name for name, number in NUMBERS[os.uname().machine].items()}

    def run(self, channel: socket.socket) -> None:
        """Returns when the child has ended."""
        message, descriptors, _, _ = socket.recv_fds(channel, _REASON_BYTES, 1)
        poll = select.poll()
        poll.register(self._child, select.POLLIN)
        if descriptors:
            poll.register(descriptors[0], select.POLLIN)
        elif message:
            self._log.add({"kind": "unwatched", "what": message.decode()})
        while True:
            for descriptor, event in poll.poll():
                if descriptor == self._child:
                    return
                if event & select.POLLIN:
                    self._answer(descriptor, channel)
                else:  # nobody has this filter any more
                    poll.unregister(descriptor)

    def _answer(self, listener: int, channel: socket.socket) -> None:
        content = bytearray(_REQUEST.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, content)
        except OSError:  # the process is gone, or was interrupted
            return
        request, pid, _, number, _, _, *arguments = _REQUEST.unpack(content)
        self._is_executed = self._is_executed or _is_closed(channel)
        error, missed = 0, None
        if self._is_executed:
            call = self._calls.get(number)
            self._is_program = self._is_program or (call is not None and call.does == "execute")
            error = self._error(bytes(content[_DATA]))
            if error and self._is_program:
                missed = Missed(kind="system call", what=self._name(number, arguments))
            elif call is not None and self._is_program:
                missed = self._look(pid, call, arguments)
        if missed is not None and _is_valid(listener, request):
            self._log.add(missed)
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(request, 0, -error, 0 if error else _GO_ON))

    def _error(self, data: bytes) -> int:
        """What the filters answer this call with; 0 if they allow it."""
        filters = self._filters + self._inner_filters if self._is_program else self._filters
        actions = (verdict(program, data) for program in filters)
        return next((action & ~_ACTION for action in actions if action & _ACTION == _ERROR), 0)

    def _name(self, number: int, arguments: list[int]) -> str:
        name = self._names.get(number, str(number))
        return f"{name}({_FAMILIES.get(arguments[0], arguments[0])})" if name == "socket" else name

    def _look(self, pid: int, call: Call, arguments: list[int]) -> Missed | None:
        try:
            return self._judge.missed(pid, call, arguments)
        except PermissionError:
            return {"kind": "unwatched", "what": "the gateway's user may not read the memory of the process"}
        except (OSError, ValueError, OverflowError):  # it is gone, or the address is none
            return None


def verdict(program: bytes, data: bytes) -> int:
    """What the kernel would do with a call: runs a filter on its `struct seccomp_data`."""
    steps = list(_STEP.iter_unpack(program))
    at, word = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == _RETURN:
            return int(operand)
        if code == _LOAD:
            word = int.from_bytes(data[operand : operand + 4], "little")
        elif code == _AND:
            word &= operand
        elif code == _JUMP:
            at += operand
        else:
            at += if_true if _COMPARISONS[code](word, operand) else if_false


class _Log:
    """What was missed, one JSON value per line: an object when it is first missed, later only its index."""

    def __init__(self, file: int) -> None:
        self._file, self._left = file, MISSED_BYTES
        self._indices: dict[str, int] = {}

    def add(self, missed: Missed) -> None:
        if not self._left:
            return
        text = json.dumps(missed)
        index = self._indices.get(text)
        if index is None:
            self._indices[text] = len(self._indices)
        line = (text if index is None else str(index)).encode() + b"\n"
        if len(line) <= self._left:
            self._left -= os.write(self._file, line)
        else:
            self._left = 0


def _is_closed(channel: socket.socket) -> bool:
    """Whether the other end is closed: the child has executed something."""
    try:
        return not channel.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _is_valid(listener: int, request: int) -> bool:
    """Whether the call still waits: if not, its pid may be that of somebody else by now."""
    try:
        fcntl.ioctl(listener, _IS_VALID, struct.pack("=Q", request))
    except OSError:
        return False
    return True


def _end_as(child: int) -> NoReturn:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
