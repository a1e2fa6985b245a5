"""open_gateway: what a node leaves where others can see it, however it ends; and what a start leaves that comes to
nothing."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from app.domain import ApiKey, BackendSpec, Principal, Tenant
from app.errors import SettingsError, StorageUnavailable
from app.node import gateway as gateway_module
from app.node.gateway import Gateway, open_gateway
from app.node.parts import opening as opening_module
from app.node.parts.membership import Membership, join
from app.protocol.jsonrpc import Request, parse_client
from app.sessions.loop_pause import GAP_S, StandstillDetector
from app.sessions.registry import SessionRegistry
from app.sessions.routes import NodeRecord
from app.sessions.session import Session
from app.sessions.session_ids import session_key
from app.settings.settings import Settings
from app.storage import database_watch as watch
from app.storage.backends import BackendRepository
from tests.databases import migrate
from tests.redis_servers import client_of

SERVER = str(Path(__file__).parents[1] / "servers" / "stateless.py")
HELLO = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}'

Make = Callable[..., Settings]


@pytest.fixture
def alone(tmp_path: Path) -> Make:
    def make(**changes: str) -> Settings:
        values = {"DATA_DIR": str(tmp_path), "SECRET_KEY": "ab" * 32, "MAX_PROCESSES": "20", **changes}
        settings = Settings.from_env({f"TRUNKLINE_{name}": value for name, value in values.items()})
        migrate(settings.database_url)
        return settings

    return make


@pytest.fixture
def one_of_several(alone: Make, empty_redis: str) -> Settings:
    return alone(REDIS_URL=empty_redis, NODE_URL="http://127.0.0.1:9")


def in_redis(url: str, kind: str) -> list[str]:
    with client_of(url) as client:
        return sorted(key.decode() for key in client.scan_iter(f"trunkline:{kind}:*"))


STRANGERS: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def _strangers() -> Iterator[None]:
    """What other tests have started, or Redis, is not the gateway's."""
    STRANGERS.update(psutil.Process(os.getpid()).children(recursive=True))
    yield
    STRANGERS.clear()


def children() -> list[psutil.Process]:
    """The spawner and the backends."""
    family = psutil.Process(os.getpid()).children(recursive=True)
    return [each for each in family if each not in STRANGERS and "redis" not in each.name()]


async def becomes(wanted: Any, now: Callable[[], Any]) -> None:
    with anyio.fail_after(10):
        while now() != wanted:
            await anyio.sleep(0.01)


async def somebody(gateway: Gateway) -> Principal:
    """Whoever has a new key. A node that has just started ends the sessions of those that have none."""
    made, scopes = gateway.credentials.key_maker.make(), frozenset({"mcp:connect"})
    await gateway.records.keys.create(
        "default", ApiKey(made.id, "default", "", made.digest, 1, scopes, datetime.now(UTC))
    )
    return Principal("default", "key", made.id, scopes)


async def open_session(gateway: Gateway, recovery: Any) -> Session:
    """A session of a fresh backend that has shaken hands."""
    spec = BackendSpec("default", f"backend-{recovery}", sys.executable, (SERVER,), recovery=recovery)
    await gateway.records.backends.create("default", spec)
    session = await gateway.sessions.registry.open(await somebody(gateway), "default", spec.name, "streamable_http")
    await gateway.sessions.registry.connect(session)
    hello = parse_client(HELLO)
    assert isinstance(hello, Request)
    reply = session.reply(1, may_stream=False)
    session.request(hello, reply)
    with anyio.fail_after(20):
        await reply.outcome
    return session


async def test_a_node_is_ready_once_the_others_know_it(one_of_several: Settings):
    async with open_gateway(one_of_several) as gateway, open_gateway(one_of_several) as other:
        for node in (gateway, other):
            await becomes({"sessions": "ok", "database": "ok"}, partial(_ready, node))
        await becomes(2, lambda: 1 + len(gateway.membership.heartbeat.peers))
        assert gateway.degraded() == {}
        assert {each.id for each in await gateway.membership.all_nodes.statuses()} == {
            gateway.routing.node,
            other.routing.node,
        }


def _ready(gateway: Gateway) -> dict[str, str]:
    """What `check` says; it waits for nothing."""
    try:
        gateway.check().send(None)
    except StopIteration as done:
        parts: dict[str, str] = done.value
        return parts
    raise AssertionError("it waits")


async def test_a_node_that_drains_hands_over_what_it_can_and_is_gone(one_of_several: Settings):
    assert one_of_several.redis_url is not None
    url = one_of_several.redis_url
    async with open_gateway(one_of_several) as gateway:
        durable, stateful = await open_session(gateway, "respawn"), await open_session(gateway, "end")
        await becomes(1, lambda: len(in_redis(url, "node")))
        assert len(in_redis(url, "route")) == 2
        assert await gateway.drain(5) == 0
        found = await gateway.routing.store.find(session_key(durable.id))
        assert found.route is not None
        assert found.route.node == ""
        assert (await gateway.routing.store.find(session_key(stateful.id))).route is None
        assert in_redis(url, "node") == []
        assert _ready(gateway)["sessions"] == "shutting down"
    assert in_redis(url, "node") == []
    assert children() == []


async def test_a_node_that_stops_at_once_is_gone_too(one_of_several: Settings):
    assert one_of_several.redis_url is not None
    url = one_of_several.redis_url
    async with open_gateway(one_of_several) as gateway:
        await open_session(gateway, "respawn")
        await becomes(1, lambda: len(in_redis(url, "node")))
        assert len(children()) > 1
    assert in_redis(url, "node") == []
    assert len(in_redis(url, "route")) == 1  # free for the taking: its owner is not there any more
    assert children() == []


async def test_a_database_that_is_slow_leaves_its_nodes_ready(alone: Make, monkeypatch: pytest.MonkeyPatch):
    async with open_gateway(alone()) as gateway:
        await becomes({"sessions": "ok", "database": "ok"}, lambda: _ready(gateway))
        monkeypatch.setattr(watch, "LATE_S", 0.1)
        monkeypatch.setattr(gateway.records.database, "check", partial(anyio.sleep, 0.15))
        await becomes(True, lambda: "too slowly" in gateway.degraded().get("database", ""))
        assert _ready(gateway) == {"sessions": "ok", "database": "ok"}


async def test_a_node_that_is_alone_needs_no_redis(alone: Make):
    async with open_gateway(alone()) as gateway:
        session = await open_session(gateway, "respawn")
        assert session.journal is None
        await becomes({"sessions": "ok", "database": "ok"}, lambda: _ready(gateway))
        assert gateway.degraded() == {}
        assert await gateway.drain(5) == 0
        assert len(gateway.sessions.registry) == len(gateway.routes.ownership) == 0
    assert children() == []


async def test_what_probes_of_the_sandbox_are_refused_is_nobodys_trouble(alone: Make, caplog):
    with caplog.at_level("INFO"):
        async with open_gateway(alone()) as gateway:
            (refusals,) = gateway.metrics.egress_refusals.collect()
    assert "backends run in sandboxes of tier" in caplog.text
    assert not [each for each in refusals.samples if each.value]
    assert not [line for line in caplog.messages if "Refused" in line]


async def test_a_node_that_takes_long_to_open_did_not_stand_still(alone: Make, monkeypatch):
    def join_at_last(*parts: Any) -> Membership:
        detector.ticked_at -= 10 * GAP_S
        return join(*parts)

    detector = StandstillDetector()
    monkeypatch.setattr(opening_module, "StandstillDetector", lambda: detector)
    monkeypatch.setattr(gateway_module, "join", join_at_last)
    async with open_gateway(alone()) as gateway:
        assert not gateway.sessions.registry.standstill.is_detected()


@pytest.mark.parametrize("how_far", ["the database", "Redis", "everything"])
async def test_one_that_is_cancelled_leaves_nothing(one_of_several: Settings, monkeypatch, how_far: str):
    """But its lease, which lapses: its connection to Redis was cancelled with it."""
    tasks_before, is_there = len(anyio.get_running_tasks()), anyio.Event()

    async def hang(*_: object) -> None:
        is_there.set()
        await anyio.sleep_forever()

    if how_far == "the database":
        monkeypatch.setattr(BackendRepository, "list_warm", hang)
    elif how_far == "Redis":
        monkeypatch.setattr(SessionRegistry, "__aenter__", hang)

    async def start() -> None:
        async with open_gateway(one_of_several):
            await hang()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        with anyio.fail_after(20):
            await is_there.wait()
        cancelled_at = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - cancelled_at < 10  # a circle of exceptions once kept the loop busy for ever
    assert children() == []
    assert len(anyio.get_running_tasks()) == tasks_before


async def test_a_start_that_fails_leaves_nothing(one_of_several: Settings, monkeypatch):
    tasks_before = len(anyio.get_running_tasks())

    async def fail(_: BackendRepository) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(BackendRepository, "list_warm", fail)
    with pytest.raises(StorageUnavailable):
        async with open_gateway(one_of_several):
            raise AssertionError("it has failed")
    assert children() == []
    assert len(anyio.get_running_tasks()) == tasks_before


async def test_a_node_that_says_it_leaves_gets_nothing_new_and_is_not_given_up(one_of_several: Settings):
    async with open_gateway(one_of_several) as gateway:
        other = NodeRecord("node-b", "http://127.0.0.1:1", "1", datetime.now(UTC))
        gateway.membership.heartbeat.peers[other.id] = other
        assert gateway.membership.router.any_peer() == other
        gateway.changes._on_leaving(other.id)
        assert gateway.membership.router.any_peer() is None
        assert gateway.membership.heartbeat.peers[other.id].draining


# --- homes


async def _add(gateway: Gateway, *tenants: str) -> None:
    for tenant in tenants:
        await gateway.records.tenants.create(Tenant(tenant))
        await gateway.records.backends.create(tenant, BackendSpec(tenant, "b", sys.executable))


def _old_home(settings: Settings) -> Path:
    old = settings.data_dir / "backends" / "home"
    old.mkdir(parents=True)
    (old / "memory.json").write_text("{}")
    return old


async def test_the_home_that_was_shared_goes_to_the_only_tenant_with_backends(alone: Make, caplog):
    settings = alone()
    async with open_gateway(settings) as gateway:
        await _add(gateway, "acme")
        spec = await gateway.records.backends.get("acme", "b")
    old = _old_home(settings)
    for _ in range(2):
        async with open_gateway(settings):
            assert (settings.homes / spec.home / "home" / "memory.json").read_text() == "{}"
            assert (old / "memory.json").exists()
    assert caplog.text.count("moved the home of all backends") == 1


@pytest.mark.parametrize("tenants", [(), ("acme", "other")])
async def test_the_home_that_was_shared_stays_where_nobody_knows_whose_it_is(alone: Make, caplog, tenants):
    settings = alone()
    async with open_gateway(settings) as gateway:
        await _add(gateway, *tenants)
    old = _old_home(settings)
    async with open_gateway(settings):
        assert (old / "memory.json").exists()
        assert not old.is_symlink()
        assert list(settings.homes.iterdir()) == []
    assert f"backends no longer use {old}" in caplog.text


async def test_a_place_for_homes_that_cannot_be_made_is_named_at_the_start(alone: Make, tmp_path):
    (tmp_path / "file").write_text("")
    settings = alone(HOMES_DIR=str(tmp_path / "file" / "homes"))
    with pytest.raises(SettingsError, match="TRUNKLINE_HOMES_DIR: cannot make"):
        async with open_gateway(settings):
            pass


@pytest.mark.parametrize("where", ["", ".."])
def test_homes_are_not_beside_the_key(alone: Make, tmp_path, where):
    with pytest.raises(SettingsError, match="TRUNKLINE_HOMES_DIR: must not be DATA_DIR"):
        alone(DATA_DIR=str(tmp_path / "data"), HOMES_DIR=os.path.normpath(tmp_path / "data" / where))
