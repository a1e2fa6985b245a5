"""What the spawner and the maker of rooms tell each other, as JSON."""

import errno
import json
from typing import TypedDict

from app.jail.spawner import wire

MADE = b"made"  # of the first process, with descriptors of its namespaces


class RoomOrder(TypedDict):
    """`pid`: the fork that is to be led in. `joins`: the `cgroup.procs` files of its groups. It comes with three
    descriptors, or four: one for the report, the fork's socket, the leash, and what a listener is sent through."""

    id: str
    pid: int
    room: wire.Room
    joins: list[str]


class RoomReport(TypedDict, total=False):
    """`first`: the first process of the room. `namespaces`: what /proc/PID/ns says of it, by name. Or why there is no
    room."""

    first: int
    namespaces: dict[str, str]
    errno: int
    message: str


def failure(error: BaseException) -> bytes:
    number = getattr(error, "errno", None) or errno.EIO
    told = RoomReport(errno=number, message=getattr(error, "strerror", None) or repr(error))
    return json.dumps(told).encode()
