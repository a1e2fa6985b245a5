"""Who joins which process; and what a shared process does when its pipe or a session fails."""

import json
import time
from typing import Any

import anyio
import pytest

from app.backends.connections._shared_process import FAN_OUT_S, SharedConnection, SharedProcess
from app.backends.connections.shared_processes import ENOUGH_CALLS, ENOUGH_SESSIONS, Choice, choose
from app.domain import BackendSpec, Principal
from app.errors import BackendBusy, BackendExited, BackendTimeout
from app.processes.endings import Exit
from app.telemetry.metrics import Metrics
from tests.backends.connections.test_respawning import Listener
from tests.sessions.fakes import FakeConnection


def test_the_first_session_starts_a_process_and_the_next_ones_join_it() -> None:
    assert choose([], 1) == Choice(None, True)
    assert choose([(0, 1)], 5) == Choice(0, False)
    assert choose([(3, 1), (0, 9), (0, 4)], 5) == Choice(2, False)


@pytest.mark.parametrize("busy", [(ENOUGH_CALLS, 1), (0, ENOUGH_SESSIONS)])
def test_another_process_is_started_when_the_least_busy_one_has_enough(busy: tuple[int, int]) -> None:
    assert choose([busy], 2) == Choice(0, True)
    assert choose([busy], 1) == Choice(0, False)


ANN = Principal("acme", "key", "ann", frozenset())


class Rig:
    """A greeted process with two sessions."""

    def __init__(self) -> None:
        self.pipe = FakeConnection()
        pipe: Any = self.pipe
        pipe.id, pipe.spec = "p1", BackendSpec("acme", "echo", "echo", isolation="shared")
        self.metrics = Metrics("test")
        self.process = SharedProcess(pipe, self.metrics)

    async def open(self) -> tuple[tuple[SharedConnection, Listener], tuple[SharedConnection, Listener]]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.process.greet, 60.0)
            await anyio.wait_all_tasks_blocked()
            self.pipe.answer({"protocolVersion": "2025-11-25", "capabilities": {}})
        return self.join(), self.join()

    def join(self) -> tuple[SharedConnection, Listener]:
        connection, listener = self.process.join(ANN), Listener()
        connection.attach(listener)
        return connection, listener


def send(connection: SharedConnection, **message: Any) -> None:
    connection.send(json.dumps({"jsonrpc": "2.0", **message}).encode())


async def test_a_process_is_initialised_once_by_the_gateway() -> None:
    rig = Rig()
    await rig.open()
    assert [each["method"] for each in rig.pipe.sent] == ["initialize", "notifications/initialized"]
    assert rig.process.busyness == (0, 2)


async def test_a_process_that_is_silent_or_dies_cannot_be_greeted() -> None:
    with pytest.raises(BackendTimeout):
        await Rig().process.greet(0.0)
    rig = Rig()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_die_soon, rig)
        with pytest.raises(BackendExited) as caught:
            await rig.process.greet(60.0)
    assert not caught.value.started


async def _die_soon(rig: Rig) -> None:
    await anyio.wait_all_tasks_blocked()
    rig.pipe.die()


async def test_answers_of_our_own_come_soon_and_not_from_within() -> None:
    rig = Rig()
    (connection, listener), _ = await rig.open()
    send(connection, id=1, method="ping")
    assert listener.heard == []
    await anyio.wait_all_tasks_blocked()
    assert listener.heard == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


async def test_a_pipe_that_is_full_fails_the_call_that_could_not_be_written() -> None:
    rig = Rig()
    (connection, listener), (other, other_listener) = await rig.open()
    rig.pipe.is_busy = True
    send(connection, id=1, method="tools/call", params={})
    await anyio.wait_all_tasks_blocked()
    ((call, error),) = listener.failed
    assert (call, type(error)) == (b"1", BackendBusy)
    rig.pipe.is_busy = False
    send(other, id=1, method="tools/call", params={})
    rig.pipe.answer({})
    assert other_listener.heard[-1]["id"] == 1
    assert rig.process.busyness == (0, 2)


async def test_a_session_that_fails_keeps_the_others_from_nothing() -> None:
    rig = Rig()
    (connection, listener), (_, other) = await rig.open()

    def fail(*args: object) -> None:
        raise RuntimeError

    listener.backend_exited = fail  # type: ignore[method-assign,assignment]
    rig.pipe.die()
    assert len(other.exits) == 1
    with pytest.raises(BackendExited):
        send(connection, id=1, method="ping")
    late, late_listener = rig.join()
    await anyio.wait_all_tasks_blocked()
    assert isinstance(late_listener.exits[0], Exit)
    late.release("over")
    late.release("again")


async def test_changes_are_told_to_each_session_and_not_more_often_than_now_and_then() -> None:
    rig = Rig()
    pairs = await rig.open()
    for connection, _ in pairs:
        send(connection, id=1, method="initialize", params={})
    for _ in range(100):
        rig.pipe.say(method="notifications/tools/list_changed")
    time.sleep(2 * FAN_OUT_S)  # the loop comes late, as on a busy machine: the answers are first all the same
    with anyio.fail_after(30):
        while not all(len(listener.heard) > 1 for _, listener in pairs):
            await anyio.sleep(0.01)
    for _, listener in pairs:
        assert [each.get("method") for each in listener.heard] == [None, "notifications/tools/list_changed"]


async def test_what_is_dropped_is_counted() -> None:
    rig = Rig()
    await rig.open()
    rig.pipe.say(id="q", method="roots/list")
    assert "error" in rig.pipe.sent[-1]
    sample = rig.metrics.registry.get_sample_value
    assert sample("trunkline_messages_dropped_total", {"reason": "shared_question"}) == 1


async def test_what_is_no_json_is_told_to_the_process_before_the_greeting_and_after_it() -> None:
    rig = Rig()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.process.greet, 60.0)
        await anyio.wait_all_tasks_blocked()
        rig.process.backend_sent(b"Welcome!")
        rig.pipe.answer({"protocolVersion": "2025-11-25", "capabilities": {}})
    rig.process.backend_sent(b"I am a shared server")
    rig.pipe.say(method="notifications/vendor")
    assert rig.pipe.noise == [b"Welcome!", b"I am a shared server"]
