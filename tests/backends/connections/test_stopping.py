"""StoppingConnection: when its process is stopped, what has it go on, and that nothing is lost on the way."""

import errno
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from app.backends.connections._stopping import Freezable, StoppingConnection
from app.backends.connections.source import Parkable
from app.errors import BackendBusy, GatewayError
from app.processes.endings import Exit
from tests.sessions.fakes import FakeConnection, FakeLease

Told = Callable[[OSError | None], None]


class Process(FakeConnection):
    """One that is stopped when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[tuple[str, Told]] = []
        self.killed_for: list[str | None] = []
        self.cannot = False

    def freeze(self, told: Told) -> bool:
        if not self.cannot:
            self.orders.append(("freeze", told))
        return not self.cannot

    def thaw(self, told: Told) -> None:
        self.orders.append(("thaw", told))

    def kill(self, cause: str | None = None) -> None:
        self.killed_for.append(cause)

    def done(self, error: int | None = None) -> str:
        """The oldest order has been carried out, or not."""
        name, told = self.orders.pop(0)
        told(None if error is None else OSError(error, os.strerror(error)))
        return name


class Keeper:
    def __init__(self) -> None:
        self.told: list[str] = []

    def stopped(self, error: OSError | None) -> None:
        self.told.append("stopped" if error is None else "not stopped")

    def woken(self, *, was_warm: bool, waited_s: float) -> None:
        assert waited_s >= 0
        self.told.append("woken")

    def not_woken(self, error: GatewayError) -> None:
        self.told.append("not woken")

    def gone(self) -> None:
        self.told.append("gone")


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.exits: list[Exit] = []

    def backend_sent(self, line: bytes) -> None:
        self.heard.append(json.loads(line))

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None: ...

    def backend_failed(self, call: bytes, error: GatewayError) -> None: ...

    def backend_exited(self, exit: Exit) -> None:
        self.exits.append(exit)


class Rig:
    def __init__(self) -> None:
        self.process, self.keeper, self.listener = Process(), Keeper(), Listener()
        self.lease = FakeLease(self.process)
        assert isinstance(self.process, Freezable)
        self.connection = StoppingConnection(self.lease, self.process)
        self.connection.attach(self.listener)

    def send(self, **message: Any) -> None:
        self.connection.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def open(self) -> None:
        self.send(id=1, method="initialize", params={})
        self.process.answer({"capabilities": {}})
        self.send(method="notifications/initialized")

    def park(self) -> bool:
        return self.connection.park(self.keeper)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_it_stands_still_until_the_next_message_which_is_written_at_once(rig: Rig) -> None:
    assert isinstance(rig.connection, Parkable)
    rig.open()
    assert rig.park()
    assert not rig.park()
    assert rig.process.done() == "freeze"
    rig.send(id=2, method="ping")
    assert rig.process.sent[-1]["method"] == "ping"
    assert rig.keeper.told == ["stopped"]
    rig.send(id=3, method="ping")
    assert rig.process.done() == "thaw"
    assert rig.keeper.told == ["stopped", "woken"]
    rig.process.answer()
    rig.process.answer(to=-2)
    assert [each["id"] for each in rig.listener.heard] == [1, 3, 2]
    assert rig.park()
    assert rig.process.done() == "freeze"
    assert rig.lease.released == []


@pytest.mark.parametrize(
    "what", ["hello", "initialized", "call", "question", "subscription", "pause", "answer", "process"]
)
def test_it_runs_while_something_is_under_way(rig: Rig, what: str) -> None:
    if what == "hello":
        rig.send(id=1, method="initialize", params={})
    elif what == "initialized":
        rig.send(id=1, method="initialize", params={})
        rig.process.answer({"capabilities": {}})
    else:
        rig.open()
    if what == "call":
        rig.send(id=2, method="tools/call")
    elif what == "question":
        rig.process.say(id="q", method="roots/list")
    elif what == "subscription":
        rig.send(id=2, method="resources/subscribe", params={"uri": "a:b"})
        rig.process.answer()
    elif what == "pause":
        rig.connection.pause_reading()
    elif what == "answer":
        rig.process.begun = b"2"
    elif what == "process":  # it has something to read, or no control group
        rig.process.cannot = True
    assert not rig.park()
    assert (rig.process.orders, rig.keeper.told) == ([], [])


@pytest.mark.parametrize("what", ["pause", "question", "subscription"])
def test_it_is_frozen_when_that_is_over(rig: Rig, what: str) -> None:
    rig.open()
    if what == "pause":
        rig.connection.pause_reading()
        rig.connection.resume_reading()
    elif what == "question":
        rig.process.say(id="q", method="roots/list")
        rig.send(id="q", result={"roots": []})
    else:
        for number, method in enumerate(("resources/subscribe", "resources/unsubscribe"), 2):
            rig.send(id=number, method=method, params={"uri": "a:b"})
            rig.process.answer()
    assert rig.park()


def test_a_message_that_comes_while_it_is_being_stopped_has_it_go_on(rig: Rig) -> None:
    rig.open()
    rig.park()
    rig.send(id=2, method="ping")
    assert [rig.process.done(), rig.process.done()] == ["freeze", "thaw"]
    assert rig.keeper.told == ["stopped", "woken"]


def test_what_it_had_said_when_it_was_stopped_has_it_go_on(rig: Rig) -> None:
    rig.open()
    rig.park()
    rig.process.done()
    rig.process.say(id="q", method="roots/list")
    assert rig.listener.heard[-1]["method"] == "roots/list"
    assert rig.process.done() == "thaw"
    assert rig.keeper.told == ["stopped", "woken"]
    assert not rig.park()  # the question is open


def test_several_messages_in_one_line_are_followed(rig: Rig) -> None:
    rig.open()
    rig.process.listener.backend_sent(b'[{"jsonrpc":"2.0","id":"q","method":"roots/list"}]')  # type: ignore[union-attr]
    assert not rig.park()
    rig.send(id="q", result={"roots": []})
    assert rig.park()


def test_what_cannot_be_stopped_is_not_tried_again_before_its_next_message(rig: Rig) -> None:
    rig.open()
    rig.park()
    rig.process.done(errno.EBUSY)
    assert rig.keeper.told == ["not stopped", "gone"]
    assert not rig.park()
    rig.send(id=2, method="ping")
    rig.process.answer()
    assert rig.process.orders == []
    assert rig.park()


def test_what_cannot_be_stopped_and_has_been_thawed_meanwhile_counts_once(rig: Rig) -> None:
    rig.open()
    rig.park()
    rig.send(id=2, method="ping")
    rig.process.done(errno.EBUSY)
    rig.process.done()
    assert rig.keeper.told == ["not stopped", "gone"]
    rig.process.answer()
    assert rig.connection.park(again := Keeper())
    rig.process.done()
    rig.send(id=3, method="ping")
    rig.process.done()
    assert again.told == ["stopped", "woken"]


def test_a_process_that_cannot_go_on_is_ended_and_its_session_told(rig: Rig) -> None:
    rig.open()
    rig.park()
    rig.process.done()
    rig.send(id=2, method="ping")
    rig.process.done(errno.EACCES)
    assert rig.process.killed_for == ["could not be thawed"]
    assert rig.keeper.told == ["stopped", "not woken"]
    rig.process.die()
    assert len(rig.listener.exits) == 1
    rig.connection.release("backend_exited")
    assert rig.keeper.told == ["stopped", "not woken", "gone"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV], ids=errno.errorcode.get)
def test_one_that_has_ended_meanwhile_is_not_ended_again(rig: Rig, number: int) -> None:
    rig.open()
    rig.park()
    rig.process.done()
    rig.send(id=2, method="ping")
    rig.process.done(number)  # its group is gone; the end is reported in a moment
    assert (rig.process.killed_for, rig.keeper.told) == ([], ["stopped"])
    rig.process.die()
    rig.connection.release("backend_exited")
    assert (len(rig.listener.exits), rig.keeper.told) == (1, ["stopped", "gone"])


@pytest.mark.parametrize("when", ["stopping", "frozen", "thawing"])
def test_its_end_is_told_once(rig: Rig, when: str) -> None:
    rig.open()
    rig.park()
    if when != "stopping":
        rig.process.done()
    if when == "thawing":
        rig.send(id=2, method="ping")
    rig.connection.release("deleted")
    while rig.process.orders:
        rig.process.done()
    assert rig.lease.released == ["deleted"]
    assert [each for each in rig.keeper.told if each != "stopped"] == ["gone"]


def test_a_line_that_is_not_written_is_nothing_under_way(rig: Rig) -> None:
    rig.open()
    rig.process.is_busy = True
    with pytest.raises(BackendBusy):
        rig.send(id=2, method="ping")
    assert rig.park()


def test_an_answer_that_is_too_large_is_an_answer(rig: Rig) -> None:
    rig.open()
    rig.send(id=2, method="tools/call")
    assert not rig.park()
    rig.connection.backend_sent_too_much(b'{"jsonrpc":"2.0","id":2,"result":', b"}}")
    assert rig.park()
