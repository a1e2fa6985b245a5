"""Births: forks that a template has been asked for, until they are there.

The spawner knows a fork by its own socket: the kernel says whose pid has written to it. It gives the fork its control
group and its mark before it sends what the session is: nothing of a session passes through the template.
"""

import array
import errno
import json
import os
import socket
import time
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from app.jail.spawner import _seccomp as seccomp
from app.jail.spawner import cgroups, landlock, tree, wire
from app.jail.spawner._complaint import complaint_of
from app.jail.spawner._confinement import FORKED, Clock
from app.jail.spawner._started_processes import Process
from app.jail.spawner.cgroups import Group
from app.jail.spawner.namespaces.client import Rooms
from app.jail.spawner.namespaces.first_process import FIRST
from app.jail.spawner.namespaces.forked_process import Inside
from app.jail.spawner.namespaces.orders import RoomOrder, RoomReport

_HERE = b"here"
_WORD_BYTES = 4096


@dataclass(slots=True, eq=False)
class Birth:
    """`channel`: our end of the fork's socket. `stdio` goes to the fork, `proxy` to its room. `group`: that of the
    fork, as soon as it is made. `room`: what is known of its room, `leash`: what keeps that."""

    order: wire.Order
    stdio: list[int]
    proxy: list[int]
    channel: int
    started_at: float
    group: Group | None = None
    room: RoomReport | None = None
    leash: int | None = None

    @property
    def id(self) -> str:
        return self.order["id"]

    @property
    def joins(self) -> list[str]:
        return [] if self.group is None else self.group.joins

    def put_into(self, group: Group | None) -> None:
        """The fork's control group."""
        self.group = group

    def keep_with(self, leash: int) -> None:
        """The room lives as long as this descriptor is open."""
        self.leash = leash

    def move_into(self, room: RoomReport) -> None:
        """The fork is in this room from now on."""
        self.room = room

    @property
    def is_outside(self) -> bool:
        """Whether its fork must be led into a room first."""
        return "room" in self.order["confinement"] and self.room is None


class Births:
    """`_spawner`: the pid of this process, whose children all forks become, or the first processes of their rooms."""

    def __init__(self, spawner: int) -> None:
        self._spawner = spawner
        self._births: dict[str, Birth] = {}
        self.rooms = Rooms()

    def of(self, process_id: str) -> Birth | None:
        return self._births.get(process_id)

    def begin(self, order: wire.Order, descriptors: list[int]) -> Birth:
        """Asks the template, whose socket is the last of the descriptors; takes all of them.

        Raises:
            OSError: the template is gone, or has been asked too often without an answer.
        """
        kept = list(descriptors)
        try:
            if len(descriptors) != wire.descriptors_of(order):  # the kernel drops those that do not fit into our table
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            ours, theirs = wire.socket_pair()
            kept += [ours.detach(), theirs.detach()]
            with socket.socket(fileno=os.dup(kept[-2])) as channel:
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                channel.setblocking(False)
            with socket.socket(fileno=os.dup(descriptors[-1])) as template:
                _send(template, b"fork", [kept[-1]])
            birth = Birth(order, descriptors[:3], descriptors[3:-1], kept[-2], time.monotonic())
            kept = [descriptors[-1], kept[-1]]
        finally:
            for each in kept:
                os.close(each)
        self._births[birth.id] = birth
        return birth

    def house(self, birth: Birth, known: Container[int]) -> socket.socket:
        """Reads the first word of a fork that is outside, and orders a room for it; returns where the report will come.

        Raises:
            OSError: there is no fork. `end` this birth then.
        """
        pid = self._heard(birth, known)
        self._take(birth, pid)
        theirs, ours = os.pipe()
        birth.keep_with(ours)
        try:
            order = RoomOrder(id=birth.id, pid=pid, room=birth.order["confinement"]["room"], joins=birth.joins)
            return self.rooms.order(order, [birth.channel, theirs, *birth.proxy])
        finally:
            os.close(theirs)

    def housed(self, birth: Birth, report: socket.socket) -> None:
        """Raises OSError: there is no room. `end` this birth then."""
        packet = report.recv(_WORD_BYTES)
        told: RoomReport = json.loads(packet) if packet else {"errno": errno.EIO, "message": "it has ended"}
        if "first" not in told:
            raise OSError(told["errno"], f"its namespaces: {told['message']}")
        birth.move_into(told)

    def born(self, birth: Birth, known: Container[int]) -> Process:
        """Reads the fork's first word where it stays, and tells it what it is to become; it is in its control group
        then.

        Raises:
            OSError: there is no fork. `end` this birth then.
        """
        pid = self._heard(birth, known)
        inside: Inside | None = None
        if birth.room is None:
            self._take(birth, pid)
        else:
            inside = Inside(birth.room, pid)
            inside.check()
        with socket.socket(fileno=os.dup(birth.channel)) as channel:
            _send(channel, self._told(birth.order), birth.stdio)
        leader = pid
        if inside is not None and birth.leash is not None:
            os.write(birth.leash, b"1")
            leader = inside.first
        clock = Clock()
        clock.note(FORKED)
        process = Process(birth.id, leader, birth.started_at, clock, birth.channel, birth.group, inside, is_fork=True)
        self._forget(birth)
        return process

    def _heard(self, birth: Birth, known: Container[int]) -> int:
        """The pid of the fork. Raises OSError."""
        with socket.socket(fileno=os.dup(birth.channel)) as channel:
            word, pid = _first_word(channel)
        if word != _HERE:
            raise refused(complaint_of(word).message if word else "the template has ended")
        if pid in known or pid == self._spawner:
            raise refused("the template says that another process is the fork")
        return pid

    def _take(self, birth: Birth, pid: int) -> None:
        group = cgroups.group_of(birth.order)
        birth.put_into(group)
        if group is not None:
            group.make()
            group.take(pid)
        tree.wear(birth.id, pid)

    def _told(self, order: wire.Order) -> bytes:
        confinement = order["confinement"]
        rules = landlock.for_fork(confinement.get("landlock", {}))
        environment = {**order["env"], tree.MARKER: order["id"]}
        told: dict[str, Any] = {"env": environment, "cwd": order["cwd"], "landlock": rules, "parent": self._spawner}
        room = confinement.get("room")
        if room is not None:
            filters = seccomp.program(confinement["inner_seccomp"]).hex()
            told |= {"env": environment | room["variables"], "cwd": room["cwd"], "parent": FIRST, "filter": filters}
            told["mark"] = tree.mark(order["id"])
        return json.dumps(told).encode()

    def end(self, birth: Birth) -> None:
        """Gives it up; the fork, if it comes, finds its socket closed, and its room ends."""
        if birth.leash is not None and birth.room is None:
            self.rooms.missed()
        os.close(birth.channel)
        self._forget(birth)

    def _forget(self, birth: Birth) -> None:
        for each in (*birth.stdio, *birth.proxy, *(() if birth.leash is None else (birth.leash,))):
            os.close(each)
        self._births.pop(birth.id, None)


def refused(why: str) -> OSError:
    return OSError(errno.ECHILD, why)


def _send(channel: socket.socket, packet: bytes, descriptors: list[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _first_word(channel: socket.socket) -> tuple[bytes, int]:
    """Empty if nobody has the other end any more; and the pid of who has written it."""
    space = socket.CMSG_SPACE(wire.CREDENTIALS.size)
    word, ancillary, _, _ = channel.recvmsg(_WORD_BYTES, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return word, wire.CREDENTIALS.unpack_from(content)[0]
    return word, 0
