"""Births: forks that a template has been asked for, until they are there.

The spawner knows a fork by its own socket: the kernel says whose pid has written to it. It gives the fork its control
group and its mark before it sends what the session is: nothing of a session passes through the template.
"""

import array
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Container
from dataclasses import dataclass

from app.spawner import cgroups, landlock, tree, wire
from app.spawner.confinement import FORKED, Clock
from app.spawner.started.processes import Process

_HERE = b"here"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_WORD_BYTES = 4096


@dataclass(slots=True, eq=False)
class Birth:
    """`channel`: our end of the fork's socket. `stdio` goes to the fork."""

    order: wire.Order
    stdio: list[int]
    channel: int
    started_at: float

    @property
    def id(self) -> str:
        return self.order["id"]


class Births:
    """`_spawner`: the pid of this process, whose children all forks become."""

    def __init__(self, spawner: int) -> None:
        self._spawner = spawner
        self._births: dict[str, Birth] = {}

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
            birth = Birth(order, descriptors[:3], kept[-2], time.monotonic())
            kept = [descriptors[-1], kept[-1]]
        finally:
            for each in kept:
                os.close(each)
        self._births[birth.id] = birth
        return birth

    def born(self, birth: Birth, known: Container[int]) -> Process:
        """Reads the fork's first word, and tells it what it is to become; it is in its control group then.

        Raises:
            OSError: there is no fork. `end` this birth then.
        """
        with socket.socket(fileno=os.dup(birth.channel)) as channel:
            word, pid = _first_word(channel)
            if word != _HERE:
                raise refused(json.loads(word)["message"] if word else "the template has ended")
            if pid in known or pid == self._spawner:
                raise refused("the template says that another process is the fork")
            group = cgroups.group_of(birth.order)
            if group is not None:
                group.make()
            try:
                if group is not None:
                    group.take(pid)
                tree.wear(birth.id, pid)
                _send(channel, self._told(birth.order), birth.stdio)
            except BaseException:
                if group is not None:
                    group.kill()
                    group.remove()
                raise
        clock = Clock()
        clock.note(FORKED)
        self._forget(birth)
        return Process(birth.id, pid, birth.started_at, clock, birth.channel, group, None, is_fork=True)

    def _told(self, order: wire.Order) -> bytes:
        rules = landlock.for_fork(order["confinement"].get("landlock", {}))
        env = {**order["env"], tree.MARKER: order["id"]}
        return json.dumps({"env": env, "cwd": order["cwd"], "spawner": self._spawner, "landlock": rules}).encode()

    def end(self, birth: Birth) -> None:
        """Gives it up; the fork, if it comes, finds its socket closed."""
        os.close(birth.channel)
        self._forget(birth)

    def _forget(self, birth: Birth) -> None:
        for each in birth.stdio:
            os.close(each)
        self._births.pop(birth.id, None)


def refused(why: str) -> OSError:
    return OSError(errno.ECHILD, why)


def _send(channel: socket.socket, packet: bytes, descriptors: list[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _first_word(channel: socket.socket) -> tuple[bytes, int]:
    """Empty if nobody has the other end any more; and the pid of who has written it."""
    space = socket.CMSG_SPACE(_CREDENTIALS.size)
    word, ancillary, _, _ = channel.recvmsg(_WORD_BYTES, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return word, _CREDENTIALS.unpack_from(content)[0]
    return word, 0
