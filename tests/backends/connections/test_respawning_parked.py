"""RespawningConnection that is parked: what it gives back, what it waits for, and that no message is lost or sent
twice."""

from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from app.backends.connections.respawning import MAX_WAITING
from app.backends.connections.source import Parkable
from app.errors import BackendBusy, BackendExited, BackendUnavailable, GatewayError, is_refusal
from app.protocol.handshake_record import HandshakeRecord
from tests.backends.connections.test_respawning import Rig, rig

__all__ = ["rig"]

LISTS = {"capabilities": {"logging": {}, "tools": {"listChanged": True}}}


class Keeper:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.was_warm: bool | None = None

    def stopped(self, error: OSError | None) -> None:
        raise AssertionError("only of one that was frozen")

    def woken(self, *, was_warm: bool, waited_s: float) -> None:
        assert waited_s >= 0
        self.told.append("woken")
        self.was_warm = was_warm

    def not_woken(self, error: GatewayError) -> None:
        self.told.append(error.reason)

    def gone(self) -> None:
        self.told.append("gone")


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def methods(rig: Rig) -> list[str]:
    return [each["method"] for each in rig.process.sent]


async def starting(rig: Rig, count: int = 2) -> None:
    """Waits until so many processes have been said hello to."""
    with anyio.fail_after(30):
        while not (len(rig.leases) == count and rig.process.sent):
            await checkpoint()


async def woken(rig: Rig, keeper: Keeper, count: int = 2, result: Any = None) -> None:
    await starting(rig, count)
    rig.process.answer(LISTS if result is None else result)
    assert keeper.told[-1] == "woken"


async def test_a_parked_link_has_no_process_until_the_next_call(rig: Rig, keeper: Keeper) -> None:
    assert isinstance(rig.connection, Parkable)
    rig.open()
    assert rig.connection.park(keeper)
    assert rig.leases[0].released == ["parked"]
    assert rig.connection.id == ""
    await anyio.wait_all_tasks_blocked()
    assert len(rig.leases) == 1
    rig.send(id=2, method="tools/call", params={"n": 2})
    rig.send(id=3, method="tools/call", params={"n": 3})
    await woken(rig, keeper)
    assert methods(rig) == ["initialize", "notifications/initialized", "tools/call", "tools/call"]
    assert [each["params"]["n"] for each in rig.process.sent[2:]] == [2, 3]
    assert (keeper.told, keeper.was_warm) == (["woken"], False)
    rig.process.answer({"ok": True}, to=2)
    assert rig.session.heard[-1] == {"jsonrpc": "2.0", "id": 2, "result": {"ok": True}}
    assert (rig.session.failed, rig.session.exits) == ([], [])


async def test_what_the_session_had_set_is_set_again(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    rig.send(id=2, method="logging/setLevel", params={"level": "error"})
    rig.process.answer()
    assert rig.connection.park(keeper)
    rig.send(id=3, method="ping")
    await woken(rig, keeper)
    assert methods(rig) == ["initialize", "notifications/initialized", "logging/setLevel", "ping"]


async def test_its_client_hears_that_lists_may_have_changed_but_of_no_loss(rig: Rig, keeper: Keeper) -> None:
    rig.send(id=1, method="initialize", params={})
    rig.process.answer(LISTS)
    rig.send(method="notifications/initialized")
    assert rig.connection.park(keeper)
    rig.send(id=2, method="ping")
    await woken(rig, keeper)
    assert [each.get("method") for each in rig.session.heard[1:]] == ["notifications/tools/list_changed"]
    assert rig.connection.park(keeper) is False  # a ping is under way
    rig.process.answer()
    assert rig.connection.park(keeper, with_news=False)
    rig.send(id=3, method="ping")
    await woken(rig, keeper, 3)
    assert len(rig.session.heard) == 3


@pytest.mark.parametrize("what", ["call", "question", "subscription", "pause", "answer", "hello", "initialized"])
async def test_it_is_not_parked_while_something_is_under_way(rig: Rig, keeper: Keeper, what: str) -> None:
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
        rig.process.begun = b""
    assert not rig.connection.park(keeper)
    assert (rig.leases[0].released, keeper.told) == ([], [])


async def test_it_is_parked_when_that_is_over(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    rig.send(id=2, method="resources/subscribe", params={"uri": "a:b"})
    rig.process.answer()
    rig.send(id=3, method="resources/unsubscribe", params={"uri": "a:b"})
    rig.process.answer()
    rig.process.say(id="q", method="roots/list")
    rig.send(id="q", result={})
    assert rig.connection.park(keeper)


async def test_a_lost_process_is_not_parked(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    rig.process.die()
    assert not rig.connection.park(keeper)
    await rig.greeted()
    assert rig.connection.park(keeper)
    assert not rig.connection.park(Keeper())


async def test_notifications_wake_it_and_arrive(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    assert rig.connection.park(keeper)
    rig.send(method="notifications/roots/list_changed")
    rig.send(method="notifications/roots/list_changed")
    await woken(rig, keeper)
    assert methods(rig)[2:] == ["notifications/roots/list_changed"] * 2


async def test_a_call_that_was_cancelled_meanwhile_is_not_sent(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    assert rig.connection.park(keeper)
    rig.send(id=2, method="tools/call")
    rig.send(method="notifications/cancelled", params={"requestId": 2})
    await woken(rig, keeper)
    assert methods(rig) == ["initialize", "notifications/initialized"]


async def test_what_waits_is_bounded(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    rig.may_start = anyio.Event()
    assert rig.connection.park(keeper)
    for number in range(MAX_WAITING):
        rig.send(id=number + 2, method="tools/call")
    with pytest.raises(BackendBusy):
        rig.send(id=9999, method="tools/call")
    with pytest.raises(BackendBusy):
        rig.send(method="notifications/roots/list_changed")
    rig.may_start.set()
    await woken(rig, keeper)
    assert methods(rig).count("tools/call") == MAX_WAITING


@pytest.mark.parametrize("error", [BackendBusy(), BackendExited("no such file", started=False)])
async def test_without_a_process_calls_fail_unsent_and_it_stays_parked(
    rig: Rig, keeper: Keeper, error: GatewayError
) -> None:
    rig.open()
    assert rig.connection.park(keeper)
    rig.error = error
    rig.send(id=2, method="tools/call")
    with anyio.fail_after(30):
        while not rig.session.failed:
            await checkpoint()
    ((call, failure),) = rig.session.failed
    assert call == b"2"
    assert is_refusal(failure)
    assert str(error) in str(failure)
    assert (keeper.told, rig.session.exits) == ([error.reason], [])
    rig.error = None
    rig.send(id=3, method="tools/call")
    await woken(rig, keeper)
    assert [each["id"] for each in rig.process.sent if "id" in each] == [1, 3]


async def test_one_whose_process_died_waits_for_a_place_as_a_parked_one_does(rig: Rig, keeper: Keeper) -> None:
    """Before, the session ended, where one that had been parked would have stayed."""
    rig.open()
    rig.error = BackendBusy("full")
    rig.send(id=2, method="tools/call")
    rig.process.die()
    rig.send(id=3, method="tools/call")
    with anyio.fail_after(30):
        while len(rig.session.failed) < 2:
            await checkpoint()
    assert [(call, error.reason) for call, error in rig.session.failed] == [
        (b"2", "backend_exited"),
        (b"3", "backend_busy"),
    ]
    assert (rig.session.exits, rig.connection.has_process) == ([], False)
    assert rig.connection.park(keeper)  # now it counts as one
    rig.error = None
    rig.send(id=4, method="tools/call")
    await woken(rig, keeper)
    assert [each["id"] for each in rig.process.sent if "id" in each] == [1, 4]
    assert rig.session.heard[-1]["params"]["data"].startswith("The server was restarted")


@pytest.mark.parametrize("what", ["subscription", "broadcast"])
async def test_one_that_only_a_process_could_tell_of_something_does_not_wait_for_a_place(rig: Rig, what: str) -> None:
    rig.open()
    if what == "subscription":
        rig.send(id=2, method="resources/subscribe", params={"uri": "a:b"})
        rig.process.answer()
    else:
        rig.connection._may_wait = False
    rig.error = BackendBusy("full")
    rig.process.die()
    with anyio.fail_after(30):
        while not rig.session.exits:
            await checkpoint()


async def test_processes_that_die_in_the_handshake_leave_it_parked(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    assert rig.connection.park(keeper)
    rig.send(id=2, method="tools/call")
    for count in (2, 3):
        await starting(rig, count)
        rig.process.die()
    with anyio.fail_after(30):
        while not rig.session.failed:
            await checkpoint()
    assert (rig.session.exits, keeper.told) == ([], ["backend_unavailable"])
    assert [each.released for each in rig.leases] == [["parked"], ["backend_exited"], ["backend_exited"]]
    rig.send(id=3, method="tools/call")
    await woken(rig, keeper, 4)


async def test_a_process_that_does_not_answer_the_handshake_leaves_it_parked(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    rig.connection._within_s = 0.01
    assert rig.connection.park(keeper)
    rig.send(id=2, method="tools/call")
    await starting(rig)
    with anyio.fail_after(30):
        while not rig.session.failed:
            await checkpoint()
    assert isinstance(rig.session.failed[0][1], BackendUnavailable)
    assert rig.leases[1].released == ["not_initialized"]
    rig.connection._within_s = 60.0
    rig.send(id=3, method="tools/call")
    await woken(rig, keeper, 3)


async def test_a_process_that_refuses_the_handshake_ends_the_session(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    assert rig.connection.park(keeper)
    rig.send(id=2, method="tools/call")
    await starting(rig)
    rig.process.say(id=1, error={"code": -1, "message": "no"})
    with anyio.fail_after(30):
        while not rig.session.exits:
            await checkpoint()
    assert "refused the handshake" in str(rig.session.exits[0].error())
    rig.connection.release("backend_exited")
    assert keeper.told == ["gone"]


async def test_a_bug_in_the_start_costs_no_session(rig: Rig, keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    rig.open()
    assert rig.connection.park(keeper)
    error: Any = ZeroDivisionError()
    rig.error = error
    rig.send(id=2, method="tools/call")
    with anyio.fail_after(30):
        while not rig.session.failed:
            await checkpoint()
    assert keeper.told == ["backend_unavailable"]
    assert "it stays parked" in caplog.text


@pytest.mark.parametrize("when", ["parked", "waiting", "greeting", "woken"])
async def test_a_session_that_ends_gives_back_whatever_there_is(rig: Rig, keeper: Keeper, when: str) -> None:
    rig.open()
    assert rig.connection.park(keeper)
    if when == "waiting":
        rig.may_start = anyio.Event()
    if when != "parked":
        rig.send(id=2, method="tools/call")
    if when == "greeting":
        await starting(rig)
    elif when == "woken":
        await woken(rig, keeper)
    rig.connection.release("deleted")
    rig.may_start.set()
    await anyio.wait_all_tasks_blocked()
    assert keeper.told == (["woken"] if when == "woken" else ["gone"])
    assert all(each.released for each in rig.leases)
    assert len(rig.leases) == (2 if when in ("greeting", "woken") else 1)
    with pytest.raises(BackendExited):
        rig.send(id=3, method="ping")


async def test_a_process_that_dies_at_once_after_the_handshake_is_replaced_and_nothing_runs_twice(
    rig: Rig, keeper: Keeper
) -> None:
    rig.open()
    assert rig.connection.park(keeper)
    rig.send(id=2, method="tools/call")
    await woken(rig, keeper)
    rig.process.die()
    assert [call for call, _ in rig.session.failed] == [b"2"]
    await rig.greeted(3)
    assert methods(rig) == ["initialize", "notifications/initialized"]
    assert keeper.told == ["woken"]
    assert rig.connection.park(Keeper())


async def test_another_node_has_it_parked_too(keeper: Keeper) -> None:
    async with anyio.create_task_group() as tasks:
        first = Rig(tasks)
        first.open()
        snapshot = first.connection.record.snapshot()
        assert snapshot is not None
        rig = Rig(tasks)
        rig.leases.clear()
        connection = type(rig.connection).restored(
            HandshakeRecord.restored(snapshot), rig._again, tasks, 60.0, is_parked=True
        )
        rig.connection = connection
        connection.attach(rig.session)
        await anyio.wait_all_tasks_blocked()
        assert rig.leases == []
        assert connection.park(keeper)
        assert not connection.park(Keeper())  # there is one already
        rig.send(id=7, method="tools/call")
        await woken(rig, keeper, 1)
        assert methods(rig) == ["initialize", "notifications/initialized", "tools/call"]
        connection.release("over")
        first.connection.release("over")


async def test_an_answer_that_is_too_large_is_an_answer(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    rig.send(id=2, method="tools/call")
    assert not rig.connection.park(keeper)
    rig.connection.backend_sent_too_much(b'{"jsonrpc":"2.0","result":', b',"id":2}')
    assert rig.connection.park(keeper)


async def test_it_says_when_it_has_no_process_to_give_back(rig: Rig, keeper: Keeper) -> None:
    rig.open()
    assert rig.connection.has_process
    rig.process.die()
    assert not rig.connection.has_process
    await rig.greeted()
    assert rig.connection.has_process
    assert rig.connection.park(keeper)
    assert not rig.connection.has_process
