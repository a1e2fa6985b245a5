"""What a probe shoots at: files, sockets and processes that surely can be reached from outside of a sandbox."""

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REACH_S = 0.5  # for an address to be found reachable from here
METADATA = ("169.254.169.254", 80)
DATAGRAM = "a port of others"
_ANOTHERS_UID = 65533
# To a proxy: other spellings of the same, and ports that it allows, so that the address alone can be refused.
_ASKED = {
    "this machine": ("127.0.0.1", 443),
    "this machine by name": ("localhost", 443),
    "this machine in IPv6": ("[::1]", 443),
    "cloud metadata in IPv6": ("[::ffff:169.254.169.254]", 80),
    "cloud metadata as a number": ("2852039166", 80),
}
_KERNEL_SETTING = "/proc/sys/kernel/domainname"


@dataclass(frozen=True, slots=True)
class Targets:
    """What no backend may reach on this node: files by name, and addresses by name."""

    files: Mapping[str, str]
    addresses: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Range:
    """`goals`: for the program of attempts. `datagrams`: where they arrive."""

    goals: Mapping[str, Any]
    datagrams: socket.socket

    def was_hit(self) -> bool:
        """Whether a datagram has arrived."""
        try:
            return bool(self.datagrams.recv(1))
        except BlockingIOError:
            return False


@contextmanager
def stand_ins(addresses: Mapping[str, tuple[str, int]]) -> Iterator[None]:
    """Listens where nobody does, for all ranges of this time: a range that ends must not take from another one the
    address at which that one has found somebody."""
    with ExitStack() as stack:
        for address in addresses.values():
            _answers(address) or _listen(stack, address)
        yield


@contextmanager
def shooting_range(targets: Targets) -> Iterator[Range]:
    """Of the given addresses those that answer, or at which this node can listen meanwhile."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-probe-")))
        directory.chmod(0o755)
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.setblocking(False)
        udp.bind(("127.0.0.1", 0))
        goals = {
            **_files(directory, targets.files),
            "connect": _addresses(stack, targets.addresses),
            "ask": _ASKED,
            "datagram": {DATAGRAM: udp.getsockname(), "cloud metadata": METADATA},
            "unix": _unix_sockets(stack, directory),
            "processes": {"the gateway": identity(os.getpid())},
        }
        yield Range(goals, udp)


def identity(pid: int) -> tuple[int, str]:
    """What tells a process from another one of the same number: its pid, and when it started.

    Raises:
        OSError: it is gone.
    """
    return pid, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _files(directory: Path, others: Mapping[str, str]) -> dict[str, Any]:
    home, file, anothers = directory / "home", directory / "file", directory / "anothers"
    home.mkdir()
    for path in (home / "file", file, anothers):
        path.write_text("readable by all")
    found: dict[str, Any] = {
        "read": {"a file of others": str(file), "another tenant's home": str(home), **others},
        "change": {"a file of others": str(file), "a setting of the kernel": _KERNEL_SETTING}
        | {name: path for name, path in others.items() if os.path.isfile(path)},
        "create": {
            "a file in another tenant's home": str(home / "new"),
            "a file of the system": "/usr/.trunkline-probe",
        },
        "metadata": {"a file of others": str(file)},
    }
    if os.geteuid() == 0:
        anothers.chmod(0o600)
        os.chown(anothers, _ANOTHERS_UID, _ANOTHERS_UID)
        found["anothers"] = str(anothers)
    return found


def _addresses(stack: ExitStack, others: Mapping[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
    found = {"another backend": ("127.0.0.1", port), "another backend by name": ("localhost", port)}
    found |= {name: address for name, address in others.items() if _answers(address) or _listen(stack, address)}
    return {**found, "cloud metadata": METADATA}


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, REACH_S).close()
    except OSError:
        return False
    return True


def _listen(stack: ExitStack, address: tuple[str, int]) -> bool:
    """In the place of what is not there yet, such as the gateway itself. Gives way to whoever is bound there."""
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        listener = stack.enter_context(socket.socket(family, kind, protocol))
        listener.bind(resolved)
        listener.listen()
    except OSError:
        return False
    return True


def _unix_sockets(stack: ExitStack, directory: Path) -> dict[str, str]:
    path, name = str(directory / "socket"), f"@trunkline-probe-{secrets.token_hex(8)}"
    for address in (path, "\0" + name[1:]):
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(address)
        listener.listen()
    os.chmod(path, 0o777)  # noqa: S103 - the sandbox has to refuse it, not the file's mode
    return {"a socket of others": path, "an abstract socket of others": name}
