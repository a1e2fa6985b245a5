"""Messages between node and spawner: one JSON object per packet of a SOCK_SEQPACKET socket pair.

Node to spawner: `spawn` (with three descriptors), `signal`, `kill`.
Spawner to node: `ready`, `spawned` or `failed`, `exited`.
"""

import json
import socket
from typing import TypedDict

# An order with larger arguments and environment is refused with E2BIG; where net.core.wmem_max is less, the kernel
# refuses earlier.
MAX_PACKET_BYTES = 1 << 20


class Order(TypedDict, total=False):
    """From the node; `do` says which of the fields are there."""

    do: str
    id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    sched_batch: bool
    signum: int


class Report(TypedDict, total=False):
    """From the spawner; `event` says which of the fields are there."""

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
    return json.dumps(message, separators=(",", ":")).encode()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, with send buffers for large environments."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET_BYTES)
    return ends
