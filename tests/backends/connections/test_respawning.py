"""RespawningConnection between a session and processes that die, driven by hand."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.lowlevel import checkpoint

from app.backends.connections import respawning
from app.backends.connections.respawning import MAX_WAITING, RespawningConnection
from app.errors import BackendBusy, BackendExited, BackendUnavailable, GatewayError
from app.processes.endings import Exit
from tests.sessions.fakes import FakeConnection, FakeLease


class Listener:
    """A session, as far as a connection knows it."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.failed: list[tuple[bytes, GatewayError]] = []
        self.exits: list[Exit] = []

    def backend_sent(self, line: bytes) -> None:
        self.heard.append(json.loads(line))

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self.heard.append({"oversized": beginning})

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        self.failed.append((call, error))

    def backend_exited(self, exit: Exit) -> None:
        self.exits.append(exit)


class Rig:
    """One connection; `processes` are those that it had."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.leases = [FakeLease(FakeConnection())]
        self.error: GatewayError | None = None
        self.may_start = anyio.Event()
        self.may_start.set()
        self.session = Listener()
        first: Any = self.leases[0]
        self.connection = RespawningConnection(first, self._again, tasks, 60.0)
        self.connection.attach(self.session)

    async def _again(self) -> Any:
        await self.may_start.wait()
        if self.error is not None:
            raise self.error
        self.leases.append(FakeLease(FakeConnection()))
        return self.leases[-1]

    @property
    def process(self) -> FakeConnection:
        return self.leases[-1].connection

    def send(self, **message: Any) -> None:
        self.connection.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def open(self) -> None:
        self.send(id=1, method="initialize", params={})
        self.process.answer({"capabilities": {"logging": {}}})
        self.send(method="notifications/initialized")

    async def greeted(self, count: int = 2) -> None:
        """Waits until so many processes have been said hello to, and answers for the last one."""
        with anyio.fail_after(30):
            while not (len(self.leases) == count and self.process.sent):
                await checkpoint()
        self.process.answer({"capabilities": {"logging": {}}})


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(respawning, "SPACING_S", 0.0)
    async with anyio.create_task_group() as tasks:
        rig = Rig(tasks)
        yield rig
        rig.connection.release("test_over")
        rig.connection.release("again")


async def test_calls_in_flight_fail_and_what_comes_meanwhile_runs_on_the_next_process(rig: Rig) -> None:
    rig.open()
    rig.send(id=2, method="tools/call", params={"n": 2})
    rig.process.die()
    ((call, error),) = rig.session.failed
    assert (call, type(error)) == (b"2", BackendExited)
    assert rig.leases[0].released == ["backend_exited"]
    rig.send(id=3, method="tools/call", params={"n": 3})
    await rig.greeted()
    assert [each["method"] for each in rig.process.sent] == ["initialize", "notifications/initialized", "tools/call"]
    assert rig.process.sent[-1]["params"] == {"n": 3}
    assert rig.leases[1].shook_hands
    rig.process.answer({"ok": True})
    assert rig.session.heard[-1] == {"jsonrpc": "2.0", "id": 3, "result": {"ok": True}}
    assert [each.get("method") for each in rig.session.heard] == [None, "notifications/message", None]
    assert rig.session.exits == []


async def test_what_waits_is_bounded_and_can_be_cancelled(rig: Rig) -> None:
    rig.open()
    rig.may_start = anyio.Event()
    rig.process.die()
    for number in range(2, MAX_WAITING + 2):
        rig.send(id=number, method="tools/call")
    with pytest.raises(BackendBusy):
        rig.send(id=9999, method="tools/call")
    rig.send(method="notifications/cancelled", params={"requestId": 2})
    rig.send(id=9999, method="ping")
    rig.may_start.set()
    await rig.greeted()
    assert [each["id"] for each in rig.process.sent if "id" in each] == [1, *range(3, MAX_WAITING + 2), 9999]


async def test_a_death_before_the_handshake_ends_the_session(rig: Rig) -> None:
    rig.send(id=1, method="initialize", params={})
    rig.process.die()
    assert len(rig.session.exits) == 1
    with pytest.raises(BackendExited):
        rig.send(id=2, method="ping")


async def test_without_another_process_the_session_ends(rig: Rig) -> None:
    rig.open()
    rig.error = BackendUnavailable()
    rig.process.die()
    with anyio.fail_after(30):
        while not rig.session.exits:
            await checkpoint()
    assert rig.session.exits[0].reason == "signaled"


async def test_a_process_that_dies_in_the_handshake_is_tried_once_more(rig: Rig) -> None:
    rig.open()
    rig.process.die()
    with anyio.fail_after(30):
        while not (len(rig.leases) == 2 and rig.process.sent):
            await checkpoint()
        rig.process.die()
    await rig.greeted(3)
    assert rig.session.exits == []
    assert rig.leases[1].released == ["backend_exited"]
    rig.send(id=5, method="ping")
    assert rig.process.sent[-1]["id"] == 5


async def test_a_process_that_dies_right_after_its_handshake_is_replaced_too(rig: Rig) -> None:
    rig.open()
    rig.process.die()
    await rig.greeted()
    rig.process.die()
    await rig.greeted(3)
    assert rig.session.exits == []


async def test_a_process_that_refuses_the_handshake_ends_the_session(rig: Rig) -> None:
    rig.open()
    rig.process.die()
    with anyio.fail_after(30):
        while not (len(rig.leases) == 2 and rig.process.sent):
            await checkpoint()
        rig.process.say(id=1, error={"code": -1, "message": "no"})
        while not rig.session.exits:
            await checkpoint()
    assert rig.leases[1].released == ["not_initialized"]


async def test_a_session_that_closes_while_it_waits_takes_no_process(rig: Rig) -> None:
    rig.open()
    rig.may_start = anyio.Event()
    rig.process.die()
    rig.connection.release("deleted")
    rig.may_start.set()
    await anyio.wait_all_tasks_blocked()
    assert len(rig.leases) == 1
    assert rig.session.exits == []


async def test_a_pause_outlives_the_process(rig: Rig) -> None:
    rig.open()
    rig.connection.pause_reading()
    rig.process.die()
    await rig.greeted()
    assert rig.process.paused
    rig.connection.resume_reading()
    assert not rig.process.paused
