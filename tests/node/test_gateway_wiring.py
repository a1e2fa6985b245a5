"""What open_gateway joins: for each callback, attribute and task, what happens only because of it. Two nodes of one
process, over a real Redis."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from app.cluster import changes
from app.cluster.peers import dead_nodes as dead_peers
from app.cluster.peers.client import PeerClient
from app.cluster.routing import heartbeat, router
from app.domain import BackendSpec, Principal
from app.errors import GatewayError, SessionNotFound
from app.jail.sandbox.probes.prober import TierReport
from app.jail.sandbox.probes.probing import Probing
from app.jail.sandbox.tiers import Tier
from app.limits.loop_shares import LoopShares
from app.node.gateway import Gateway, open_gateway
from app.node.parts import credentials as module
from app.sessions.routes import Quota, Route, caller_key
from app.sessions.session import Session, SessionState
from app.sessions.session_ids import session_key
from app.sessions.sessionless.pooled_sessions import Caller
from app.settings.settings import Settings
from app.storage.audit import Act
from tests.node.test_gateway import SERVER, Make, alone, open_session, somebody
from tests.redis_servers import client_of

__all__ = ["alone"]  # a fixture

QUICK_S = 0.05
PROBED: list[TierReport] = []


@dataclass
class Pair:
    first: Gateway
    second: Gateway
    redis_url: str

    def lapse(self, node: Gateway) -> None:
        """What five seconds without a beat do."""
        with client_of(self.redis_url) as client:
            client.delete(f"trunkline:node:{node.routing.node}")

    async def take(self, key: str) -> Route:
        """The second node takes a route of the first's, whose lease is over for a moment."""
        mine = (await self.second.routing.store.find(key)).route
        assert mine is not None
        with anyio.fail_after(10):
            while True:
                self.lapse(self.first)
                taken = await self.second.routing.store.take_over(mine, self.second.routing.node, "http://second")
                if taken is not None:
                    return taken


async def becomes(wanted: Any, look: Callable[[], Any]) -> None:
    with anyio.move_on_after(10):
        while look() != wanted:
            await anyio.sleep(0.01)
    assert look() == wanted


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", QUICK_S)
    monkeypatch.setattr(changes, "LOOK_EVERY_S", QUICK_S)


@pytest.fixture(autouse=True)
def _probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine's sandboxes hold is the same for all of them, and takes longer than most tests."""

    async def reports(self: Probing, tiers: Iterable[Tier]) -> list[TierReport]:
        if not PROBED:
            PROBED.extend(await probe(self, tiers))
        return PROBED

    probe = Probing.until_one_holds
    monkeypatch.setattr(Probing, "until_one_holds", reports)


@pytest.fixture
def abandoned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses for which nobody waits any more. To be asked for before the nodes."""
    urls: list[str] = []
    monkeypatch.setattr(PeerClient, "abandon", lambda self, url: urls.append(url))
    return urls


@pytest.fixture
def settings(alone: Make, empty_redis: str) -> Callable[[int], Settings]:
    return lambda port: alone(REDIS_URL=empty_redis, NODE_URL=f"http://127.0.0.1:{port}")


@pytest.fixture
async def pair(settings: Callable[[int], Settings], empty_redis: str) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(open_gateway(settings(port))) for port in (9, 19)]
        pair = Pair(first, second, empty_redis)
        await becomes((1, 1), lambda: (len(first.membership.heartbeat.peers), len(second.membership.heartbeat.peers)))
        yield pair


async def no_more_beats(node: Gateway) -> None:
    """Nothing but what is tested tells it anything."""
    node.membership.heartbeat._has_left = True
    await anyio.sleep(2 * QUICK_S)


# --- ownership, sessions, callers


async def test_four_times_a_second_everything_that_may_be_overdue_is_looked_at(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sweep_for_ever`, and what it is given."""
    node, swept = pair.first, set[str]()
    before = node.membership.guard.standstill.ticked_at
    monkeypatch.setattr(node.sessions.registry.sweeping, "sweep", lambda now: swept.add("sessions"))
    monkeypatch.setattr(node.sessions.sessionless.suspended, "sweep", lambda now: swept.add("suspended calls"))
    await becomes({"sessions", "suspended calls"}, lambda: swept)
    assert node.membership.guard.standstill.ticked_at > before


async def test_a_session_that_another_node_has_taken_ends(pair: Pair) -> None:
    """`ownership.lost`, and `on_session_lost` of the ownership."""
    session = await open_session(pair.first, "end")
    await pair.take(session_key(session.id))
    await becomes(SessionState.CLOSED, lambda: session.state)


async def test_after_a_pause_the_first_look_ends_what_was_taken_over_a_new_connection(pair: Pair) -> None:
    """What the guard asks."""
    session = await open_session(pair.first, "end")
    await no_more_beats(pair.first)
    await pair.take(session_key(session.id))
    redis = pair.first.routing.redis
    assert redis is not None
    before = redis.generation
    pair.first.sessions.registry.standstill.ticked_at -= 100.0
    await pair.first.membership.guard.prove()
    assert session.state is SessionState.CLOSED
    assert redis.generation == before + 1


async def test_after_a_pause_credentials_are_looked_up_again(pair: Pair) -> None:
    """What the guard calls."""
    authenticator = pair.first.credentials.authenticator
    watch, standstill = authenticator.watch, authenticator._has_stood_still.__self__  # type: ignore[attr-defined]
    principal, seen = Principal("default", "key", "caller", frozenset()), watch.count
    standstill.ticked_at -= 100.0
    pair.first.sessions.registry.standstill.ticked_at -= 100.0
    await pair.first.membership.guard.prove()
    assert watch.may_concern(principal, seen)


async def test_a_journal_that_is_anothers_ends_the_session(pair: Pair) -> None:
    """`on_fenced` of the journals."""
    session = await open_session(pair.first, "respawn")
    await no_more_beats(pair.first)
    await pair.take(session_key(session.id))
    assert session.journal is not None
    session.journal.changed()
    await becomes(SessionState.CLOSED, lambda: session.state)


async def claim_caller(node: Gateway) -> tuple[tuple[Any, str, str], str]:
    principal = Principal("default", "key", "caller", frozenset())
    caller = (principal.identity, "default", "stateful")
    assert await node.routes.ownership.claim_caller(principal, "default", "stateful", None) is not None
    return caller, caller_key(*caller)


async def test_a_caller_that_another_node_has_loses_its_lines(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """`on_caller_lost` of the ownership."""
    lost: list[Any] = []
    monkeypatch.setattr(pair.first.sessions.sessionless.pooled_sessions, "lost", lost.append)
    caller, key = await claim_caller(pair.first)
    await pair.take(key)
    await becomes([caller], lambda: lost)


async def test_a_caller_of_whom_nothing_is_left_is_free(pair: Pair) -> None:
    """`CallerHomes.on_gone`."""
    caller, key = await claim_caller(pair.first)
    pair.first.sessions.sessionless.pooled_sessions._on_caller_gone(caller)
    assert await pair.first.routes.ownership.flush(5)
    assert (await pair.second.routing.store.find(key)).route is None


async def test_no_line_is_opened_for_a_caller_of_another_node(pair: Pair) -> None:
    """`CallerHomes.may_serve`."""
    session = await open_session(pair.first, "end")
    assert not pair.first.sessions.sessionless.pooled_sessions._may_serve(session)
    await pair.first.routes.ownership.claim_caller(session.principal, *session.spec.key, None)
    assert pair.first.sessions.sessionless.pooled_sessions._may_serve(session)


async def test_what_has_ended_here_is_gone_though_redis_is_new(pair: Pair) -> None:
    """`has_ended` of the router."""
    session = await open_session(pair.first, "end")
    session.close("deleted")
    await pair.first.routes.ownership.flush(5)
    with client_of(pair.redis_url) as client:
        client.flushdb()
    with pytest.raises(SessionNotFound):
        await pair.first.membership.router.locate(session_key(session.id), session.id)


async def test_the_router_asks_a_node_that_left_the_list_and_the_heartbeat_knows_which(pair: Pair) -> None:
    """`heartbeat.peers` and `heartbeat.departed`."""
    node = pair.second.routing.node
    assert pair.first.membership.router.any_peer() == pair.first.membership.heartbeat.peers[node]
    await pair.second.membership.heartbeat.leave()
    await becomes(True, lambda: node in pair.first.membership.heartbeat.departed)
    assert pair.first.membership.router._departed is pair.first.membership.heartbeat.departed
    assert pair.first.membership.router.any_peer() is None


# --- durable sessions


async def test_journals_are_written_and_written_again_where_redis_has_lost_them(pair: Pair) -> None:
    """`journals.run`, the durability of the registry, what the heartbeat tells of a store that has lost everything."""
    session = await open_session(pair.first, "respawn")
    name = f"trunkline:head:{session_key(session.id)}"
    with client_of(pair.redis_url) as client:
        await becomes(1, lambda: client.exists(name))
        client.flushdb()
        await becomes(1, lambda: client.exists(name))


async def test_a_durable_session_is_given_away_at_a_drain_and_taken_by_the_other(pair: Pair) -> None:
    """The durability of the registry, `durability.restore` in the take-over."""
    session = await open_session(pair.first, "respawn")
    assert await pair.first.drain(5) == 0
    found = (await pair.second.routing.store.find(session_key(session.id))).route
    assert found is not None
    assert found.node == ""
    taken = await pair.second.sessions.take_over(
        session.id, found, Caller(session.principal, *session.spec.key), lambda: None
    )
    assert taken is not None
    assert taken.id == session.id


# --- limits


async def test_what_a_tenant_uses_is_known_at_the_other_node(pair: Pair) -> None:
    """`use.run`, `rates.run`."""
    session = await open_session(pair.first, "end")
    await becomes(
        1, lambda: pair.second.processes.pool.used_of("default") - pair.second.processes.pool.used().get("default", 0)
    )
    assert session.gate.bucket is not None
    with client_of(pair.redis_url) as client:
        for _ in range(20):  # the key lasts as long as it takes to make up for what was spent
            session.gate.check_rate(time.monotonic())
        await becomes(1, lambda: client.exists("trunkline:rate:default"))


# --- what all nodes must know


async def revoke(node: Gateway, session: Session) -> None:
    """As the command line does it: no node knows."""
    tenant, _, key_id = session.principal.identity
    at = datetime.now(UTC)
    act = Act(tenant, ("default", "cli", "root"), "key.revoke", f"keys/{key_id}", at)
    await node.records.keys.revoke(tenant, key_id, at, act=act)


async def test_what_the_trail_says_is_carried_out(pair: Pair) -> None:
    """`changes.run`, and the trail in it."""
    session = await open_session(pair.first, "end")
    await revoke(pair.second, session)
    await becomes(SessionState.CLOSED, lambda: session.state)


async def test_what_is_committed_has_taken_effect_here(pair: Pair) -> None:
    """`database.after_commits`."""
    session = await open_session(pair.first, "end")
    await revoke(pair.first, session)
    assert session not in list(pair.first.sessions.registry)


async def test_a_node_that_leaves_is_not_remembered_for_anything(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """`router.forget_node`, over the notices."""
    monkeypatch.setattr(router, "REMEMBER_S", 1000.0)
    first, second = pair.first, pair.second
    route = Route("k" * 40, first.routing.node, first.routing.url, 1, "default", "x", ("default", "key", "k"), "sse")
    second.membership.router.remember(route)
    assert second.membership.router.remembered(route.key) is not None
    with anyio.fail_after(10):
        while second.membership.router.remembered(route.key) is not None:
            assert first.routing.notices is not None
            await first.routing.notices.say_leaving()
            await anyio.sleep(0.01)


async def test_a_node_that_is_dead_is_waited_for_by_nobody(
    abandoned: list[str], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`abandon_the_dead`."""
    known, look = set[str](), dead_peers.Suspects.of

    def looked(self: dead_peers.Suspects, living: Any, now: float) -> Any:
        known.update(living)
        return look(self, living, now)

    monkeypatch.setattr(dead_peers.Suspects, "of", looked)
    await becomes(True, lambda: pair.second.routing.node in known)
    await pair.second.membership.heartbeat.leave()
    await becomes(True, lambda: pair.second.routing.url in abandoned)


# --- the rest of its tasks


async def test_when_keys_were_used_is_written_down_now_and_then_and_at_the_end(
    settings: Callable[[int], Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_flush_for_ever`, `_flush_once`."""
    async with open_gateway(settings(9)) as other:
        for every_s, at_the_end in ((0.02, False), (1000.0, True)):
            monkeypatch.setattr(module, "FLUSH_EVERY_S", every_s)
            async with open_gateway(settings(19)) as node:
                principal = await somebody(node)
                node.credentials.authenticator._keys._used[principal.tenant, principal.subject] = datetime.now(UTC)
                if not at_the_end:
                    await _was_used(other, principal)
            await _was_used(other, principal)


async def _was_used(node: Gateway, principal: Principal) -> None:
    with anyio.fail_after(10):
        while True:
            found = await node.records.keys.find(principal.subject)
            if found is not None and found.last_used_at is not None:
                return
            await anyio.sleep(0.01)


async def test_what_an_expired_credential_has_opened_is_ended(pair: Pair) -> None:
    """`authenticator.run`."""
    ended = anyio.Event()
    principal = Principal("default", "https://issuer", "alice", frozenset(), time.time() + 0.05)
    with pair.first.credentials.authenticator.watch.hold(principal, ended.set), anyio.fail_after(10):
        await ended.wait()


async def test_processes_of_warm_backends_are_started_with_the_node(settings: Callable[[int], Settings]) -> None:
    async with open_gateway(settings(9)) as node:
        spec = BackendSpec("default", "warm", sys.executable, (SERVER,), warm=1)
        await node.records.backends.create("default", spec)
    async with open_gateway(settings(9)) as node:
        assert _has(node, ("default", "warm"))  # at once: the first look at the trail would find it too


async def test_what_processes_and_servers_elsewhere_make_the_loop_do_is_their_tenants(
    settings: Callable[[int], Settings],
) -> None:
    async with open_gateway(settings(9)) as node:
        of_processes, of_upstreams = node.processes.supervisor._options.shares, node.processes.upstreams._parts.shares
        assert isinstance(of_processes, LoopShares)
        assert of_processes is of_upstreams


def _has(node: Gateway, key: tuple[str, str]) -> bool:
    return key in node.processes.pool.snapshot()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
async def test_no_server_is_reached_where_the_gateway_has_its_redis(alone: Make, host: str, empty_redis: str) -> None:
    port = urlsplit(empty_redis).port
    allowed = alone(REDIS_URL=empty_redis, NODE_URL="http://127.0.0.1:9", UPSTREAM_ALLOW="127.0.0.0/8")
    async with open_gateway(allowed) as node:
        with pytest.raises(GatewayError, match="of the gateway itself"):
            await node.processes.upstreams.fetch(("acme", "shop"), f"http://{host}:{port}/openapi.json", 1000)


async def test_the_database_is_watched(settings: Callable[[int], Settings], tmp_path: Path) -> None:
    """`watch.run`."""
    async with open_gateway(settings(9)) as node:
        asked: list[None] = []
        check = node.records.database.check

        async def counted() -> None:
            asked.append(None)
            await check()

        node.records.database.check = counted  # type: ignore[method-assign]
        await becomes(True, lambda: len(asked) > 0)


async def test_a_route_that_is_counted_and_not_held_is_noticed_by_the_beats(pair: Pair) -> None:
    """What the heartbeat is told of the ownership."""
    node = pair.first.routing.node
    stray = Route("s" * 40, node, pair.first.routing.url, 1, "default", "x", ("default", "key", "k"), "sse")
    await pair.first.routing.store.claim(stray, Quota())
    with client_of(pair.redis_url) as client:
        await becomes(None, lambda: client.hget("trunkline:used:default", node))
