"""StandstillDetector: a clock that stood still; and what a node does then: nothing is delivered before it is proved."""

import json
import sys
import time
from functools import partial
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import OwnershipUnknown, RoutesUnavailable
from app.sessions.loop_pause import GAP_S, PROOFS, StandstillDetector, since_boot
from app.sessions.registry import SessionRegistry
from app.sessions.routes import Route
from app.sessions.session import Session, SessionState
from app.sessions.session_ids import session_key
from app.sessions.streams.streams import Reply
from tests.sessions.fakes import FakeConnection, FakePool
from tests.sessions.test_session import ask, message


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def standstill(request: pytest.FixtureRequest) -> StandstillDetector:
    """By the test's clock, where it has one."""
    has_one = "clock" in request.fixturenames
    return StandstillDetector(request.getfixturevalue("clock") if has_one else lambda: 1000.0)


def test_a_gap_is_detected_and_resolved_by_whoever_has_asked(clock: Clock) -> None:
    standstill = StandstillDetector(clock)
    for clock.now in (100.25, 103.0, 103.25):
        assert standstill.tick()
    clock.now += GAP_S + 0.01
    assert standstill.is_detected()
    assert not standstill.tick()
    clock.now += 0.25
    assert not standstill.tick()  # and stays closed
    standstill.resolved(standstill.now())
    assert not standstill.is_detected()
    clock.now += 0.25
    assert standstill.tick()


def test_a_gap_that_is_not_too_long_closes_nothing(clock: Clock) -> None:
    standstill = StandstillDetector(clock)
    clock.now += GAP_S
    assert not standstill.is_detected()
    assert standstill.tick()


def test_a_proof_that_began_a_gap_ago_opens_nothing(clock: Clock) -> None:
    standstill = StandstillDetector(clock)
    clock.now += 10.0
    asked_at = standstill.now()
    clock.now += GAP_S + 0.01  # the node stood still once more while it was proving
    standstill.resolved(asked_at)
    assert standstill.is_detected()


@pytest.mark.skipif(sys.platform != "linux", reason="no other system says how long it slept")
def test_the_time_that_a_suspended_machine_sleeps_counts() -> None:
    assert isinstance(since_boot, partial)
    assert (since_boot.func, since_boot.args) == (time.clock_gettime, (time.CLOCK_BOOTTIME,))


class Proof:
    """Stands for the heartbeat's: waits until the test lets it go on; `lost` sessions are others' by then."""

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry
        self.may_end = anyio.Event()
        self.lost: list[Session] = []
        self.error: Exception | None = None
        self.asked = 0
        self.stood_still_at = 0.0

    async def __call__(self, stood_still_at: float) -> None:
        self.asked += 1
        self.stood_still_at = stood_still_at
        await self.may_end.wait()
        for session in self.lost:
            self._registry._sessions.lost(session.id)
        if self.error is not None:
            raise self.error


@pytest.fixture
async def proof(unswept: SessionRegistry) -> Proof:
    return Proof(unswept)


@pytest.fixture
def prove_routes(proof: Proof) -> Proof:
    return proof


async def open_session(
    registry: SessionRegistry, pool: FakePool, principal: Principal
) -> tuple[Session, FakeConnection]:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    connection = pool.leases[-1].connection
    session.request(message("initialize"), session.reply(1, may_stream=True))
    connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
    return session, connection


def stand_still(registry: SessionRegistry) -> None:
    registry.standstill.ticked_at -= 100.0


def answered(reply: Reply) -> list[Any]:
    return [json.loads(outcome.payload())["result"] for outcome in reply.outcomes]  # type: ignore[union-attr]


async def test_what_a_process_says_after_a_standstill_is_delivered_in_order_and_once(
    registry, pool, principal, proof, guard
):
    session, connection = await open_session(registry, pool, principal)
    reply = ask(session, may_stream=False)
    listener = session.streams.open_listener()
    stand_still(registry)
    for number in range(3):
        connection.say(method="notifications/message", params={"data": number})
    connection.answer({"n": 1})
    assert (reply.outcomes, listener.bytes, connection.paused) == ([], 0, True)
    proof.may_end.set()
    await guard.prove()
    assert (answered(reply), connection.paused) == ([{"n": 1}], False)
    session.deliver_held()
    await guard.prove()
    session.close("deleted")
    said = []
    while (item := await listener.next()) is not None:
        assert isinstance(item, bytes)
        said.append(json.loads(item)["params"]["data"])
    assert said == [0, 1, 2]
    assert len(reply.outcomes) == 1


async def test_a_machine_that_slept_accepts_and_delivers_nothing_before_it_has_proved(
    registry, pool, principal, proof, clock, guard
):
    """No other clock of the node has moved."""
    session, connection = await open_session(registry, pool, principal)
    reply = ask(session)
    clock.now += 3600.0
    connection.answer({"n": 1})
    with pytest.raises(RoutesUnavailable):
        ask(session)
    assert (reply.outcomes, connection.paused) == ([], True)
    proof.may_end.set()
    await guard.prove()
    assert answered(reply) == [{"n": 1}]


async def test_a_session_that_another_node_has_delivers_nothing_any_more(registry, pool, principal, proof, guard):
    session, connection = await open_session(registry, pool, principal)
    other, other_link = await open_session(registry, pool, principal)
    lost, kept = ask(session), ask(other)
    stand_still(registry)
    connection.answer({"n": 1})
    other_link.answer({"n": 2})
    proof.lost.append(session)
    proof.may_end.set()
    await guard.prove()
    assert answered(kept) == [{"n": 2}]
    assert lost.outcomes[0].error.reason == "node_lost"  # no 404: the session goes on there
    assert (session.state, pool.leases[0].released) == (SessionState.CLOSED, ["taken_over"])
    assert len(registry) == 1


async def test_of_many_that_find_a_standstill_one_proves(registry, proof, guard):
    stand_still(registry)
    proof.may_end.set()
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(guard.prove)
    assert proof.asked == 1
    assert not registry.standstill.is_detected()


async def test_the_sweep_proves_without_being_asked(registry, pool, principal, proof):
    session, connection = await open_session(registry, pool, principal)
    reply = ask(session)
    stand_still(registry)
    connection.answer({"n": 1})
    proof.may_end.set()
    with anyio.fail_after(20):
        await reply.outcome
    assert proof.asked == 1


async def test_without_a_store_the_node_goes_on(registry, pool, principal, proof, guard):
    session, connection = await open_session(registry, pool, principal)
    reply = ask(session)
    stand_still(registry)
    connection.answer({"n": 1})
    proof.error = RoutesUnavailable()
    proof.may_end.set()
    await guard.prove()
    assert answered(reply) == [{"n": 1}]


async def test_without_a_store_a_node_whose_lease_ended_in_the_gap_serves_nothing(
    registry, pool, principal, proof, guard
):
    """Another may have taken its sessions over, and may serve them now."""
    session, connection = await open_session(registry, pool, principal)
    reply = ask(session)
    stand_still(registry)
    stood_still_at = registry.standstill.ticked_at
    connection.answer({"n": 1})
    proof.error = OwnershipUnknown()
    proof.may_end.set()
    for _ in range(2):
        await guard.prove()
        with pytest.raises(RoutesUnavailable):
            ask(session)
    assert (reply.outcomes, connection.paused) == ([], True)
    assert proof.stood_still_at == stood_still_at  # the second time too
    proof.error = None
    await guard.prove()
    assert (answered(reply), connection.paused) == ([{"n": 1}], False)


async def test_time_in_which_the_store_is_waited_for_is_no_standstill(registry, proof, clock, guard, caplog):
    clock.now += 8.0
    proof.error = OwnershipUnknown()
    proof.may_end.set()
    for _ in range(3):
        await guard.prove()
        clock.now += 2.0
    said = [each for each in caplog.messages if "was stopped for" in each]
    assert [each.split(";")[0] for each in said] == ["The event loop was stopped for 8.0 s"]
    proof.error = None
    await guard.prove()
    clock.now += 5.0
    await guard.prove()
    assert len([each for each in caplog.messages if "was stopped for" in each]) == 2


async def test_who_waits_for_a_proof_that_fails_does_not_ask_once_more(registry, proof, guard):
    """Each would take two seconds, one after the other."""
    stand_still(registry)
    proof.error = OwnershipUnknown()
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(guard.prove)
        await anyio.wait_all_tasks_blocked()
        proof.may_end.set()
    assert (proof.asked, registry.standstill.is_detected()) == (1, True)


async def test_a_node_that_stands_still_again_while_it_proves_proves_again(
    registry, pool, principal, proof, clock, guard
):
    session, connection = await open_session(registry, pool, principal)
    reply = ask(session, may_stream=False)
    clock.now += 100.0
    connection.answer({"n": 1})

    async def prove(stood_still_at: float) -> None:
        proof.asked += 1
        if proof.asked == 1:
            clock.now += 100.0
        else:
            registry._sessions.lost(session.id)  # taken over in the second pause

    guard._prove_routes = prove
    await guard.prove()
    assert proof.asked == 2
    assert not registry.standstill.is_detected()
    assert reply.outcomes[0].error.reason == "node_lost"


async def test_a_node_whose_proofs_all_take_too_long_goes_on(registry, proof, clock, guard):
    clock.now += 100.0

    async def prove(stood_still_at: float) -> None:
        proof.asked += 1
        clock.now += 100.0

    guard._prove_routes = prove
    await guard.prove()
    assert (proof.asked, registry.standstill.is_detected()) == (PROOFS, False)


async def test_a_session_that_cannot_deliver_ends_and_the_others_go_on(
    registry, pool, principal, proof, caplog, monkeypatch, guard
):
    broken, connection = await open_session(registry, pool, principal)
    other, other_link = await open_session(registry, pool, principal)
    reply = ask(other)
    stand_still(registry)
    connection.say(method="notifications/message")
    other_link.answer({"n": 2})

    def fail(line: bytes, now: float) -> None:
        raise RuntimeError

    monkeypatch.setattr(broken.exchange, "receive", fail)
    proof.may_end.set()
    await guard.prove()
    assert answered(reply) == [{"n": 2}]
    assert broken.state is SessionState.CLOSED
    assert "Could not deliver" in caplog.text


async def test_a_caller_who_gives_up_leaves_the_proof_to_the_next(registry, proof, guard):
    stand_still(registry)
    with anyio.move_on_after(0.01):
        await guard.prove()
    assert registry.standstill.is_detected()
    proof.may_end.set()
    await guard.prove()
    assert not registry.standstill.is_detected()


async def test_a_route_that_is_proved_lost_is_told_by_its_session(registry, pool, principal, proof):
    """As the heartbeat says it: by the route."""
    session, _ = await open_session(registry, pool, principal)
    ownership = registry._ownership
    key = session_key(session.id)
    ownership.lost(Route(key, "b", "http://b", 2, "acme", "echo", principal.identity, "streamable_http"))
    assert session.state is SessionState.CLOSED
    assert not ownership.holds(key)
