"""Router: where a session is, whatever the store has lost of it."""

import pytest

from app.errors import RoutesUnavailable, SessionNotFound
from app.routing.memory_store import MemoryStore
from app.routing.router import Free, Router, There
from app.routing.routes import Found, NodeRecord
from tests.routing.rig import record, route

A, B = "a" * 16, "b" * 16
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
        self.router = Router(self.store, A, self.peers, self.departed, self._probe)

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


async def test_an_owner_whose_lease_has_lapsed_still_owns_while_it_answers():
    rig = Rig()
    theirs = route("k", node=B, url=record(B).url)
    rig.store.found = Found(theirs, owner_lives=False, is_settling=False)
    located = await rig.router.locate("k", OF_B)
    assert isinstance(located, There)
    assert located.node.id == B
    rig.answers = False
    assert await rig.router.locate("k", OF_B) == Free(theirs)
