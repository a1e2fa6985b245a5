"""Ownership: claims, releases, and what becomes of both when the store is away or somebody is in a hurry."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from app.domain import Limits, Principal
from app.errors import QuotaExceeded, RoutesUnavailable
from app.sessions import ownership
from app.sessions.ownership import Ownership
from app.sessions.routes import Route, caller_key
from app.sessions.session_ids import session_key
from tests.cluster.routing.rig import open_store, record
from tests.sessions.fakes import HeldStore

A, B = "a" * 16, "b" * 16
URL_A, URL_B = record(A).url, record(B).url
ALICE = Principal("acme", "key", "alice", frozenset())
UNLIMITED = Limits(sessions=None, sessions_per_principal=None)


@pytest.fixture
async def store() -> HeldStore:
    store = HeldStore()
    await store.beat(record(A))
    return store


@pytest.fixture
async def owned(store: HeldStore, lost: list[Any]) -> AsyncIterator[Ownership]:
    async with Ownership(store, A, URL_A, on_session_lost=lost.append, on_caller_lost=lost.append) as owned:
        yield owned


async def claim(owned: Ownership, session_id: str = "s", limits: Limits = UNLIMITED) -> None:
    await owned.claim_session(session_id, ALICE, "acme", "echo", "streamable_http", limits)


async def route_of(store: HeldStore, session_id: str = "s") -> Route | None:
    return (await store.find(session_key(session_id))).route


@pytest.fixture
def lost() -> list[Any]:
    """Ids of sessions and routes of callers that another node has."""
    return []


async def test_a_session_is_owned_from_its_claim_to_its_release(owned, store):
    await claim(owned)
    assert (await route_of(store)).node == A
    assert [route.key for route in owned] == [session_key("s")]
    owned.release(session_key("s"))
    assert len(owned) == 0
    assert owned.holds(session_key("s"))  # on its way out
    owned.release(session_key("s"))
    assert await owned.flush(20)
    assert await route_of(store) is None
    assert not owned.holds(session_key("s"))


async def test_it_is_known_for_a_while_which_sessions_have_ended_here(owned, monkeypatch):
    monkeypatch.setattr(ownership, "MAX_ENDED", 2)
    for session_id in ("handed over", "first", "second", "third", "open"):
        await claim(owned, session_id)
    owned.release(session_key("handed over"), hand_over=True)
    for session_id in ("first", "second", "third"):
        owned.release(session_key(session_id))
    ended = [each for each in ("handed over", "first", "second", "third", "open") if owned.has_ended(session_key(each))]
    assert ended == ["second", "third"]


async def test_a_session_that_came_back_has_not_ended(owned):
    await claim(owned)
    owned.release(session_key("s"))
    await claim(owned)
    assert not owned.has_ended(session_key("s"))


async def test_what_is_refused_is_not_said_to_be_ours(owned, store):
    limits = Limits(sessions=1)
    await claim(owned, "first", limits)
    store.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refused, owned, limits)
        await store.is_asked(2)
        await store.refresh(list(owned))  # a heartbeat, while the refusal is on its way
        store.let_go()
    assert await route_of(store, "second") is None
    assert len(owned) == 1


async def refused(owned: Ownership, limits: Limits) -> None:
    with pytest.raises(QuotaExceeded) as caught:
        await claim(owned, "second", limits)
    assert caught.value.limit == "sessions"


async def test_a_claim_whose_answer_is_lost_is_released(owned, store):
    store.loses_answers = True
    with pytest.raises(RoutesUnavailable):
        await claim(owned)
    assert await route_of(store) is not None
    store.loses_answers = False
    assert await owned.flush(20)
    assert await route_of(store) is None
    assert len(owned) == 0


async def test_a_route_that_somebody_doubts_is_asked_for_until_the_store_answers(owned, store, lost, monkeypatch):
    monkeypatch.setattr(ownership, "RELEASE_AGAIN_S", 0.01)
    for session_id in ("kept", "taken"):
        await claim(owned, session_id)
    taken = await route_of(store, "taken")
    store._routes[taken.key] = taken.owned_by(B, URL_B)
    asked, refresh = 0, store.refresh

    async def flaky(routes):
        nonlocal asked
        asked += 1
        if asked <= 3:
            raise RoutesUnavailable
        return await refresh(routes)

    store.refresh = flaky
    for session_id in ("kept", "taken", "taken", "another's"):
        owned.doubt(session_key(session_id))
    with anyio.fail_after(20):
        while not lost or owned._doubted:
            await anyio.sleep(0.005)
    assert (lost, asked) == (["taken"], 5)  # twice by each in vain, but for one
    assert [route.key for route in owned] == [session_key("kept")]


async def test_a_claim_that_is_cancelled_is_released(owned, store):
    store.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(claim, owned)
        await store.is_asked(1)
        tasks.cancel_scope.cancel()
    store.let_go()
    assert await owned.flush(20)
    assert await route_of(store) is None
    assert len(owned) == 0


async def test_a_session_that_ends_while_it_is_claimed_leaves_no_count_in_redis(empty_redis):
    """The release must come after the claim's answer: the count of what is here would include it for ever."""
    one = Limits(sessions=1)
    async with open_store(empty_redis) as store, Ownership(store, A, URL_A) as owned:
        await store.beat(record(A))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(claim, owned, "s", one)
            await anyio.lowlevel.checkpoint()
            owned.release(session_key("s"))
        owned.release(session_key("s"))
        assert await owned.flush(20)
        for _ in range(2):
            await store.beat(record(A))
        await claim(owned, "t", one)


async def test_releases_are_carried_out_when_the_store_is_back(owned, store, monkeypatch):
    monkeypatch.setattr(ownership, "RELEASE_AGAIN_S", 0.001)
    for number in range(40):
        await claim(owned, f"s{number}")
    store.is_away = True
    for number in range(40):
        owned.release(session_key(f"s{number}"))
    assert not await owned.flush(0.05)
    store.is_away = False
    assert await owned.flush(20)
    assert [await route_of(store, f"s{number}") for number in range(40)] == [None] * 40
    assert await owned.flush(0)


async def test_so_many_releases_wait_and_no_more(owned, store, monkeypatch):
    monkeypatch.setattr(ownership, "MAX_RELEASES", 3)
    store.is_away = True
    for number in range(5):
        owned._keep(route_for(f"s{number}"), f"s{number}")
        owned.release(session_key(f"s{number}"))
    assert (len(owned), len(owned._leaving)) == (0, 3)


def route_for(session_id: str, node: str = A, token: int = 1) -> Route:
    url = record(node).url if node else ""
    return Route(session_key(session_id), node, url, token, "acme", "echo", ALICE.identity, "streamable_http")


async def test_leaving_it_waits_for_no_release(store):
    async with Ownership(store, A, URL_A) as owned:
        await claim(owned)
        store.hold()
        owned.release(session_key("s"))
    await owned.__aexit__()


async def test_what_is_handed_over_is_free_for_the_next_owner(owned, store):
    await claim(owned)
    owned.release(session_key("s"), hand_over=True)
    assert await owned.flush(20)
    freed = await route_of(store)
    assert (freed.node, freed.token) == ("", 1)
    assert (await owned.take_over(freed, "s")).token == 2
    assert [(route.node, route.token) for route in owned] == [(A, 2)]


async def test_a_take_over_whose_answer_is_lost_frees_the_route_again(owned, store):
    """Otherwise it would be ours in the store, and nowhere: a 404 for a session that could go on."""
    await store.claim(route_for("s", B), None)
    store.loses_answers = True
    with pytest.raises(RoutesUnavailable):
        await owned.take_over(route_for("s", B), "s")
    assert (await route_of(store)).node == A
    assert owned.holds(session_key("s"))
    store.loses_answers = False
    assert await owned.flush(20)
    freed = await route_of(store)
    assert (freed.node, freed.token) == ("", 2)


async def test_a_take_over_that_is_tried_again_is_not_undone_by_the_first_ones_release(owned, store, monkeypatch):
    monkeypatch.setattr(ownership, "RELEASE_AGAIN_S", 0.001)
    theirs = route_for("s", B)
    await store.claim(theirs, None)
    store.loses_answers = True
    with pytest.raises(RoutesUnavailable):
        await owned.take_over(theirs, "s")
    store.loses_answers = False
    assert await owned.take_over(theirs, "s") == route_for("s", A, token=2)
    assert await owned.flush(20)
    assert await route_of(store) == route_for("s", A, token=2)


async def test_whoever_was_quicker_has_it(owned, store):
    theirs = route_for("s", B)
    await store.claim(theirs, None)
    await store.beat(record(B))
    assert await owned.take_over(theirs, "s") is None
    assert len(owned) == 0
    assert not owned.holds(session_key("s"))


async def test_a_lost_session_is_told_once_and_not_released(owned, store, lost):
    await claim(owned)
    theirs = route_for("s", B, token=2)
    owned.lost(theirs)
    owned.lost(theirs)
    assert lost == ["s"]
    assert not owned.holds(session_key("s"))
    assert (await route_of(store)).token == 1


async def test_an_old_word_about_a_route_that_was_taken_back_means_nothing(owned, store, lost):
    await store.claim(route_for("s", B, token=2), None)
    await owned.take_over(route_for("s", B, token=2), "s")
    owned.lost(route_for("s", B, token=2))
    assert lost == []
    assert len(owned) == 1


async def test_callers_are_claimed_once_and_lost_by_their_route(owned, store, lost):
    mine = await owned.claim_caller(ALICE, "acme", "echo", None)
    assert mine.node == A
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(owned.claim_caller, ALICE, "acme", "echo", None)
    assert store.asked.count("claim") == 1
    theirs = mine.owned_by(B, URL_B)
    owned.lost(theirs)
    assert lost == [theirs]
    assert not owned.owns(mine.key)


async def test_another_living_nodes_caller_is_not_ours(owned, store):
    await store.beat(record(B))
    other = Ownership(store, B, URL_B)
    theirs = await other.claim_caller(ALICE, "acme", "echo", None)
    assert await owned.claim_caller(ALICE, "acme", "echo", None) == theirs
    assert not owned.holds(theirs.key)


async def test_a_caller_who_comes_back_before_the_release_stays(owned, store):
    mine = await owned.claim_caller(ALICE, "acme", "echo", None)
    owned.release(mine.key)
    again = await owned.claim_caller(ALICE, "acme", "echo", None)
    assert await owned.flush(20)
    assert owned.owns(again.key)
    assert (await store.find(caller_key(ALICE.identity, "acme", "echo"))).route == again
