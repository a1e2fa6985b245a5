"""Tries what the kernel is told to forbid. Runs inside the sandbox: `python -I -S attempts.py TARGETS NAME...`.

TARGETS is a JSON object: `secret` (a file), `directory` (another home), `tcp` (a port that listens), `unix`,
`datagram` (paths of sockets), `abstract` (a name), `outside` and `sibling` (pids of processes without a sandbox, and in
one of its own), `uid` (another user's). Each attempt is one JSON line: `attempt`, `outcome` ("denied" or "done"),
`detail`. Attempts run in children of their own: what one changes does not matter to the next.
"""

import array
import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import termios
from collections.abc import Callable

X86 = os.uname().machine == "x86_64"
CLONE_NEWUSER, CLONE_NEWNS, SIGCHLD = 0x10000000, 0x20000, 17
PTRACE_SEIZE = 0x4206
UFFD_USER_MODE_ONLY = 1
IPC_CREAT, IPC_RMID = 0o1000, 0

libc = ctypes.CDLL(None, use_errno=True)
targets: dict = {}


def call(x86: int, arm: int, *arguments) -> int:
    """A system call by its numbers. Addresses are given as bytes."""
    values = [ctypes.c_char_p(each) if isinstance(each, bytes) else ctypes.c_long(each) for each in arguments]
    result = libc.syscall(ctypes.c_long(x86 if X86 else arm), *values)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def victim() -> int:
    """A child of this process, which it may look into but for what is denied."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        os.write(tell, b"1")
        signal.pause()
    os.read(told, 1)
    return pid


# --- files


def read_file():
    with open(targets["secret"], "rb") as file:
        return file.read(5).decode()


def list_home():
    return os.listdir(targets["directory"])


def write_file():
    path = os.path.join(targets["directory"], "written")
    with open(path, "w"):
        os.unlink(path)


def append_to_file():
    with open(targets["secret"], "ab"):
        pass


def truncate_file():
    os.truncate(targets["secret"], 100)


def link_file():
    path = os.path.join(targets["directory"], "link")
    os.symlink("/etc/passwd", path)
    os.unlink(path)


def execute_file():
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(targets["program"], ["program"])
        except OSError as error:
            os._exit(error.errno or 1)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        raise OSError(number, os.strerror(number))


# --- network


def tcp():
    socket.create_connection(("127.0.0.1", targets["tcp"]), 2).close()


def tcp_listen():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))


def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", 9))


def tcp6():
    socket.socket(socket.AF_INET6).close()


def unix():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(targets["unix"])


def unix_datagram_pair():
    """A pair is connected to itself, but a datagram socket can be connected once more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.connect(targets["datagram"])


def unix_raw_pair():
    """The kernel makes a datagram socket of this type."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
    with ours, theirs:
        ours.connect(targets["datagram"])


def abstract():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + targets["abstract"])


def multipath_tcp():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as client:
        client.connect(("127.0.0.1", targets["tcp"]))


def vsock():
    socket.socket(40, socket.SOCK_STREAM).close()


def packet():
    socket.socket(17, socket.SOCK_RAW).close()


def crypto_socket():
    socket.socket(38, socket.SOCK_SEQPACKET).close()


def smc():
    socket.socket(43, socket.SOCK_STREAM).close()


def socket_diagnosis():
    """Lists every connection of the machine."""
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4).close()


# --- other processes


def _environ(pid: int) -> str:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\0")[0].decode()


def outside_environ():
    return _environ(targets["outside"])


def sibling_environ():
    return _environ(targets["sibling"])


def sibling_memory():
    os.close(os.open(f"/proc/{targets['sibling']}/mem", os.O_RDONLY))


def sibling_descriptors():
    return os.readlink(f"/proc/{targets['sibling']}/fd/0")


def sibling_root():
    return os.listdir(f"/proc/{targets['sibling']}/root/")


def sibling_trace():
    trace(targets["sibling"])


def kill_outside():
    os.kill(targets["outside"], signal.SIGCONT)


def kill_sibling():
    os.kill(targets["sibling"], signal.SIGCONT)


def kill_by_pidfd():
    descriptor = os.pidfd_open(targets["outside"])
    signal.pidfd_send_signal(descriptor, signal.SIGCONT)


def limits_of_outside():
    resource.prlimit(targets["outside"], resource.RLIMIT_CPU, resource.prlimit(targets["outside"], resource.RLIMIT_CPU))


def priority_of_outside():
    os.setpriority(os.PRIO_PROCESS, targets["outside"], os.getpriority(os.PRIO_PROCESS, targets["outside"]))


def priority_of_group():
    os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PGRP, 0))


def processors_of_outside():
    os.sched_setaffinity(targets["outside"], os.sched_getaffinity(targets["outside"]))


def scheduler_of_outside():
    os.sched_setscheduler(targets["outside"], os.SCHED_OTHER, os.sched_param(0))


def io_priority_of_outside():
    call(251, 30, 1, targets["outside"], 2 << 13 | 4)


def shared_memory():
    call(31, 195, call(29, 194, 0x7472, 4096, IPC_CREAT | 0o600), IPC_RMID, 0)


def message_queue():
    call(71, 187, call(68, 186, 0x7472, IPC_CREAT | 0o600), IPC_RMID, 0)


# --- the kernel


def trace(pid: int) -> None:
    call(101, 117, PTRACE_SEIZE, pid, 0, 0)  # until this process ends


def ptrace():
    trace(victim())


word = ctypes.create_string_buffer(8)
vector = struct.pack("PN", ctypes.addressof(word), 8)


def process_vm_readv():
    call(310, 270, victim(), vector, 1, vector, 1, 0)


def process_vm_writev():
    call(311, 271, victim(), vector, 1, vector, 1, 0)


def kcmp():
    call(312, 272, os.getpid(), victim(), 0, 0, 0)


def pidfd_getfd():
    call(438, 438, os.pidfd_open(victim()), 0, 0)


def namespace():
    call(272, 97, CLONE_NEWUSER)


def namespace_by_clone():
    if call(56, 220, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def namespace_by_clone3():
    if call(435, 435, struct.pack("8Q", CLONE_NEWUSER, 0, 0, 0, SIGCHLD, 0, 0, 0), 64) == 0:
        os._exit(0)


def enter_namespace():
    """Its own: that needs no more than the right to."""
    with open("/proc/self/ns/uts") as file:
        call(308, 268, file.fileno(), 0)


def mount():
    call(165, 40, b"none", targets["directory"].encode(), b"tmpfs", 0, 0)
    call(166, 39, targets["directory"].encode(), 2)


def mount_new():
    call(430, 430, b"tmpfs", 0)


def mount_tree():
    call(428, 428, -100, b"/", 1)


def change_root():
    call(161, 51, b"/")


def keyctl():
    call(250, 219, 0, -3, 0)


def add_key():
    call(248, 217, b"user", b"trunkline", b"x", 1, -2)


def io_uring():
    call(425, 425, 1, b"\0" * 120)


def userfaultfd():
    call(323, 282, UFFD_USER_MODE_ONLY)


def bpf():
    call(321, 280, 0, struct.pack("5I", 2, 4, 8, 1, 0) + b"\0" * 100, 120)


def perf_event():
    attributes = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 << 5 | 1 << 6) + b"\0" * 64
    call(298, 241, attributes, 0, -1, -1, 0)


def fanotify():
    call(300, 262, 0x200, 0)  # FAN_REPORT_FID: the kind that needs no privilege


def file_handle():
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + b"\0" * 128)
    call(303, 264, -100, b"/etc/passwd", ctypes.addressof(handle), b"\0" * 8, 0)


def personality():
    call(135, 92, 0x0400000)  # READ_IMPLIES_EXEC


def secret_memory():
    call(447, 447, 0)


def local_descriptor_table():
    call(154, -1, 0, b"\0" * 16, 16)


def kernel_log():
    call(103, 116, 10, 0, 0)


def set_clock():
    """Only how exact it is said to be."""
    call(305, 266, 0, struct.pack("26q", 0x0008, 0, 0, 0, 16_000_000, *[0] * 21))


def quota():
    call(179, 60, 0x800001 << 8, 0, 0, 0)  # Q_SYNC of all file systems


def host_name():
    call(170, 161, os.uname().nodename.encode(), len(os.uname().nodename))


def terminal_input():
    """What it writes, the shell on this terminal would read."""
    os.setsid()
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    fcntl.ioctl(theirs, termios.TIOCSTI, b"x")
    return ours


def other_architecture():
    """getpid() of i386, from a program of 64 bits."""
    code = bytes([0x53, 0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0x5B, 0xC3])  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
    if result < 0:
        raise OSError(-result, os.strerror(-result))


# --- privileges and limits


def become_another():
    os.setresuid(targets["uid"], targets["uid"], targets["uid"])


def read_anothers_file():
    with open(targets["anothers"], "rb") as file:
        return file.read(5).decode()


def give_away():
    os.chown(targets["secret"], targets["uid"], -1)
    os.chown(targets["secret"], os.getuid(), -1)


def open_many():
    held = array.array("i", [os.dup(1) for _ in range(200)])
    return len(held)


def large_file():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(targets["own"], "wb", buffering=0) as file:
        file.writelines([b"x" * (1 << 20)] * 3)


def execute_from_memory():
    """Nothing forbids it: what it executes has the same restrictions."""
    descriptor = os.memfd_create("program")
    with open("/bin/true", "rb") as file:
        os.write(descriptor, file.read())
    pid = os.fork()
    if pid == 0:
        os.execve(descriptor, ["true"], {})
    return os.waitpid(pid, 0)[1]


def attempt(name: str, do: Callable[[], object]) -> dict:
    """In a child, which says how it went."""
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcome, detail = "done", str(do() or "")
        except OSError as error:
            outcome, detail = "denied", errno.errorcode.get(error.errno or 0, str(error))
        except BaseException as error:  # noqa: BLE001 - the end of a child
            outcome, detail = "broken", repr(error)
        os.write(say, json.dumps({"attempt": name, "outcome": outcome, "detail": detail[:200]}).encode())
        os._exit(0)
    os.close(say)
    told = os.read(said, 4096)
    os.close(said)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(told) if told else {"attempt": name, "outcome": "denied", "detail": f"status {status}"}


if __name__ == "__main__":
    targets.update(json.loads(sys.argv[1]))
    for each in sys.argv[2:]:
        print(json.dumps(attempt(each, globals()[each])), flush=True)
