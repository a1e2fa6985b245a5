"""Which listeners of this machine are a backend's: no other backend is led there. Reads /proc: for a thread."""

import os
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from app.jail.sandbox.uids import is_of_tenant
from app.jail.spawner import tree
from app.text.public_addresses import Address

_LISTENS = "0A"
_KEPT = 256


class Listening:
    """Finds the owner of a listener once."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def is_of_a_backend(self, address: Address, port: int) -> bool:
        """Whether one of those who listen at this address of the machine is a process of a backend with its network."""
        return any(is_of_tenant(uid) or self._is_held(inode) for inode, uid in _listeners(address, port))

    def _is_held(self, inode: int) -> bool:
        if inode not in self._known:
            while len(self._known) >= _KEPT:
                self._known.pop(next(iter(self._known)), None)
            self._known[inode] = any(_has(pid, f"socket:[{inode}]") for pid in _backends())
        return self._known[inode]


def _listeners(address: Address, port: int) -> Iterator[tuple[int, int]]:
    """Inode and user of each that may be meant. The kernel lists those that listen first."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                next(file)
                for row in map(str.split, file):
                    if row[3] != _LISTENS:
                        break
                    where, _, at = row[1].partition(":")
                    if int(at, 16) == port and _may_be(_address(where), address):
                        yield int(row[9]), int(row[7])
        except (OSError, StopIteration):  # without IPv6
            continue


def _address(text: str) -> Address:
    """As /proc has it: words of 32 bits in the machine's order."""
    packed = b"".join(socket.htonl(int(text[at : at + 8], 16)).to_bytes(4, "big") for at in range(0, len(text), 8))
    if len(packed) == 4:
        return IPv4Address(packed)
    found = IPv6Address(packed)
    return found.ipv4_mapped or found


def _may_be(listening: Address, wanted: Address) -> bool:
    return listening == wanted or (listening.is_unspecified and not (listening.version == 4 and wanted.version == 6))


def _backends() -> Iterator[int]:
    """Processes of backends, of this node and others, that are in the machine's network."""
    own = os.readlink("/proc/self/ns/net")
    for name in os.listdir("/proc"):
        if name.isdigit() and tree.is_marked(int(name)) and _link(f"/proc/{name}/ns/net") == own:
            yield int(name)


def _has(pid: int, what: str) -> bool:
    try:
        return any(_link(f"/proc/{pid}/fd/{each}") == what for each in os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # it is gone
        return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
