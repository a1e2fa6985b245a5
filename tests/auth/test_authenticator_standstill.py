"""After a standstill the audit trail may have revocations: nothing remembered is believed without a look."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry, Counter

from app.auth.api_keys import ApiKeys, KeyMaker, key_id
from app.auth.authenticator import Authenticator, Storage
from app.errors import StorageUnavailable, Unauthenticated
from app.sessions.loop_pause import GAP_S, StandstillDetector
from tests.auth.fakes import NOW, FakeStore

maker = KeyMaker(b"s" * 32)


@dataclass
class Node:
    """Its clock, its store, how old the trail of its database is, and its authenticator."""

    store: FakeStore = field(default_factory=FakeStore)
    elapsed_s: float = 1000.0
    trail_age_s: float = 0.0
    is_away: bool = False  # as its watch says
    authenticator: Authenticator = field(init=False)

    def __post_init__(self) -> None:
        failures = Counter("failures", "", ["reason"], registry=CollectorRegistry())
        self.authenticator = Authenticator(
            ApiKeys(self.store, maker, self.now),
            failures,
            lambda: self.elapsed_s,
            lambda: self.now().timestamp(),
            storage=Storage(lambda: self.is_away, lambda: self.trail_age_s),
            has_stood_still=StandstillDetector(lambda: self.elapsed_s).has_stood_still,
        )

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.elapsed_s - 1000)

    def add(self) -> bytes:
        return b"Bearer " + self.store.add(maker).encode()

    def revoke(self, header: bytes) -> None:
        """At another node: nobody tells this one."""
        del self.store.records[str(key_id(header.removeprefix(b"Bearer ").decode()))]

    def stand_still(self) -> None:
        self.elapsed_s += GAP_S + 0.5
        self.trail_age_s += GAP_S + 0.5


@pytest.fixture
def node() -> Node:
    return Node()


async def test_a_key_that_was_revoked_meanwhile_is_refused(node):
    revoked, kept = node.add(), node.add()
    for header in (revoked, kept):
        assert await node.authenticator.authenticate(header)
    node.revoke(revoked)
    node.stand_still()
    with pytest.raises(Unauthenticated):
        await node.authenticator.authenticate(revoked)
    assert await node.authenticator.authenticate(kept)


async def test_once_each_standstill_everything_is_looked_up_again(node):
    header = node.add()
    await node.authenticator.authenticate(header)
    for lookups in (2, 3):  # also where the routes are still in doubt, as Redis is away
        node.stand_still()
        for _ in range(3):
            await node.authenticator.authenticate(header)
        assert node.store.lookups == lookups


async def test_a_request_under_way_asks_again(node):
    principal, seen = await node.authenticator.authenticate(node.add()), node.authenticator.watch.count
    node.authenticator.doubt_after_standstill()
    assert not node.authenticator.watch.may_concern(principal, seen)
    node.stand_still()
    node.authenticator.doubt_after_standstill()
    assert node.authenticator.watch.may_concern(principal, seen)


async def test_whom_another_node_lets_in_is_confirmed_again(node):
    header = node.add()
    principal = await node.authenticator.authenticate(header)
    await node.authenticator.confirm(principal)
    node.stand_still()
    node.authenticator.doubt_after_standstill()
    assert node.authenticator.watch.may_concern(principal, node.authenticator.known_good_since(principal))
    await node.authenticator.confirm(principal)
    assert not node.authenticator.watch.may_concern(principal, node.authenticator.known_good_since(principal))
    node.revoke(header)
    node.stand_still()
    node.authenticator.doubt_after_standstill()
    with pytest.raises(Unauthenticated):
        await node.authenticator.confirm(principal)


async def test_while_the_database_is_away_what_was_good_is_good(node):
    known, other = node.add(), node.add()
    principal = await node.authenticator.authenticate(known)
    elsewhere = await node.authenticator.authenticate(other)
    for each in (principal, elsewhere):
        await node.authenticator.confirm(each)
    node.authenticator.forget(elsewhere.identity)
    node.store.is_down = True
    node.stand_still()
    assert await node.authenticator.authenticate(known) == principal
    await node.authenticator.confirm(principal)
    with pytest.raises(StorageUnavailable):
        await node.authenticator.authenticate(other)
    with pytest.raises(StorageUnavailable):
        await node.authenticator.confirm(elsewhere)


async def test_a_database_that_only_seems_to_be_away_is_asked(node):
    """Its watch has waited for an answer for as long as the node stood still."""
    revoked, kept, elsewhere = node.add(), node.add(), node.add()
    for header in (revoked, kept, elsewhere):
        await node.authenticator.confirm(await node.authenticator.authenticate(header))
    principal = await node.authenticator.authenticate(elsewhere)
    for header in (revoked, elsewhere):
        node.revoke(header)
    node.is_away = True
    node.stand_still()
    with pytest.raises(Unauthenticated):
        await node.authenticator.authenticate(revoked)
    with pytest.raises(Unauthenticated):
        await node.authenticator.confirm(principal)
    assert await node.authenticator.authenticate(kept)
