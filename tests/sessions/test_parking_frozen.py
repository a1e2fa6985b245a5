"""Parking of sessions whose servers keep state: which processes stand still, and what that counts."""

from dataclasses import replace
from typing import Any

import pytest

from app.backends.connections._stopping import StoppingConnection
from app.domain import BackendSpec, Limits, Principal
from app.sessions.loop_pause import GAP_S
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session, SessionState
from tests.backends.connections.test_stopping import Process
from tests.sessions import rig
from tests.sessions.fakes import FakeLease, FakePool, FakeStore
from tests.sessions.test_parking import PARK_S, opened, registry, silent, sweep
from tests.sessions.test_session import ask, message

__all__ = ["registry"]

SPEC = replace(rig.SPEC, timeouts=replace(rig.SPEC.timeouts, idle_s=3600.0, absolute_s=36_000.0, park_s=PARK_S))


class FreezingPool(FakePool):
    """Hands out connections whose processes can be stopped."""

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> Any:
        self.leases.append(lease := FakeLease(process := Process()))
        return StoppingConnection(lease, process)

    def process(self, place: int = -1) -> Process:
        found = self.leases[place].connection
        assert isinstance(found, Process)
        return found


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(SPEC)


@pytest.fixture
def pool() -> FreezingPool:
    return FreezingPool()


def sample(registry: SessionRegistry, name: str, **labels: str) -> float | None:
    return registry._metrics.registry.get_sample_value(name, labels)


def numbers(registry: SessionRegistry) -> tuple[float | None, int]:
    """The gauge, and what counts against the tenant's limit."""
    gate = registry.gates.find("acme")
    return sample(registry, "trunkline_sessions_frozen"), 0 if gate is None else gate.resting["frozen"]


async def test_an_idle_session_is_frozen_and_thawed_by_the_next_call(
    registry: SessionRegistry, pool: FreezingPool, principal: Principal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session = await opened(registry, pool, principal)
    registry.sweeping.sweep_all(session.last_seen + PARK_S - 1)
    assert numbers(registry) == (0, 0)
    sweep(registry, session)
    assert (session.connection.rest, session.connection.process, session.connection.is_without_process) == (
        "frozen",
        "p1",
        False,
    )
    assert (session.state, pool.leases[0].released) == (SessionState.OPEN, [])
    assert numbers(registry) == (1, 1)
    assert pool.process().done() == "freeze"
    sweep(registry, session)
    assert (numbers(registry), pool.process().orders) == ((1, 1), [])
    reply = ask(session)
    pool.process().answer({"tools": []})
    assert reply.outcomes
    assert pool.process().done() == "thaw"
    assert (session.connection.rest, numbers(registry)) == (None, (0, 0))
    assert sample(registry, "trunkline_session_freezes_total", result="frozen") == 1
    assert sample(registry, "trunkline_session_thaws_total", result="thawed") == 1
    assert sample(registry, "trunkline_session_thaw_seconds_count") == 1
    assert [each.message for each in caplog.records] == ["session opened", "session frozen", "session thawed"]


@pytest.mark.parametrize("what", ["call", "question", "task", "output", "off", "shared", "standstill"])
async def test_a_session_runs_in_which_anything_goes_on(
    registry: SessionRegistry, pool: FreezingPool, principal: Principal, store: FakeStore, what: str
) -> None:
    changed = {
        "off": replace(SPEC, timeouts=replace(SPEC.timeouts, park_s=None)),
        "shared": replace(SPEC, isolation="shared"),
    }
    store.specs["acme", "echo"] = changed.get(what, SPEC)
    session = await opened(registry, pool, principal)
    process = pool.process()
    if what == "call":
        ask(session)
    elif what == "question":
        process.say(id="q", method="roots/list")
    elif what == "task":
        session.request(message("tools/call", "7", task={}), session.reply(1, may_stream=False))
        process.answer({"task": {"taskId": "t", "status": "working"}})
    elif what == "standstill":
        registry.standstill.ticked_at -= 2 * GAP_S
    now = session.last_seen + PARK_S
    if what == "output":
        silent(session, 10)
        process.say(method="notifications/message", params={})
    registry.sweeping.sweep_all(now)
    assert (session.connection.rest, process.orders) == (None, [])


async def test_no_more_are_frozen_than_the_tenant_may_have(
    registry: SessionRegistry, pool: FreezingPool, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(frozen_sessions=1, parked_sessions=0)
    first, second = [await opened(registry, pool, principal, idle_s=2 * PARK_S) for _ in range(2)]
    sweep(registry, first)
    assert (first.connection.rest, second.connection.rest) == ("frozen", None)
    first.close("deleted")
    assert numbers(registry) == (0, 0)
    sweep(registry, second)
    assert second.connection.rest == "frozen"


async def test_a_frozen_session_ends_as_others_do(
    registry: SessionRegistry, pool: FreezingPool, principal: Principal
) -> None:
    sessions = [await opened(registry, pool, principal) for _ in range(4)]
    for session in sessions:
        sweep(registry, session)
    assert numbers(registry) == (4, 4)
    idle, old, ended, died = sessions
    idle.last_seen -= SPEC.timeouts.idle_s
    old.opened_at -= SPEC.timeouts.absolute_s
    for each in (ended, died):
        each.last_seen += 10
    registry.sweeping.sweep_all(ended.last_seen)
    assert [each.state for each in sessions[:2]] == [SessionState.CLOSED] * 2
    registry.close_where(lambda session: session is ended, "key_revoked")
    pool.process().die()
    assert died.state is SessionState.CLOSED
    assert numbers(registry) == (0, 0)
    for place in range(4):
        pool.process(place).done()  # what was ordered before comes too late to matter
    assert numbers(registry) == (0, 0)


async def test_a_session_that_is_to_free_its_process_ends_as_its_state_is_in_it(
    registry: SessionRegistry, pool: FreezingPool, principal: Principal
) -> None:
    for is_frozen in (False, True):
        session = await opened(registry, pool, principal)
        if is_frozen:
            sweep(registry, session)
        silent(session, SPEC.timeouts.reclaim_idle_s + 1)
        registry.reclaiming.reclaim(SPEC, 1)
        assert (session.state, numbers(registry)) == (SessionState.CLOSED, (0, 0))


async def test_a_draining_node_freezes_nothing(
    registry: SessionRegistry, pool: FreezingPool, principal: Principal
) -> None:
    session = await opened(registry, pool, principal)
    registry.take_no_more()
    sweep(registry, session)
    assert session.connection.rest is None


async def test_what_the_kernel_does_not_stop_is_counted_and_runs(
    registry: SessionRegistry, pool: FreezingPool, principal: Principal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session = await opened(registry, pool, principal)
    sweep(registry, session)
    pool.process().done(16)
    assert (session.connection.rest, numbers(registry)) == (None, (0, 0))
    sweep(registry, session)
    assert pool.process().orders == []
    assert sample(registry, "trunkline_session_freezes_total", result="refused") == 1
    assert caplog.records[-1].message == "session not frozen"


async def test_what_cannot_go_on_ends_with_its_session_and_its_call_is_told(
    registry: SessionRegistry, pool: FreezingPool, principal: Principal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session: Session = await opened(registry, pool, principal)
    sweep(registry, session)
    pool.process().done()
    reply = ask(session)
    pool.process().done(13)
    assert pool.process().killed_for == ["could not be thawed"]
    pool.process().die()
    (failed,) = reply.outcomes
    assert failed.error.reason == "backend_exited"  # type: ignore[union-attr]
    assert (session.state, numbers(registry)) == (SessionState.CLOSED, (0, 0))
    assert sample(registry, "trunkline_session_thaws_total", result="failed") == 1
    assert "session not thawed: its process is ended" in [each.message for each in caplog.records]
