"""SessionTakeover: whose session may be taken, by one request for all, and what is left where that comes to nothing."""

import logging
from dataclasses import replace

import anyio
import pytest

from app.domain import Principal
from app.errors import QuotaExceeded, RoutesUnavailable, SessionNotFound, StorageUnavailable
from app.sessions import ownership
from app.sessions.routes import Route
from app.sessions.session import Session, SessionState
from app.sessions.session_ids import session_key
from app.sessions.sessionless.pooled_sessions import Caller
from tests.cluster.rig import HERE, THERE, Cluster
from tests.sessions.fakes import FakeStore


def caller(principal: Principal, backend: str = "stateless", tenant: str = "acme") -> Caller:
    return Caller(principal, tenant, backend)


async def left_behind(cluster: Cluster) -> tuple[str, Route]:
    """A durable session of THERE, which is dead: its id and its route."""
    session = await cluster.open("stateless")
    assert session.journal is not None
    await cluster.durability._writer.flush(session.journal)
    key = session_key(session.id)
    cluster.ownership._forget(key)
    session.close("handed_over")  # nothing is written down any more
    mine = (await cluster.store.find(key)).route
    assert mine is not None
    await cluster.store.release(mine)
    return session.id, await cluster.elsewhere_then_dead(session.id)


async def take(cluster: Cluster, session_id: str, route: Route, asked_by: Caller | None = None) -> Session | None:
    whose = asked_by or caller(cluster.principal)
    return await cluster.take_over(session_id, route, whose, lambda: cluster.registry.get(session_id, *whose[:3]))


def results(cluster: Cluster) -> dict[str, float]:
    (family,) = cluster.metrics.takeovers.collect()
    return {each.labels["result"]: each.value for each in family.samples if each.name.endswith("_total") and each.value}


async def test_a_durable_session_goes_on_here(cluster):
    session_id, route = await left_behind(cluster)
    session = await take(cluster, session_id, route)
    assert (session.id, session.state, session.principal.identity) == (
        session_id, SessionState.OPEN, cluster.principal.identity,
    )  # fmt: skip
    taken = await cluster.route_of(session)
    assert (taken.node, taken.token) == (HERE, 2)
    assert [each.key for each in cluster.ownership] == [route.key]
    assert results(cluster) == {"restored": 1}
    assert not cluster.take_over.is_under_way(route.key)


async def test_the_log_says_from_which_node_and_how_long_it_took(cluster, caplog):
    caplog.set_level(logging.INFO)
    session_id, route = await left_behind(cluster)
    caplog.clear()
    await take(cluster, session_id, route)
    lines = {each.getMessage(): vars(each) for each in caplog.records}
    taken, opened = lines["took over a session"], lines["session opened"]
    assert taken["from_node"] == THERE
    assert 0 <= taken["ms"] < 10_000
    assert opened["how"] == "taken over"
    assert not {"backend_process", "start", "waited_ms", "opened_ms"} & set(opened)


async def test_the_log_says_with_which_node_a_session_ended(cluster, caplog):
    caplog.set_level(logging.INFO)
    route = await cluster.elsewhere_then_dead("s", backend="echo")
    with pytest.raises(SessionNotFound):
        await take(cluster, "s", route, caller(cluster.principal, "echo"))
    (line,) = [vars(each) for each in caplog.records if "ended with its node" in each.getMessage()]
    assert line["from_node"] == THERE


async def test_a_session_that_was_handed_over_names_no_node_in_the_log(cluster, caplog):
    caplog.set_level(logging.INFO)
    session_id, route = await left_behind(cluster)
    await cluster.store.release(route, hand_over=True)
    await take(cluster, session_id, (await cluster.store.find(route.key)).route)
    (line,) = [vars(each) for each in caplog.records if each.getMessage() == "took over a session"]
    assert "from_node" not in line


async def test_nobody_else_takes_a_session_over_nor_ends_it(cluster):
    """Not a stranger, and not its principal at the address of another backend, where other scopes are asked for."""
    session_id, route = await left_behind(cluster)
    strangers = [
        caller(Principal("acme", "key", "eve", cluster.principal.scopes)),
        caller(cluster.principal, backend="echo"),
        caller(cluster.principal, tenant="zenith"),
    ]
    for stranger in strangers:
        with pytest.raises(SessionNotFound):
            await take(cluster, session_id, route, stranger)
    assert (await cluster.store.find(route.key)).route == route
    assert "take_over" not in cluster.store.asked
    assert await take(cluster, session_id, route) is not None


async def test_of_many_requests_one_takes_over_and_all_get_the_session(cluster):
    session_id, route = await left_behind(cluster)
    taken: list[Session | None] = []

    async def ask() -> None:
        taken.append(await take(cluster, session_id, route))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
    assert len(taken) == 20
    assert len({id(each) for each in taken}) == 1
    assert cluster.store.asked.count("take_over") == 1
    assert not cluster.take_over._under_way


async def test_those_who_wait_and_leave_keep_the_others_in_order(cluster):
    session_id, route = await left_behind(cluster)
    cluster.store.hold()
    taken: list[Session | None] = []

    async def ask() -> None:
        taken.append(await take(cluster, session_id, route))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as impatient:
            impatient.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            impatient.cancel_scope.cancel()
        assert cluster.take_over.is_under_way(route.key)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        cluster.store.let_go()
    assert len(taken) == 2
    assert taken[0] is taken[1]
    assert cluster.store.asked.count("take_over") == 1
    assert not cluster.take_over._under_way


async def test_one_that_is_cancelled_half_way_leaves_the_session_to_the_next(cluster):
    session_id, route = await left_behind(cluster)
    cluster.store.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, cluster, session_id, route)
        await cluster.store.is_asked(1)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    cluster.store.let_go()
    assert not cluster.take_over._under_way
    assert len(cluster.registry) == len(cluster.ownership) == 0
    assert await cluster.ownership.flush(20)
    freed = (await cluster.store.find(route.key)).route
    assert freed == replace(route, node="", url="", token=2)
    assert (await take(cluster, session_id, freed)).state is SessionState.OPEN


async def test_one_whose_answer_is_lost_leaves_the_session_to_the_next(cluster, monkeypatch):
    monkeypatch.setattr(ownership, "RELEASE_AGAIN_S", 0.001)
    session_id, route = await left_behind(cluster)
    cluster.store.loses_answers = True
    with pytest.raises(RoutesUnavailable):
        await take(cluster, session_id, route)
    cluster.store.loses_answers = False
    assert cluster.ownership.holds(route.key)  # whoever asks meanwhile is told to wait, and not that it is gone
    assert await cluster.ownership.flush(20)
    freed = (await cluster.store.find(route.key)).route
    assert (await take(cluster, session_id, freed)).state is SessionState.OPEN


async def test_who_comes_second_looks_it_up_again(cluster):
    session_id, route = await left_behind(cluster)
    await cluster.store.take_over(route, "c" * 16, "http://c")
    assert await take(cluster, session_id, route) is None
    assert results(cluster) == {"lost_race": 1}
    assert len(cluster.ownership) == 0


@pytest.mark.parametrize(("backend", "transport"), [("echo", "streamable_http"), ("stateless", "sse")])
async def test_a_session_that_cannot_go_on_has_ended_with_its_node(cluster, backend, transport):
    route = await cluster.elsewhere_then_dead("s", backend=backend, transport=transport)
    with pytest.raises(SessionNotFound):
        await take(cluster, "s", route, caller(cluster.principal, backend))
    assert await cluster.ownership.flush(20)
    assert (await cluster.store.find(route.key)).route is None
    assert results(cluster) == {"ended": 1}
    assert not cluster.take_over._under_way


async def test_a_session_of_which_nothing_was_written_down_has_ended(cluster):
    route = await cluster.elsewhere_then_dead("s")
    with pytest.raises(SessionNotFound):
        await take(cluster, "s", route)
    assert await cluster.ownership.flush(20)
    assert (await cluster.store.find(route.key)).route is None


async def test_a_session_of_a_backend_that_is_gone_has_ended(cluster, store: FakeStore, directory):
    session_id, route = await left_behind(cluster)
    del store.specs["acme", "stateless"]
    directory.forget("acme", "stateless")
    with pytest.raises(SessionNotFound):
        await take(cluster, session_id, route)
    assert results(cluster) == {"ended": 1}


async def test_what_is_not_to_be_had_now_is_free_for_whoever_asks_next(cluster):
    session_id, route = await left_behind(cluster)
    cluster.registry._max_sessions = 0
    with pytest.raises(QuotaExceeded):
        await take(cluster, session_id, route)
    cluster.registry._max_sessions = 50
    cluster.journals.is_away = True
    assert await cluster.ownership.flush(20)
    freed = (await cluster.store.find(route.key)).route
    assert (freed.node, freed.token) == ("", 2)
    with pytest.raises(RoutesUnavailable):
        await take(cluster, session_id, freed)
    cluster.journals.is_away = False
    assert await cluster.ownership.flush(20)
    freed = (await cluster.store.find(route.key)).route
    assert results(cluster) == {"failed": 2}
    assert (await take(cluster, session_id, freed)).id == session_id


async def test_a_living_owner_keeps_its_session(cluster):
    route = await cluster.elsewhere()
    assert route.node == THERE
    assert await take(cluster, "elsewhere", route) is None


@pytest.mark.parametrize("how", ["no answer", "cancelled"])
async def test_a_session_whose_backend_cannot_be_looked_up_again_is_left_to_the_next(cluster, store, directory, how):
    """The backend is changed while its session is read, and the database does not answer. The route is free afterwards:
    so nobody may have the session here, while another node has it too."""
    session_id, route = await left_behind(cluster)
    rebuild, find, never = cluster.take_over._rebuild, directory._get_backend, anyio.Event()

    async def find_later(*key):
        if how == "no answer":
            raise StorageUnavailable
        never.set()
        await anyio.sleep_forever()

    async def rebuild_while_it_changes(*args):
        session = await rebuild(*args)
        directory.forget("acme", "stateless")
        directory._get_backend = find_later
        return session

    cluster.take_over._rebuild = rebuild_while_it_changes
    async with anyio.create_task_group() as tasks:
        if how == "cancelled":
            tasks.start_soon(take, cluster, session_id, route)
            await never.wait()
            tasks.cancel_scope.cancel()
        else:
            with pytest.raises(StorageUnavailable):
                await take(cluster, session_id, route)
    assert len(cluster.registry) == len(cluster.ownership) == 0
    assert results(cluster) == {"failed": 1}
    cluster.take_over._rebuild, directory._get_backend = rebuild, find
    assert await cluster.ownership.flush(5)
    freed = (await cluster.store.find(route.key)).route
    assert (freed.node, freed.token) == ("", 2)
    session = await take(cluster, session_id, freed)
    assert (session.id, session.state) == (session_id, SessionState.OPEN)
    assert (await cluster.route_of(session)).token == 3
