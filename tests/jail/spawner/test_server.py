"""The spawner's loop: what comes at the same moment, in one look."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from app.jail.spawner import wire
from app.jail.spawner._server import Spawner


class Rig:
    """A spawner that starts nothing, with the node's end and a template's end of their sockets."""

    def __init__(self, spawner: Spawner, node: socket.socket) -> None:
        self.spawner, self.node = spawner, node
        self.template, self._of_template = wire.socket_pair()

    def close(self) -> None:
        for each in (self.node, self.template, self._of_template, self.spawner._wake_read, self.spawner._wake_write):
            each.close()
        self.spawner._sources._selector.close()

    def order(self, order: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.node, [json.dumps(order).encode()], descriptors)

    def order_fork(self) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        descriptors = (nothing, nothing, nothing, self._of_template.fileno())
        self.order(
            {"do": "spawn", "id": "ab", "start": "fork", "confinement": {}, "env": {}, "cwd": "/", "is_watched": False},
            descriptors,
        )
        os.close(nothing)
        self.look()

    def fork(self) -> socket.socket:
        """The template's answer: the fork's end of its own socket."""
        _, descriptors, _, _ = socket.recv_fds(self.template, 16, 1)
        return socket.socket(fileno=descriptors[0])

    def look(self) -> None:
        """One turn of the spawner's loop."""
        self.spawner._sources.wait(0)

    def reports(self) -> list[dict[str, Any]]:
        found = []
        self.node.setblocking(False)
        try:
            while packet := self.node.recv(65536):
                found.append(json.loads(packet))
        except BlockingIOError:
            return found
        return found


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda descriptor, **more: -1)  # it is in this process
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    node, ours = wire.socket_pair()
    rig = Rig(Spawner(ours), node)
    yield rig
    rig.close()
    ours.close()


def test_a_fork_that_comes_in_the_moment_in_which_it_is_given_up_does_not_end_the_spawner(rig: Rig) -> None:
    """As after a standstill, where both wait to be read: with the spawner all processes of the node would end."""
    rig.order_fork()
    with rig.fork() as fork:
        rig.order({"do": "kill", "id": "ab"})
        fork.send(b"here")
        rig.look()
        assert [(each["event"], each["id"]) for each in rig.reports()] == [("failed", "ab")]
        with pytest.raises(ConnectionResetError):  # which ends the fork
            fork.recv(16)
    rig.look()
