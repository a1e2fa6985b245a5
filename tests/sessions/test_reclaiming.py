"""Reclaiming: the session that has been idle for longest makes room; never one in which anything goes on."""

from dataclasses import replace
from types import SimpleNamespace

import anyio
import pytest

from app.domain import Limits, Principal
from app.errors import QuotaExceeded, SessionEnded
from app.sessions.loop_pause import GAP_S, StandstillGuard
from app.sessions.reclaiming import AGAIN_S, longest_idle
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session, SessionState
from app.telemetry.metrics import Metrics
from tests.sessions import rig
from tests.sessions.fakes import FakePool, FakeStore
from tests.sessions.test_session import ask, message

# Whoever is idle for long enough to be reclaimed is not yet idle for the registry, whose sweep runs beside the test.
TIMEOUTS = replace(rig.SPEC.timeouts, idle_s=3600.0, absolute_s=36_000.0)
SPEC = replace(rig.SPEC, timeouts=TIMEOUTS)
IDLE_S = TIMEOUTS.reclaim_idle_s
BOB = Principal("acme", "key", "bob", frozenset({"mcp:connect"}))


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(SPEC)


async def opened(registry: SessionRegistry, pool: FakePool, principal: Principal, *, idle_s: float = 0.0) -> Session:
    """A session that shook hands, and whose client has been silent for so long."""
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    session.request(message("initialize"), session.reply(1, may_stream=True))
    pool.leases[-1].connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
    session.last_seen -= idle_s
    return session


async def test_the_one_that_has_been_idle_for_longest_goes(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    sessions = [await opened(registry, pool, principal, idle_s=IDLE_S + more) for more in (10, 30, 20)]
    registry.reclaiming.reclaim(SPEC, 1)
    assert [each.state for each in sessions] == [SessionState.OPEN, SessionState.CLOSED, SessionState.OPEN]
    assert pool.leases[1].released == ["reclaimed"]


async def test_its_client_hears_why(registry: SessionRegistry, pool: FakePool, principal: Principal) -> None:
    session = await opened(registry, pool, principal, idle_s=IDLE_S)
    registry.reclaiming.reclaim(SPEC, 1)
    ended = registry.why_ended(session.id, principal, "acme", "echo")
    assert isinstance(ended, SessionEnded)
    assert ended.cause == "reclaimed"
    assert "reclaim_idle_s" in str(ended)


async def test_none_goes_that_has_not_been_idle_for_long_enough(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    session = await opened(registry, pool, principal, idle_s=IDLE_S - 100)
    assert registry.reclaiming.reclaim(SPEC, 1) == pytest.approx(100, abs=50)  # the machine may stand still meanwhile
    assert not pool.leases[-1].released
    assert registry.reclaiming.reclaim(replace(SPEC, timeouts=replace(SPEC.timeouts, reclaim_idle_s=60.0)), 1) == 60.0
    assert session.state is SessionState.CLOSED


@pytest.mark.parametrize("what", ["a call", "a question", "a task", "a stream", "another"])
async def test_none_goes_in_which_anything_goes_on(
    registry: SessionRegistry, pool: FakePool, principal: Principal, store: FakeStore, what: str
) -> None:
    store.specs["acme", "other"] = replace(SPEC, name="other")
    session = await opened(registry, pool, principal)
    connection = pool.leases[-1].connection
    if what == "a call":
        ask(session)
    elif what == "a question":
        connection.say(id="q", method="roots/list")
    elif what == "a task":
        session.request(message("tools/call", "7", task={}), session.reply(1, may_stream=False))
        connection.answer({"task": {"taskId": "t", "status": "working"}})
    elif what == "a stream":
        session.streams.open_listener()
    session.last_seen -= 2 * IDLE_S
    registry.reclaiming.reclaim(replace(SPEC, name="other") if what == "another" else SPEC, 10)
    assert session.state is SessionState.OPEN


async def test_none_goes_that_waits_for_its_process(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    pool.gate = anyio.Event()
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(registry.connect, session)
        await anyio.wait_all_tasks_blocked()
        session.last_seen -= 2 * IDLE_S
        registry.reclaiming.reclaim(SPEC, 1)
        assert session.state is SessionState.CONNECTING
        pool.gate.set()
    assert session.state is SessionState.CONNECTED


async def test_a_session_that_has_ended_its_task_may_go(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    session = await opened(registry, pool, principal)
    connection = pool.leases[-1].connection
    session.request(message("tools/call", "7", task={}), session.reply(1, may_stream=False))
    connection.answer({"task": {"taskId": "t", "status": "working"}})
    connection.say(method="notifications/tasks/status", params={"taskId": "t", "status": "completed"})
    session.last_seen -= IDLE_S
    registry.reclaiming.reclaim(SPEC, 1)
    assert session.state is SessionState.CLOSED


async def test_a_node_that_stood_still_ends_none_before_it_knows_what_it_has(
    registry: SessionRegistry, pool: FakePool, principal: Principal, guard: StandstillGuard
) -> None:
    session = await opened(registry, pool, principal, idle_s=IDLE_S)
    registry.standstill.ticked_at -= 2 * GAP_S
    assert registry.reclaiming.reclaim(SPEC, 1) == AGAIN_S
    assert not pool.leases[-1].released
    await guard.prove()
    registry.reclaiming.reclaim(SPEC, 1)
    assert session.state is SessionState.CLOSED


async def test_a_new_session_takes_the_place_of_an_idle_one(
    registry: SessionRegistry, pool: FakePool, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(sessions=2)
    idle, busy = [await opened(registry, pool, principal, idle_s=IDLE_S + more) for more in (5, 10)]
    ask(busy)
    session = await opened(registry, pool, BOB)
    assert (idle.state, busy.state, session.state) == (SessionState.CLOSED, SessionState.OPEN, SessionState.OPEN)
    assert refusals(registry) == 0
    with pytest.raises(QuotaExceeded):
        await registry.open(BOB, "acme", "echo", "streamable_http")
    assert refusals(registry) == 1


async def test_a_principal_makes_room_for_itself_with_its_own_sessions_only(
    registry: SessionRegistry, pool: FakePool, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(sessions_per_principal=1)
    others = await opened(registry, pool, BOB, idle_s=IDLE_S + 10)
    mine = await opened(registry, pool, principal)
    with pytest.raises(QuotaExceeded):
        await registry.open(principal, "acme", "echo", "streamable_http")
    mine.last_seen -= IDLE_S
    await registry.open(principal, "acme", "echo", "streamable_http")
    assert (others.state, mine.state) == (SessionState.OPEN, SessionState.CLOSED)


def refusals(registry: SessionRegistry) -> float:
    metrics: Metrics = registry._metrics
    limits = ("sessions", "sessions_per_principal", "node_sessions")
    return sum(
        metrics.registry.get_sample_value("trunkline_rate_limited_total", {"limit": each}) or 0 for each in limits
    )


class Silent:
    """As much of a Session as `longest_idle` looks at."""

    def __init__(self, since: float | None) -> None:
        self.since = self.last_seen = since
        self.exchange = SimpleNamespace(
            in_flight=int(since is None), has_questions=False, has_running_task=lambda now: False
        )
        self.streams, self.state = SimpleNamespace(listen=SimpleNamespace(attached=False)), SessionState.OPEN


@pytest.mark.parametrize(
    ("since", "count", "ripe", "next_s"),
    [
        ([], 1, [], 100.0),
        ([None, None], 1, [], 100.0),
        ([950.0], 1, [], 50.0),
        ([900.0], 1, [900.0], 100.0),
        ([880.0, 870.0, 890.0], 2, [870.0, 880.0], 0.0),
        ([880.0, 990.0], 2, [880.0], 90.0),
    ],
)
def test_when_there_may_be_another_one(since: list[float | None], count: int, ripe: list[float], next_s: float) -> None:
    sessions = [Silent(each) for each in since]
    doomed, after_s = longest_idle(sessions, count, 100.0, 1000.0)  # type: ignore[arg-type]
    assert [each.since for each in doomed] == ripe  # type: ignore[attr-defined]
    assert after_s == next_s
