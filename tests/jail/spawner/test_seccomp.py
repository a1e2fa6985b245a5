"""The filters, run instruction by instruction for both architectures. test_confinement_attempts.py tries them out."""

import errno
import re
import struct
from pathlib import Path

import pytest

from app.jail.spawner import _seccomp as seccomp
from app.jail.spawner._system_call_numbers import NUMBERS

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALL = tuple(seccomp.FILTERS)
# System calls that every program makes: read, mmap, execve, exit_group, fork or clone, futex, openat, connect.
ORDINARY = {"x86_64": (0, 9, 59, 231, 57, 202, 257, 42), "aarch64": (63, 222, 221, 94, 98, 56, 203)}
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
UNIX, INET, INET6, NETLINK, VSOCK = 1, 2, 10, 16, 40
STREAM, DATAGRAM, SEQPACKET, CLOEXEC = 1, 2, 5, 0o2000000
SIGCHLD, CLONE_VM, CLONE_THREAD, CLONE_NEWUSER, CLONE_NEWNET = 17, 0x100, 0x10000, 0x10000000, 0x40000000


def verdict(
    filters: tuple[str, ...], machine: str, number: int, *arguments: int, architecture: int | None = None
) -> int:
    """0 if the call is allowed, else the error; as the kernel interprets the program."""
    steps = list(struct.iter_unpack("=HBBI", seccomp.program(filters, machine)))
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture or MACHINES[machine], 0, *(each % (1 << 64) for each in padded))
    at, word = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x20:
            [word] = struct.unpack_from("=I", data, operand)
        elif code == 0x54:
            word &= operand
        elif code == 0x05:
            at += operand
        elif code == 0x06:
            assert operand == 0x7FFF0000 or operand >> 16 == 5
            return 0 if operand == 0x7FFF0000 else operand & 0xFFFF
        else:
            is_true = {0x15: word == operand, 0x35: word >= operand, 0x45: bool(word & operand)}[code]
            at += if_true if is_true else if_false


def of(name: str, machine: str, *arguments: int, filters: tuple[str, ...] = ("base",)) -> int:
    return verdict(filters, machine, NUMBERS[machine][name], *arguments)


# What must be among the denied, whatever else is.
DANGEROUS = """
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd mount umount2 pivot_root fsopen move_mount open_tree
    mount_setattr unshare setns bpf add_key request_key keyctl kexec_load kexec_file_load init_module finit_module
    delete_module userfaultfd io_uring_setup io_uring_enter io_uring_register perf_event_open quotactl swapon swapoff
    reboot acct settimeofday clock_settime clock_adjtime adjtimex name_to_handle_at open_by_handle_at syslog
"""

both = pytest.mark.parametrize("machine", list(MACHINES))


@both
@pytest.mark.parametrize("names", [("base",), ALL], ids=["base", "all"])
def test_what_every_program_does_is_allowed(machine, names):
    assert [verdict(names, machine, number) for number in ORDINARY[machine]] == [0] * len(ORDINARY[machine])
    threads = CLONE_VM | CLONE_THREAD
    assert of("clone", machine, threads, filters=names) == of("clone", machine, SIGCHLD, filters=names) == 0
    assert of("socketpair", machine, UNIX, STREAM | CLOEXEC, filters=names) == 0
    assert of("socketpair", machine, UNIX, SEQPACKET, filters=names) == 0
    assert of("ioctl", machine, 0, 0x5401, filters=names) == 0
    assert of("personality", machine, 0xFFFFFFFF, filters=names) == 0
    assert of("socket", machine, NETLINK, 3 | CLOEXEC, 0, filters=names) == 0
    assert of("prlimit64", machine, 0, 7, 1 << 40, filters=names) == 0
    assert of("setpriority", machine, 0, 0, 5, filters=names) == of("sched_setaffinity", machine, filters=names) == 0


@both
def test_what_no_server_needs_is_denied(machine):
    denied = [name for name in seccomp.DENIED.split() if name in NUMBERS[machine]]
    assert set(DANGEROUS.split()) <= set(denied)
    assert {name: of(name, machine) for name in denied} == dict.fromkeys(denied, errno.EPERM)
    assert of("clone3", machine) == errno.ENOSYS
    assert of("clone", machine, CLONE_NEWUSER | SIGCHLD) == of("clone", machine, CLONE_NEWNET) == errno.EPERM
    assert of("ioctl", machine, 0, 0x5412) == of("ioctl", machine, 0, 0x541C) == errno.EPERM
    # The kernel reads 32 bits of the command; what is above them must not hide it.
    assert of("ioctl", machine, 0, 1 << 32 | 0x5412) == errno.EPERM
    assert of("personality", machine, 0x0040000) == errno.EPERM


@both
def test_the_machine_s_huge_pages_are_out_of_reach(machine):
    private, shared_segment = 0x22, 0o1600
    assert of("mmap", machine, 0, 4096, 3, private | 0x40000) == errno.ENOMEM
    assert of("memfd_create", machine, 0, 0x4) == of("memfd_create", machine, 0, 0xFFFFFFFF) == errno.EINVAL
    assert of("shmget", machine, 0, 4096, shared_segment | 0x800) == errno.ENOMEM
    assert of("mmap", machine, 0, 4096, 3, private) == of("memfd_create", machine, 0, 0x3) == 0
    assert of("shmget", machine, 0, 4096, shared_segment) == 0


@both
def test_of_sockets_there_are_tcp_udp_unix_and_the_question_for_addresses(machine):
    for family in (INET, INET6):
        assert [of("socket", machine, family, kind, 0) for kind in (STREAM, DATAGRAM, STREAM | CLOEXEC)] == [0, 0, 0]
        assert of("socket", machine, family, SEQPACKET, 0) == errno.ESOCKTNOSUPPORT
        for protocol in (132, 256, 262):  # SCTP, SMC, multipath TCP
            assert of("socket", machine, family, STREAM, protocol) == errno.EPROTONOSUPPORT
    assert of("socket", machine, UNIX, STREAM) == 0
    assert of("socket", machine, NETLINK, 3, 4) == errno.EPROTONOSUPPORT
    # VSOCK, packets, the kernel's cryptography, SMC, XDP
    assert {of("socket", machine, family, STREAM) for family in (VSOCK, 17, 38, 43, 44)} == {errno.EAFNOSUPPORT}
    assert of("socketpair", machine, 30, STREAM) == errno.EAFNOSUPPORT


@both
def test_the_other_filters_deny_what_their_names_say(machine):
    no_unix = ("no_unix_sockets",)
    assert of("socket", machine, UNIX, STREAM, filters=no_unix) == errno.EACCES
    assert of("socketpair", machine, UNIX, DATAGRAM | CLOEXEC, filters=no_unix) == errno.EACCES
    assert of("socket", machine, INET, STREAM, filters=no_unix) == 0
    assert of("socket", machine, INET, DATAGRAM, filters=("no_internet",)) == errno.EACCES
    assert of("socket", machine, VSOCK, STREAM, filters=("no_internet",)) == errno.EACCES
    assert of("socket", machine, UNIX, STREAM, filters=("no_internet",)) == 0
    own = ("own_process_only",)
    assert of("prlimit64", machine, 77, 7, 0, filters=own) == errno.EPERM
    assert of("setpriority", machine, 2, 0, 5, filters=own) == errno.EPERM  # all of this user
    assert of("ioprio_set", machine, 3, 0, filters=own) == errno.EPERM
    assert of("ioprio_set", machine, 1, 0, filters=own) == 0
    assert of("sched_setscheduler", machine, 77, filters=own) == errno.EPERM
    assert of("shmget", machine, filters=("no_shared_ipc",)) == errno.EPERM


@both
def test_other_architectures_have_no_system_calls(machine):
    for filters in ((), ("base",), ALL):
        for architecture in (0x40000003, 0x40000028, 0xC000003E, 0xC00000B7):
            if architecture != MACHINES[machine]:
                assert verdict(filters, machine, 0, architecture=architecture) == errno.ENOSYS
    assert verdict((), "x86_64", 0x40000000 | 39) == errno.ENOSYS  # x32
    assert verdict((), "x86_64", 0x40000000 | 520) == errno.ENOSYS


@pytest.mark.parametrize(("filters", "machine"), [(("base", "nothing"), "x86_64"), (("base",), "riscv64")])
def test_an_unknown_filter_or_machine_is_an_error(filters, machine):
    with pytest.raises(OSError, match="seccomp") as caught:
        seccomp.program(filters, machine)
    assert caught.value.errno == errno.EOPNOTSUPP


@both
def test_the_numbers_are_those_of_the_kernels_headers(machine):
    header = next((Path(each) for each in HEADERS[machine] if Path(each).exists()), None)
    if header is None:
        pytest.skip("no kernel headers here (Debian: linux-libc-dev)")
    known = {name: int(number) for name, number in re.findall(r"__NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())}
    ours = NUMBERS[machine]
    assert len(ours.keys() & known.keys()) > 70
    assert {name: ours[name] for name in ours.keys() & known.keys()} == {
        name: known[name] for name in ours.keys() & known.keys()
    }
