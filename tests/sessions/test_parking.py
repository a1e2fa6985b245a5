"""Parking: which idle sessions give their processes back, and what that counts."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from app.backends.connections import respawning
from app.backends.connections.respawning import RespawningConnection
from app.domain import BackendSpec, Limits, Principal
from app.errors import BackendBusy
from app.sessions.loop_pause import GAP_S
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session, SessionState
from tests.sessions import rig
from tests.sessions.fakes import FakeLease, FakePool, FakeStore
from tests.sessions.test_session import ask, message

PARK_S = 50.0
SPEC = replace(
    rig.SPEC, recovery="respawn", timeouts=replace(rig.SPEC.timeouts, idle_s=3600.0, absolute_s=36_000.0, park_s=PARK_S)
)


class RespawningPool(FakePool):
    """Hands out connections that outlive their process, unless the backend keeps state."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        super().__init__()
        self._tasks = tasks

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> Any:
        first: Any = await super().lease(spec, limits, principal)
        if spec.recovery == "end":
            return first
        return RespawningConnection(first, self._again, self._tasks, 5.0)

    async def _again(self) -> Any:
        return await super().lease(SPEC, Limits(), Principal("acme", "key", "k1", frozenset()))


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(SPEC)


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RespawningPool]:
    monkeypatch.setattr(respawning, "SPACING_S", 0.0)
    async with anyio.create_task_group() as tasks:
        yield RespawningPool(tasks)


@pytest.fixture
def registry(unswept: SessionRegistry) -> SessionRegistry:
    """The tests sweep."""
    return unswept


async def opened(registry: SessionRegistry, pool: FakePool, principal: Principal, *, idle_s: float = 0.0) -> Session:
    """A session that shook hands, and in which nobody has said anything for so long."""
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    session.request(message("initialize"), session.reply(1, may_stream=True))
    pool.leases[-1].connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
    session.notify(message("notifications/initialized", None))
    silent(session, idle_s)
    return session


def silent(session: Session, seconds: float) -> None:
    session.last_seen -= seconds
    session.heard_at -= seconds


def sweep(registry: SessionRegistry, session: Session) -> None:
    # A sum of floats, less one of them, can be a little less than the other.
    registry.sweeping.sweep_all(max(session.last_seen, session.heard_at) + PARK_S + 0.001)


def numbers(registry: SessionRegistry, tenant: str = "acme") -> tuple[float | None, int]:
    """The gauge, and what counts against the tenant's limit."""
    gate = registry.gates.find(tenant)
    return registry._metrics.registry.get_sample_value(
        "trunkline_sessions_parked"
    ), 0 if gate is None else gate.resting["parked"]


async def has_process(pool: FakePool, count: int) -> FakeLease:
    with anyio.fail_after(20):
        while len(pool.leases) < count or not pool.leases[-1].connection.sent:
            await anyio.lowlevel.checkpoint()
    return pool.leases[-1]


async def test_an_idle_session_is_parked_and_wakes_with_the_next_call(
    registry: SessionRegistry, pool: FakePool, principal: Principal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session = await opened(registry, pool, principal)
    registry.sweeping.sweep_all(session.last_seen + PARK_S - 1)
    assert (session.connection.rest, session.connection.process) == (None, "p1")
    sweep(registry, session)
    assert (session.connection.rest, session.connection.process, session.connection.is_without_process) == (
        "parked",
        None,
        True,
    )
    assert (session.state, pool.leases[0].released) == (SessionState.OPEN, ["parked"])
    assert numbers(registry) == (1, 1)
    sweep(registry, session)
    assert numbers(registry) == (1, 1)
    reply = ask(session)
    lease = await has_process(pool, 2)
    assert (session.connection.rest, session.connection.is_without_process) == ("parked", False)
    lease.connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
    lease.connection.answer({"tools": []})
    assert reply.outcomes
    assert (session.connection.rest, session.connection.process) == (None, "p1")
    assert numbers(registry) == (0, 0)
    metrics = registry._metrics.registry
    assert metrics.get_sample_value("trunkline_session_wakes_total", {"result": "cold"}) == 1
    assert metrics.get_sample_value("trunkline_session_wake_seconds_count") == 1
    assert [each.message for each in caplog.records] == ["session opened", "session parked", "session woken"]


@pytest.mark.parametrize("what", ["call", "question", "task", "output", "off", "stateful", "broadcast", "standstill"])
async def test_a_session_stays_in_which_anything_goes_on(
    registry: SessionRegistry, pool: FakePool, principal: Principal, store: FakeStore, what: str
) -> None:
    changed = {
        "off": replace(SPEC, timeouts=replace(SPEC.timeouts, park_s=None)),
        "stateful": replace(SPEC, recovery="end"),
        "broadcast": replace(SPEC, isolation="shared", broadcast=True),
    }
    store.specs["acme", "echo"] = changed.get(what, SPEC)
    session = await opened(registry, pool, principal)
    connection = pool.leases[-1].connection
    if what == "call":
        ask(session)
    elif what == "question":
        connection.say(id="q", method="roots/list")
    elif what == "task":
        session.request(message("tools/call", "7", task={}), session.reply(1, may_stream=False))
        connection.answer({"task": {"taskId": "t", "status": "working"}})
    elif what == "standstill":
        registry.standstill.ticked_at -= 2 * GAP_S
    now = session.last_seen + PARK_S
    if what == "output":
        silent(session, 10)
        connection.say(method="notifications/message", params={})
    registry.sweeping.sweep_all(now)
    assert (session.connection.rest, pool.leases[-1].released) == (None, [])


async def test_a_stream_that_is_open_meanwhile_stays_open(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    session = await opened(registry, pool, principal)
    session.streams.open_listener()
    sweep(registry, session)
    assert session.connection.rest == "parked"
    assert session.streams.listen.attached


async def test_no_more_are_parked_than_the_tenant_may_have(
    registry: SessionRegistry, pool: FakePool, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(parked_sessions=1)
    first, second = [await opened(registry, pool, principal, idle_s=2 * PARK_S) for _ in range(2)]
    sweep(registry, first)
    assert (first.connection.rest, second.connection.rest) == ("parked", None)
    first.close("deleted")
    assert numbers(registry) == (0, 0)
    sweep(registry, second)
    assert second.connection.rest == "parked"


async def test_a_parked_session_ends_as_others_do(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    sessions = [await opened(registry, pool, principal) for _ in range(3)]
    for session in sessions:
        sweep(registry, session)
    assert numbers(registry) == (3, 3)
    idle, old, ended = sessions
    idle.last_seen -= SPEC.timeouts.idle_s
    old.opened_at -= SPEC.timeouts.absolute_s
    ended.last_seen += 10
    registry.sweeping.sweep_all(ended.last_seen)
    assert [each.state for each in sessions] == [SessionState.CLOSED, SessionState.CLOSED, SessionState.OPEN]
    registry.close_where(lambda session: session is ended, "key_revoked")
    assert numbers(registry) == (0, 0)
    assert len(pool.leases) == 3


async def test_a_session_that_is_to_make_room_is_parked_instead(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    session = await opened(registry, pool, principal, idle_s=SPEC.timeouts.reclaim_idle_s + 1)
    registry.reclaiming.reclaim(SPEC, 1)
    assert (session.connection.rest, pool.leases[0].released) == ("parked", ["parked"])
    registry.reclaiming.reclaim(SPEC, 1)  # there is no process left to free
    assert len(registry) == 1
    assert registry.reclaiming.make_room("sessions", principal, SPEC)  # its place is another matter
    assert session.state is SessionState.CLOSED


async def test_a_draining_node_parks_nothing(registry: SessionRegistry, pool: FakePool, principal: Principal) -> None:
    session = await opened(registry, pool, principal)
    registry.take_no_more()
    sweep(registry, session)
    assert session.connection.rest is None


async def test_a_call_whose_time_is_over_while_it_waits_for_a_process_was_not_sent(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    session = await opened(registry, pool, principal)
    sweep(registry, session)
    pool.gate = anyio.Event()
    reply, other = ask(session), ask(session, id_text="9")
    session.sweep(session.last_seen + SPEC.timeouts.call_s + 1)
    for each in (reply, other):
        (failed,) = each.outcomes
        error = failed.error  # type: ignore[union-attr]
        assert (error.reason, error.outcome, error.retry_after_s) == ("backend_busy", None, 1.0)
    pool.gate.set()
    lease = await has_process(pool, 2)
    lease.connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
    assert [each["method"] for each in lease.connection.sent] == ["initialize", "notifications/initialized"]
    assert (session.state, session.connection.rest) == (SessionState.OPEN, None)


async def test_a_call_without_a_process_fails_and_may_be_tried_again(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> None:
    session = await opened(registry, pool, principal)
    sweep(registry, session)
    pool.error = BackendBusy("no process came free")
    reply = ask(session)
    with anyio.fail_after(20):
        await reply.outcome
    (failed,) = reply.outcomes
    error = failed.error  # type: ignore[union-attr]
    assert (error.reason, error.outcome, error.retry_after_s) == ("backend_busy", None, 1.0)
    assert (session.state, session.connection.rest, numbers(registry)) == (SessionState.OPEN, "parked", (1, 1))
    wakes = registry._metrics.registry.get_sample_value("trunkline_session_wakes_total", {"result": "failed"})
    assert wakes == 1
