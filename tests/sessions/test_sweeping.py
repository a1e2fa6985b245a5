"""Sweeping: calls at each sweep, everything else in turn."""

import time
from types import SimpleNamespace

import anyio
import pytest

from app.domain import Principal
from app.errors import GatewayError
from app.protocol.commands import Answer
from app.sessions import sweeping
from app.sessions.loop_pause import StandstillGuard
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session, SessionState
from app.sessions.sweeping import SHARES
from tests.sessions.fakes import FakePool
from tests.sessions.test_session import message

MANY = 3 * SHARES + 1


@pytest.fixture
def registry(unswept: SessionRegistry) -> SessionRegistry:
    """The tests sweep."""
    return unswept


async def opened(registry: SessionRegistry, pool: FakePool, principal: Principal) -> Session:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    session.request(message("initialize"), session.reply(1, may_stream=True))
    pool.leases[-1].connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
    session.notify(message("notifications/initialized", None))
    return session


async def several(registry: SessionRegistry, pool: FakePool, principal: Principal) -> list[Session]:
    return [await opened(registry, pool, principal) for _ in range(MANY)]


async def test_an_overdue_call_ends_at_the_next_sweep_of_however_many_sessions(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    sessions = await several(registry, pool, principal)
    registry.sweeping.sweep(time.monotonic())
    replies = [session.reply(1, may_stream=False) for session in sessions]
    for session, reply in zip(sessions, replies, strict=True):
        session.request(message("tools/call"), reply)
    registry.sweeping.sweep(time.monotonic() + sessions[0].spec.timeouts.call_s + 1)
    assert [session.exchange.in_flight for session in sessions] == [0] * MANY


async def test_an_answer_that_came_while_the_node_stood_still_is_read_before_its_call_is_overdue(
    registry: SessionRegistry,
    pool: FakePool,
    principal: Principal,
    guard: StandstillGuard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After SIGSTOP and SIGCONT timers come first, before what can be read."""
    session = await opened(registry, pool, principal)
    reply, clock, has_stood_still = session.reply(1, may_stream=False), time.monotonic(), False
    session.request(message("tools/call"), reply)

    async def sleep(seconds: float) -> None:
        nonlocal clock, has_stood_still
        if not has_stood_still:
            clock, has_stood_still = clock + session.spec.timeouts.call_s + 1, True
        elif not reply.outcomes:
            pool.leases[-1].connection.answer({"n": 1})
        else:
            await anyio.sleep_forever()

    monkeypatch.setattr(sweeping, "anyio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: clock))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sweeping.sweep_for_ever, registry.sweeping, guard)
        await reply.outcome
        tasks.cancel_scope.cancel()
    assert [type(each) for each in reply.outcomes] == [Answer]


async def test_each_session_is_old_enough_to_end_within_so_many_sweeps(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    sessions = await several(registry, pool, principal)
    late = time.monotonic() + sessions[0].spec.timeouts.idle_s + 1
    left = []
    for _ in range(SHARES):
        registry.sweeping.sweep(late)
        left.append(len(registry))
    assert left[-1] == 0
    assert MANY > left[0] > left[1] > left[2] > 0


async def test_a_session_that_was_opened_meanwhile_is_looked_at_in_the_next_round(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    await several(registry, pool, principal)
    registry.sweeping.sweep(time.monotonic())
    late = await opened(registry, pool, principal)
    for _ in range(2 * SHARES - 1):
        registry.sweeping.sweep(late.opened_at + late.spec.timeouts.absolute_s + 1)
    assert late.state is SessionState.CLOSED


async def test_who_has_ended_since_its_share_was_cut_is_left_alone(
    registry: SessionRegistry, pool: FakePool, principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = await several(registry, pool, principal)
    registry.sweeping.sweep(time.monotonic())
    for session in sessions:
        session.close("deleted")
    looked_at = list[Session]()
    monkeypatch.setattr(sweeping, "why_over", lambda session, now: looked_at.append(session))
    for _ in range(SHARES):
        registry.sweeping.sweep(time.monotonic())
    assert looked_at == []


async def test_a_session_that_cannot_be_swept_is_closed_and_the_others_go_on(
    registry: SessionRegistry, pool: FakePool, principal: Principal, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    broken, *others = await several(registry, pool, principal)
    reply = broken.reply(1, may_stream=False)
    broken.request(message("tools/call"), reply)

    def fail(now: float) -> None:
        raise ValueError

    monkeypatch.setattr(broken, "sweep", fail)
    registry.sweeping.sweep(time.monotonic())
    assert broken.state is SessionState.CLOSED
    assert "it is closed" in caplog.text
    registry.sweeping.sweep(time.monotonic() + broken.spec.timeouts.call_s + 1)
    assert {each.state for each in others} == {SessionState.OPEN}
    with pytest.raises(GatewayError):
        broken.request(message("tools/call"), broken.reply(1, may_stream=False))


async def test_nobody_is_kept_as_busy_for_longer_than_a_call(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    session = await opened(registry, pool, principal)
    session.request(message("tools/call"), session.reply(1, may_stream=False))
    registry.sweeping.sweep(time.monotonic())
    assert session in registry.sweeping._busy
    pool.leases[-1].connection.answer({"content": []})
    registry.sweeping.sweep(time.monotonic())
    assert session not in registry.sweeping._busy


async def test_a_session_that_has_ended_is_not_swept_again(
    registry: SessionRegistry, pool: FakePool, principal: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, swept = await opened(registry, pool, principal), list[float]()
    session.request(message("tools/call"), session.reply(1, may_stream=False))
    session.close("deleted")
    monkeypatch.setattr(session, "sweep", swept.append)
    registry.sweeping.sweep(time.monotonic())
    assert (swept, registry.sweeping._busy) == ([], set())
