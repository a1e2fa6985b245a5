"""What node and spawner say to each other: one JSON object per packet of a SOCK_SEQPACKET socket pair.

Node to spawner: `spawn` (with three descriptors), `signal`, `kill`.
Spawner to node: `ready`, `spawned` or `failed`, `exited`.
"""

import json
import socket
from typing import TypedDict

# A command line with a larger environment is refused with E2BIG. Where net.core.wmem_max caps the send buffer
# at less, the kernel refuses earlier.
MAX_PACKET_BYTES = 1 << 20


class Order(TypedDict, total=False):
    """What the node asks for; `do` says which of the fields are there."""

    do: str
    id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    sched_batch: bool
    signum: int


class Report(TypedDict, total=False):
    """What the spawner tells; `event` says which of the fields are there."""

    event: str
    id: str
    pid: int
    seconds: float
    errno: int
    stage: str
    message: str
    code: int
    signal: int


def encode(message: Order | Report) -> bytes:
    """One packet."""
    return json.dumps(message, separators=(",", ":")).encode()


def decode_order(packet: bytes | memoryview) -> Order:
    """What the node sent."""
    order: Order = json.loads(bytes(packet))
    return order


def decode_report(packet: bytes) -> Report:
    """What the spawner sent."""
    report: Report = json.loads(packet)
    return report


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, with room for large environments."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET_BYTES)
    return ends
