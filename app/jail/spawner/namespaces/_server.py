"""The maker of rooms: a process beside the spawner. It knows orders for rooms only, and nothing that a session has: the
first process of a room is a copy of it."""

import array
import errno
import gc
import json
import os
import signal
import socket
from collections.abc import Sequence

from app.jail.spawner import cgroups, syscalls, tree, wire
from app.jail.spawner.namespaces import _entering as gate
from app.jail.spawner.namespaces import first_process as room
from app.jail.spawner.namespaces._entering import Traced
from app.jail.spawner.namespaces.orders import MADE, RoomOrder, RoomReport, failure

_DESCRIPTORS = 4


def serve(spawner: socket.socket) -> None:
    """Returns when the spawner is gone."""
    syscalls.die_with_parent(signal.SIGKILL)
    syscalls.refuse_inspection()
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        packet, descriptors = _receive(spawner, _DESCRIPTORS)
        if not packet:
            return
        if room.clone() == 0:
            spawner.close()
            _make(json.loads(packet), descriptors)
        for each in descriptors:
            os.close(each)


def _make(order: RoomOrder, descriptors: Sequence[int]) -> None:
    """In a process of its own, which ends in any case. If it does before the fork is in, that one ends too."""
    report = socket.socket(fileno=descriptors[0])
    try:
        signal.setitimer(signal.ITIMER_REAL, gate.WITHIN_S)
        tree.wear(order["id"])
        for path in order["joins"]:  # so that the session pays for its room
            cgroups.write(path, "0")
        report.send(json.dumps(_led_in(order, descriptors)).encode())
    except BaseException as error:  # noqa: BLE001 - this is the top of the process
        report.send(failure(error))
    finally:
        os._exit(0)


def _led_in(order: RoomOrder, descriptors: Sequence[int]) -> RoomReport:
    _, channel, leash, *proxy = descriptors
    fork = Traced(order["pid"])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    if room.clone() == 0:
        ours.close()
        room.in_child(lambda: room.build(order["pid"], order["room"], theirs, leash, *proxy[:1]), theirs)
    theirs.close()
    word, found, first = _first_word(ours)
    if word != MADE:
        told: RoomReport = json.loads(word) if word else {"errno": errno.EIO, "message": "it was not made"}
        raise OSError(told["errno"], told["message"])
    with socket.socket(fileno=os.dup(channel)) as to_fork:
        socket.send_fds(to_fork, [wire.ROOM], found)
    expected = dict(zip(room.names_of(order["room"]), map(_what, found), strict=True))
    fork.wait_at_gate()
    numbers = {os.readlink(f"/proc/{order['pid']}/fd/{each}"): int(each) for each in _listed(order["pid"])}
    fork.lead({name: numbers[what] for name, what in expected.items()})
    gate.check(order["pid"], expected)
    fork.release()
    return RoomReport(first=first, namespaces=expected)


def _what(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _listed(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/fd")


def _receive(source: socket.socket, most: int) -> tuple[bytes, list[int]]:
    packet, descriptors, _, _ = socket.recv_fds(source, wire.MAX_PACKET_BYTES, most)
    for each in descriptors:
        os.set_inheritable(each, False)
    return packet, list(descriptors)


def _first_word(source: socket.socket) -> tuple[bytes, list[int], int]:
    """With the descriptors of its namespaces, and the pid of who has sent it."""
    space = socket.CMSG_SPACE(wire.CREDENTIALS.size) + socket.CMSG_SPACE(8 * array.array("i").itemsize)
    word, ancillary, _, _ = source.recvmsg(4096, space, socket.MSG_CMSG_CLOEXEC)
    descriptors, pid = array.array("i"), 0
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = wire.CREDENTIALS.unpack_from(content)[0]
    return word, descriptors.tolist(), pid
