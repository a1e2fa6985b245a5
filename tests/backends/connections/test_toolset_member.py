"""A member of a toolset: its start in each era, and one that is given up."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from app.backends.connections import _toolset_member as toolset_member
from app.backends.connections._toolset_member import State, ToolsetMember
from app.backends.connections.era import Era
from app.errors import BackendExited, GatewayError, UpstreamRefused
from app.processes.connection import CallListener
from app.processes.endings import Exit
from app.protocol.eras.sessionless_envelope import SESSIONLESS
from app.protocol.jsonrpc import encoded
from tests.sessions.fakes import FakeConnection, FakeLease


class Side:
    """The toolset's connection, as far as a member knows it."""

    def __init__(self) -> None:
        self.hello = {"protocolVersion": encoded("2025-11-25")}
        self.lost: list[GatewayError] = []

    def opened(self, member: int) -> list[bytes]:
        return []

    def member_sent(self, member: int, line: bytes, among: tuple[bytes, ...] | None = None) -> None: ...

    def member_sent_too_much(self, member: int, beginning: bytes, end: bytes) -> None: ...

    def member_failed(self, call: bytes, error: GatewayError) -> None: ...

    def member_lost(self, member: int, error: GatewayError, exit: Exit | None) -> None:
        self.lost.append(error)


async def test_a_process_that_comes_for_a_start_that_was_given_up_is_given_back():
    leases = [FakeLease(FakeConnection()), FakeLease(FakeConnection())]
    gates = [anyio.Event(), anyio.Event()]
    asked: list[int] = []

    async def lease() -> Any:
        number = len(asked)
        asked.append(number)
        with anyio.CancelScope(shield=True):  # it is already on its way when the start is given up
            await gates[number].wait()
        return leases[number]

    side = Side()
    async with anyio.create_task_group() as tasks:
        member = ToolsetMember(0, side, lease, tasks, 600.0, Era())
        member.send(b"one", b"1")
        await checkpoint()
        member.lose(BackendExited(), "restarted")
        member.send(b"two", b"2")
        await anyio.wait_all_tasks_blocked()
        try:
            gates[0].set()
            await anyio.wait_all_tasks_blocked()
            assert leases[0].released
            assert member.state is State.STARTING
        finally:
            gates[1].set()
        await anyio.wait_all_tasks_blocked()
        assert not leases[1].released
        member.release("closed")
        assert leases[1].released
    assert len(side.lost) == 1


ABOUT = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
OURS = {
    "protocolVersion": encoded("2025-11-25"),
    "_meta": encoded({"io.modelcontextprotocol/protocolVersion": SESSIONLESS}),
}


@asynccontextmanager
async def starting(era: Era) -> AsyncIterator[tuple[ToolsetMember, FakeConnection]]:
    """A member that is called, of a session for a client of 2026-07-28."""
    connection, side = FakeConnection(), Side()
    side.hello = OURS

    async def lease() -> Any:
        return FakeLease(connection)

    async with anyio.create_task_group() as tasks:
        member = ToolsetMember(0, side, lease, tasks, 600.0, era)
        member.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}', b"1")
        await anyio.wait_all_tasks_blocked()
        yield member, connection
        member.release("closed")


async def test_a_server_of_2026_07_28_is_spoken_to_in_it_for_a_client_that_speaks_it():
    era = Era()
    async with starting(era) as (member, connection):
        assert [each["method"] for each in connection.sent] == ["server/discover"]
        connection.say(id=connection.sent[0]["id"], result=ABOUT)
        await anyio.wait_all_tasks_blocked()
        assert (member.state, era.is_sessionless) == (State.OPEN, True)
        assert connection.sent[-1]["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == SESSIONLESS


@pytest.mark.parametrize("answer", [{"error": {"code": -32601, "message": "?"}}, {"result": {}}])
async def test_a_server_that_knows_only_handshakes_gets_one_and_is_not_asked_again(answer):
    era = Era()
    for is_known in (False, True):
        async with starting(era) as (member, connection):
            if not is_known:
                connection.say(id=connection.sent[0]["id"], **answer)
                await anyio.wait_all_tasks_blocked()
            hello = connection.sent[-1]
            assert [each["method"] for each in connection.sent] == ["server/discover", "initialize"][is_known:]
            assert "_meta" not in hello["params"]
            connection.say(
                id=hello["id"], result={"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}}
            )
            await anyio.wait_all_tasks_blocked()
            assert (member.state, era.is_sessionless) == (State.OPEN, False)
            assert connection.sent[-1]["method"] == "tools/call"


ANSWER = {"protocolVersion": "2025-11-25", "capabilities": {}}


@pytest.mark.parametrize("fails", ["ends", "is refused"])
async def test_a_server_that_does_not_outlive_the_question_gets_another_process_and_a_handshake(fails):
    leases: list[FakeLease] = []
    side, era = Side(), Era()
    side.hello = OURS

    async def lease() -> Any:
        leases.append(FakeLease(FakeConnection()))
        return leases[-1]

    async def sent(number: int, count: int) -> dict[str, Any]:
        while len(leases) <= number or len(leases[number].connection.sent) < count:
            await anyio.sleep(0.01)
        return leases[number].connection.sent[count - 1]

    async with anyio.create_task_group() as tasks:
        member = ToolsetMember(0, side, lease, tasks, 600.0, era)
        member.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}', b"1")
        with anyio.fail_after(60):
            probe = await sent(0, 1)
            listener = leases[0].connection.listener
            assert isinstance(listener, CallListener)
            if fails == "ends":
                leases[0].connection.die()
            else:
                listener.backend_failed(json.dumps(probe["id"]).encode(), UpstreamRefused("HTTP 400"))
            hello = await sent(1, 1)
            assert (probe["method"], hello["method"]) == ("server/discover", "initialize")
            leases[1].connection.say(id=hello["id"], result=ANSWER)
            assert (await sent(1, 2))["method"] == "tools/call"
        assert (member.state, era.is_sessionless, side.lost) == (State.OPEN, False, [])
        assert [each.was_probed for each in leases] == [True, False]
        assert leases[0].released
        member.release("closed")


async def test_a_server_that_never_answers_what_it_does_not_know_gets_a_handshake(monkeypatch):
    monkeypatch.setattr(toolset_member, "probe_s", lambda initialize_s: 0.01)
    async with starting(Era()) as (member, connection):
        while len(connection.sent) < 2:
            await anyio.sleep(0.01)
        assert connection.sent[-1]["method"] == "initialize"
        connection.say(id=connection.sent[0]["id"], result=ABOUT)  # too late
        connection.say(id=connection.sent[-1]["id"], result={"protocolVersion": "2025-11-25", "capabilities": {}})
        await anyio.wait_all_tasks_blocked()
        assert member.state is State.OPEN
        assert "_meta" not in connection.sent[-1]["params"]
