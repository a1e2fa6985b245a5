"""Router: where a session is, whatever the store has lost of it."""

from dataclasses import replace

import pytest

from app.cluster.routing import router
from app.cluster.routing.memory_store import MemoryStore
from app.cluster.routing.router import Free, Router, There
from app.errors import RoutesUnavailable, SessionNotFound
from app.sessions.routes import Found, NodeRecord, new_node_id
from app.sessions.session_ids import tag_of
from tests.cluster.routing.rig import record, route

A, B, C, D = "a" * 16, "b" * 16, "c" * 16, "d" * 16
OF_B = f"{B[:8]}.secret"


class Store(MemoryStore):
    """Finds what it is told to."""

    found = Found(None, owner_lives=False, is_settling=False)

    async def find(self, key: str) -> Found:
        return self.found


class Rig:
    """Node A's router, which may have heard of B; `answers` is whether B does when it is probed."""

    def __init__(self) -> None:
        self.store = Store()
        self.peers: dict[str, NodeRecord] = {}
        self.departed: dict[str, NodeRecord] = {}
        self.answers, self.probed = True, 0
        self.ended: set[str] = set()
        self.router = Router(self.store, A, self.peers, self.departed, self._probe, self.ended.__contains__)

    async def _probe(self, url: str) -> str | None:
        self.probed += 1
        return B if self.answers and url == record(B).url else None


async def test_a_lost_route_is_asked_for_at_the_living_node_that_gave_the_id_out():
    rig = Rig()
    rig.peers[B] = record(B)
    assert await rig.router.locate("k", OF_B) == There(record(B))
    assert not rig.probed


async def test_a_node_whose_lease_is_lost_with_the_route_is_asked_whether_it_lives():
    rig = Rig()
    rig.departed[B] = record(B)
    assert await rig.router.locate("k", OF_B) == There(record(B))
    rig.answers = False
    with pytest.raises(SessionNotFound):
        await rig.router.locate("k", OF_B)


async def test_no_route_in_a_store_that_is_new_means_nothing_yet():
    rig = Rig()
    rig.store.found = Found(None, owner_lives=False, is_settling=True)
    with pytest.raises(RoutesUnavailable):
        await rig.router.locate("k", OF_B)
    rig.store.found = Found(None, owner_lives=False, is_settling=False)
    with pytest.raises(SessionNotFound):
        await rig.router.locate("k", OF_B)


async def test_what_has_ended_here_is_gone_however_new_the_store_is():
    rig = Rig()
    rig.ended.add("k")
    rig.store.found = Found(None, owner_lives=False, is_settling=True)
    with pytest.raises(SessionNotFound):
        await rig.router.locate("k", OF_B)
    theirs = route("k", node=B, url=record(B).url)
    rig.store.found = Found(theirs, owner_lives=True, is_settling=False)
    assert isinstance(await rig.router.locate("k", OF_B), There), "a route goes before"


async def test_an_owner_whose_lease_has_lapsed_still_owns_while_it_answers():
    rig = Rig()
    theirs = route("k", node=B, url=record(B).url)
    rig.store.found = Found(theirs, owner_lives=False, is_settling=False)
    located = await rig.router.locate("k", OF_B)
    assert isinstance(located, There)
    assert located.node.id == B
    rig.answers = False
    assert await rig.router.locate("k", OF_B) == Free(theirs)


async def test_a_living_owner_is_believed_for_a_moment_without_the_store(monkeypatch):
    monkeypatch.setattr(router, "REMEMBER_S", 60.0)
    rig = Rig()
    rig.peers[B] = record(B)
    rig.store.found = Found(route("k", node=B, url=record(B).url), owner_lives=True, is_settling=False)
    assert await rig.router.locate("k") == There(record(B))
    rig.store.found = Found(None, owner_lives=False, is_settling=False)
    assert await rig.router.locate("k") == There(record(B))
    rig.router.forget("k")
    with pytest.raises(SessionNotFound):
        await rig.router.locate("k")


async def test_what_is_remembered_is_not_believed_once_its_node_leaves_or_dies_or_it_is_old(monkeypatch):
    monkeypatch.setattr(router, "REMEMBER_S", 60.0)
    rig = Rig()
    rig.peers[B] = record(B)
    theirs = route("k", node=B, url=record(B).url)
    rig.router.remember(theirs)
    assert rig.router.remembered("k") == There(record(B))
    rig.router.forget_node(A)
    assert rig.router.remembered("k") == There(record(B))
    rig.router.forget_node(B)
    assert rig.router.remembered("k") is None
    rig.router.remember(theirs)
    del rig.peers[B]
    assert rig.router.remembered("k") is None
    monkeypatch.setattr(router, "REMEMBER_S", -1.0)
    rig.peers[B] = record(B)
    rig.router.remember(theirs)
    assert rig.router.remembered("k") is None


def test_what_is_old_makes_room_and_no_more_is_kept_than_may_be(monkeypatch):
    rig = Rig()
    monkeypatch.setattr(router, "REMEMBER_S", -1.0)
    for number in range(100):
        rig.router.remember(route(f"k{number}", node=B))
    assert len(rig.router._remembered) <= 2
    monkeypatch.setattr(router, "REMEMBER_S", 60.0)
    monkeypatch.setattr(router, "MAX_REMEMBERED", 10)
    for number in range(100):
        rig.router.remember(route(f"k{number}", node=B))
    assert len(rig.router._remembered) <= 10


async def test_a_route_of_our_own_and_one_that_was_handed_over():
    rig = Rig()
    ours = route("k", node=A, url="http://a")
    rig.store.found = Found(ours, owner_lives=True, is_settling=False)
    assert await rig.router.locate("k") == ours
    free = route("k", node="", url="")
    rig.store.found = Found(free, owner_lives=False, is_settling=False)
    assert await rig.router.locate("k") == Free(free)
    assert not rig.probed


async def test_an_id_of_our_own_that_nobody_knows_is_no_session():
    rig = Rig()
    rig.peers[B] = record(B)
    with pytest.raises(SessionNotFound):
        await rig.router.locate("k", f"{A[:8]}.secret")
    with pytest.raises(SessionNotFound):
        await rig.router.locate("k", "no tag at all")


async def test_a_node_that_was_started_again_under_its_name_is_not_asked_for_the_sessions_of_the_one_before():
    rig = Rig()
    before, again, here = (new_node_id(name) for name in ("gateway-1", "gateway-1", "gateway-2"))
    of_before, of_again = f"{tag_of(before)}.secret", f"{tag_of(again)}.secret"
    assert of_before.startswith("gateway-1.")
    rig.peers[again] = record(again)
    assert await rig.router.locate("k", of_again) == There(record(again))
    with pytest.raises(SessionNotFound):
        await rig.router.locate("k", of_before)
    rig.peers[before] = record(before)  # both run: the old one still drains
    assert await rig.router.locate("k", of_before) == There(record(before))
    assert here.startswith("gateway-2-")


def test_new_sessions_go_to_the_node_with_the_fewest_that_takes_any():
    rig = Rig()
    assert rig.router.any_peer() is None
    rig.peers |= {B: record(B, sessions=3), C: record(C, sessions=2), D: replace(record(D), draining=True)}
    assert rig.router.any_peer().id == C


async def test_a_node_that_was_never_heard_of_is_met_at_its_address():
    rig = Rig()
    met = await rig.router.meet(B, record(B).url)
    assert (met.id, met.url, rig.probed) == (B, record(B).url, 1)
    assert await rig.router.meet(C, record(B).url) is None
    rig.peers[C] = record(C)
    assert await rig.router.meet(C, record(C).url) == record(C)
    assert rig.probed == 2
