"""SessionRegistry: who finds which session, limits, and the end of all of them."""

import time
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.cluster import durability
from app.domain import Limits, Principal
from app.errors import (
    BackendBusy,
    BackendNotFound,
    Overloaded,
    QuotaExceeded,
    RoutesUnavailable,
    SessionEnded,
    SessionNotFound,
    ShuttingDown,
)
from app.limits.overload import Overload, Passed
from app.protocol._notification_rate import PER_SECOND
from app.protocol.jsonrpc import Request, parse_client
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session, SessionState
from app.telemetry.metrics import Metrics
from tests.cluster.rig import Cluster, running_cluster
from tests.sessions.fakes import FakePool, FakeStore, alone
from tests.sessions.rig import MAX_SESSIONS


async def open_one(registry: SessionRegistry, principal: Principal) -> str:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    return session.id


def found(registry: SessionRegistry, session_id: str, principal: Principal) -> Session:
    session = registry.get(session_id, principal, "acme", "echo")
    assert session is not None
    return session


async def test_only_its_principal_finds_a_session(registry: SessionRegistry, principal: Principal) -> None:
    session_id = await open_one(registry, principal)
    assert found(registry, session_id, principal).id == session_id
    same = Principal("acme", "key", "k1", frozenset())  # another token of the same key
    assert found(registry, session_id, same).id == session_id
    strangers = [
        Principal("acme", "key", "k2", principal.scopes),
        Principal("acme", "https://idp", "k1", principal.scopes),
        Principal("other", "key", "k1", principal.scopes),
    ]
    messages = set()
    for stranger in strangers:
        with pytest.raises(SessionNotFound) as caught:
            registry.get(session_id, stranger, "acme", "echo")
        messages.add(str(caught.value))
    for tenant, backend in (("acme", "other"), ("other", "echo")):
        with pytest.raises(SessionNotFound) as caught:
            registry.get(session_id, principal, tenant, backend)
        messages.add(str(caught.value))
    assert registry.get("unknown", principal, "acme", "echo") is None
    assert len(messages) == 1


async def test_session_ids_carry_192_random_bits(registry: SessionRegistry, principal: Principal) -> None:
    ids = {await open_one(registry, principal) for _ in range(3)}
    assert len(ids) == 3
    assert all(len(session_id) == 8 + 1 + 32 for session_id in ids)


async def test_a_node_that_sheds_opens_no_session_and_goes_on_with_those_there_are(
    registry: SessionRegistry, principal: Principal, pool: FakePool
) -> None:
    session_id = await open_one(registry, principal)
    registry.overload.sessions = Passed("loop_lag", "the event loop is 1.5 s late")
    with pytest.raises(Overloaded):
        await registry.open(principal, "acme", "echo", "streamable_http")
    assert len(registry) == len(pool.leases) == 1
    hello = parse_client(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}')
    assert isinstance(hello, Request)
    session = found(registry, session_id, principal)
    session.request(hello, session.reply(1, may_stream=False))
    registry.overload.sessions = None
    await open_one(registry, principal)
    session.close("deleted")


async def test_who_waits_for_a_process_in_vain_is_told_when_there_is_room(
    directory: BackendDirectory, principal: Principal, pool: FakePool
) -> None:
    """While no time passes, each has a place behind the last one's."""
    pool.error = BackendBusy("no process came free in time")
    typed_pool: Any = pool
    metrics, told = Metrics("test"), list[float]()
    overload = Overload(metrics, clock=lambda: 1000.0)
    async with SessionRegistry(directory, typed_pool, metrics, alone(), max_sessions=1, overload=overload) as registry:
        for _ in range(40):
            session = await registry.open(principal, "acme", "echo", "streamable_http")
            with pytest.raises(BackendBusy) as caught:
                await registry.connect(session)
            session.close("not_initialized")
            told.append(caught.value.retry_after_s or 0.0)
    assert told == sorted(told)
    assert told[-1] > told[0] + 1


@pytest.mark.parametrize("is_removed", [True, False])
async def test_who_waits_for_a_process_of_a_backend_that_is_removed_is_told_so(
    registry: SessionRegistry, principal: Principal, pool: FakePool, store: FakeStore, directory: BackendDirectory,
    *, is_removed: bool,
) -> None:  # fmt: skip
    pool.gate = anyio.Event()
    session = await registry.open(principal, "acme", "echo", "streamable_http")

    async def remove() -> None:
        await anyio.wait_all_tasks_blocked()
        if is_removed:
            store.specs.clear()
        directory.forget("acme", "echo")
        registry.close_where(lambda each: True, "backend_removed" if is_removed else "backend_restarted")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(remove)
        with pytest.raises(BackendNotFound if is_removed else SessionEnded), anyio.fail_after(20):
            await registry.connect(session)


async def test_the_tenants_and_the_nodes_number_of_sessions_are_limits(
    registry: SessionRegistry, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(sessions=2)
    first = await open_one(registry, principal)
    await open_one(registry, principal)
    with pytest.raises(QuotaExceeded):
        await open_one(registry, principal)
    found(registry, first, principal).close("deleted")
    await open_one(registry, principal)


async def test_the_node_has_a_limit_of_its_own(
    registry: SessionRegistry, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(sessions=None)
    for _ in range(MAX_SESSIONS):
        await open_one(registry, principal)
    with pytest.raises(QuotaExceeded) as caught:
        await open_one(registry, principal)
    assert caught.value.limit == "node_sessions"


async def test_an_unknown_backend_opens_nothing(registry: SessionRegistry, principal: Principal) -> None:
    with pytest.raises(BackendNotFound):
        await registry.open(principal, "acme", "nothing", "sse")
    assert len(registry) == 0


async def test_backends_are_remembered_until_told_otherwise(
    registry: SessionRegistry, directory: BackendDirectory, principal: Principal, store: FakeStore
) -> None:
    await open_one(registry, principal)
    await open_one(registry, principal)
    assert store.asked == 1
    directory.forget("acme", "echo")
    await open_one(registry, principal)
    assert store.asked == 2


async def test_draining_refuses_new_sessions_and_waits_for_calls(
    registry: SessionRegistry, principal: Principal
) -> None:
    session_id = await open_one(registry, principal)
    session = found(registry, session_id, principal)
    assert await registry.drain(5) == 0
    assert session.state is SessionState.CLOSED
    with pytest.raises(ShuttingDown):
        await open_one(registry, principal)


async def test_leaving_the_registry_closes_every_session(
    registry: SessionRegistry, principal: Principal, pool: FakePool
) -> None:
    await open_one(registry, principal)
    await registry.__aexit__()
    assert pool.leases[0].released == ["shutdown"]
    assert len(registry) == 0


async def test_of_many_that_ask_at_once_one_asks_the_store(directory: BackendDirectory, store: FakeStore) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(directory.find, "acme", "echo")
    assert store.asked == 1


async def test_one_that_gives_up_does_not_take_the_others_with_it(
    directory: BackendDirectory, store: FakeStore
) -> None:
    found = []

    async def find() -> None:
        found.append(await directory.find("acme", "echo"))

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as impatient:
            impatient.cancel()
            await directory.find("acme", "echo")
        tasks.start_soon(find)
    assert len(found) == 1


async def test_everything_that_is_remembered_can_be_forgotten(directory: BackendDirectory, store: FakeStore) -> None:
    await directory.find("acme", "echo")
    directory.forget_everything()
    await directory.find("acme", "echo")
    assert store.asked == 2


# --- one of several nodes


async def test_a_session_that_no_other_node_would_find_is_not_opened(cluster: Cluster, principal: Principal) -> None:
    cluster.store.is_away = True
    with pytest.raises(RoutesUnavailable):
        await open_one(cluster.registry, principal)
    assert len(cluster.registry) == 0
    assert cluster.registry.gates.of("acme", Limits()).sessions == 0


async def test_what_the_store_refuses_is_counted_as_refused_by_that_limit(
    cluster: Cluster, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(sessions=1)
    await cluster.elsewhere()
    with pytest.raises(QuotaExceeded) as caught:
        await open_one(cluster.registry, principal)
    assert caught.value.limit == "sessions"
    assert len(cluster.registry) == 0
    assert sample(cluster, "trunkline_rate_limited_total", limit="sessions") == 1
    assert sample(cluster, "trunkline_sessions_closed_total", reason="not_claimed") == 1


async def test_a_session_that_is_ended_while_it_is_claimed_is_refused_and_released(
    cluster: Cluster, principal: Principal
) -> None:
    cluster.store.hold()
    refused = []

    async def try_to_open() -> None:
        with pytest.raises(ShuttingDown):
            await open_one(cluster.registry, principal)
        refused.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(try_to_open)
        await cluster.store.is_asked(1)
        cluster.registry.close_where(lambda session: True, "ended_by_administrator")
        cluster.store.let_go()
    assert refused
    assert await cluster.ownership.flush(20)
    assert not cluster.store._routes
    assert len(cluster.registry) == len(cluster.ownership) == 0


async def test_opening_that_is_cancelled_leaves_nothing(cluster: Cluster, principal: Principal) -> None:
    cluster.store.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_one, cluster.registry, principal)
        await cluster.store.is_asked(1)
        tasks.cancel_scope.cancel()
    cluster.store.let_go()
    assert await cluster.ownership.flush(20)
    assert not cluster.store._routes
    assert len(cluster.registry) == 0


async def test_a_drain_hands_durable_sessions_over_and_ends_the_others(cluster: Cluster, principal: Principal) -> None:
    registry = cluster.registry
    durable = await cluster.open("stateless")
    stateful = await cluster.open("echo")
    sessionless = await registry.open(principal, "acme", "stateless", "modern")
    assert await registry.drain(5) == 0
    assert await cluster.ownership.flush(20)
    assert [await cluster.route_of(each) for each in (stateful, sessionless)] == [None, None]
    freed = await cluster.route_of(durable)
    assert (freed.node, freed.token) == ("", 1)
    written = await cluster.durability._writer.take(freed.key, 2)
    assert written is not None
    assert written[0].principal.identity == principal.identity
    assert len(registry) == 0
    assert [session.state for session in (durable, stateful, sessionless)] == [SessionState.CLOSED] * 3


async def test_without_other_nodes_a_drain_hands_nothing_over(
    cluster: Cluster, directory: BackendDirectory, principal: Principal
) -> None:
    """(`cluster` has registered the backend.)"""
    async with running_cluster(directory, principal, is_alone=True) as node:
        session = await node.open("stateless")
        assert await node.registry.drain(5) == 0
        assert await node.ownership.flush(20)
        assert await node.route_of(session) is None


async def test_a_session_whose_last_words_get_lost_goes_on_from_what_was_written(cluster: Cluster) -> None:
    session = await cluster.open("stateless")
    cluster.journals.is_away = True
    with pytest.raises(RoutesUnavailable):
        await cluster.registry.give_away(session)
    assert await cluster.ownership.flush(20)
    assert (await cluster.route_of(session)).node == ""


async def test_a_session_that_cannot_go_on_elsewhere_stays_as_it_is(cluster: Cluster) -> None:
    session = await cluster.open("echo")
    await cluster.registry.give_away(session)
    assert session.state is SessionState.OPEN


async def test_a_new_session_is_written_down_before_its_client_hears_of_it(cluster: Cluster) -> None:
    session = await cluster.open("stateless")
    assert session.journal is not None
    assert session.journal.is_dirty
    await cluster.registry.make_safe(session)
    assert not session.journal.is_dirty
    await cluster.registry.make_safe(await cluster.open("echo"))  # which ends with its node


async def test_a_store_that_is_away_holds_up_no_new_session_for_long(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(*_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(durability, "SAFE_WITHIN_S", 0.01)
    monkeypatch.setattr(cluster.journals.inner, "write", write)
    session = await cluster.open("stateless")
    with anyio.fail_after(20):
        await cluster.registry.make_safe(session)
    assert session.journal is not None
    assert session.journal.is_dirty  # it is tried again


async def test_a_hidden_session_is_not_found_and_still_there(cluster: Cluster, principal: Principal) -> None:
    session = await cluster.open("stateless")
    cluster.registry._sessions.hide(session)
    cluster.registry._sessions.hide(session)
    assert cluster.registry.get(session.id, principal, "acme", "stateless") is None
    assert list(cluster.registry) == [session]
    assert len(cluster.registry) == 1
    cluster.registry._sessions.lost(session.id)
    assert session.state is SessionState.CLOSED
    assert len(cluster.registry) == 0


async def test_two_of_one_id_can_end_in_any_order(cluster: Cluster, principal: Principal) -> None:
    """One is being handed over, and comes back."""
    for newest_first in (False, True):
        old = await cluster.open("stateless")
        cluster.registry._sessions.hide(old)
        spec, limits = await cluster.registry._find_backend("acme", "stateless")
        new = cluster.registry.restored(old.id, principal, spec, limits, "streamable")
        assert list(cluster.registry.shown("acme").values()) == [new]
        for session in (new, old) if newest_first else (old, new):
            session.close("deleted")
        assert (len(cluster.registry), cluster.registry.shown("acme")) == (0, {})


def sample(cluster: Cluster, name: str, **labels: str) -> float | None:
    return cluster.metrics.registry.get_sample_value(name, labels)


async def test_a_change_that_was_held_back_is_told_although_no_call_runs(
    registry: SessionRegistry, principal: Principal, pool: FakePool
) -> None:
    session = found(registry, await open_one(registry, principal), principal)
    connection = pool.leases[-1].connection
    session.streams.open_listener()
    now = time.monotonic()
    with pytest.MonkeyPatch.context() as still:
        still.setattr(time, "monotonic", lambda: now)  # all of them come in the same second
        for number in range(PER_SECOND):
            connection.say(method="notifications/message", params={"data": number})
            session.streams.listen.take_all()
        connection.say(method="notifications/tools/list_changed")
        assert session.streams.listen.take_all() == []
    registry.sweeping.sweep_all(now + 1.1)
    (change,) = session.streams.listen.take_all()
    assert isinstance(change, bytes)
    assert b"list_changed" in change


async def test_a_session_is_in_the_groups_of_the_credential_that_was_used_last(
    registry: SessionRegistry, principal: Principal, pool: FakePool
) -> None:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    (lease,) = pool.leases
    for groups in (frozenset({"a"}), frozenset({"a"}), frozenset({"a", "b"}), frozenset[str]()):
        same = replace(principal, groups=groups, scopes=frozenset({"mcp:connect:echo"}), expires_at=1.0)
        assert found(registry, session.id, same).principal == replace(principal, groups=groups)
    assert [sorted(each.groups) for each in lease.callers] == [["a"], ["a", "b"], []]
    with pytest.raises(SessionNotFound):
        registry.get(session.id, replace(principal, subject="k2", groups=frozenset({"c"})), "acme", "echo")
    assert (session.principal.groups, len(lease.callers)) == (frozenset(), 3)


async def test_a_session_that_waits_for_its_process_hears_of_other_groups_too(
    registry: SessionRegistry, principal: Principal, pool: FakePool
) -> None:
    pool.gate = anyio.Event()
    session = await registry.open(replace(principal, groups=frozenset({"a"})), "acme", "echo", "http_sse")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(registry.connect, session)
            while not pool.waiting:
                await anyio.lowlevel.checkpoint()
            found(registry, session.id, principal)
            pool.gate.set()
    (lease,) = pool.leases
    assert lease.callers == [principal]
