"""A member of a toolset whose start is given up, and started again before that has come to its end."""

from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from app.errors import BackendExited, GatewayError
from app.links.toolset_member import State, ToolsetMember
from app.processes.link import Exit
from app.protocol.jsonrpc import encoded
from tests.sessions.fakes import FakeLease, FakeLink


class Side:
    """The toolset's link, as far as a member knows it."""

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
    leases = [FakeLease(FakeLink()), FakeLease(FakeLink())]
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
        member = ToolsetMember(0, side, lease, tasks, 5.0)
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
