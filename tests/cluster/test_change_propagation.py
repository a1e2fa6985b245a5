"""ChangePropagation: two nodes on one database, with a Redis between them that may be gone."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter

from app import cli
from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.sealing import Sealer
from app.backends.catalog.knowledge import Knowledge
from app.backends.connections.toolsets import Toolsets
from app.backends.failures import FailureLog
from app.cluster.change_propagation import ChangePropagation, notice_of
from app.cluster.node_status.change_effects import ChangeEffects
from app.cluster.reconcile import Reconciler
from app.cluster.redis.connection import RedisConnection
from app.cluster.routing.notice import Kind, Notice
from app.cluster.routing.notices import Notices
from app.domain import ApiKey, BackendSpec, Limits, Principal, Tenant
from app.domain.resources.guides import GUIDES, Guide
from app.domain.resources.recipes import RECIPES
from app.errors import BackendNotFound, Disabled, Unauthenticated
from app.limits.tenant_budgets import TenantBudgets
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.storage import audit_follower
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.access.issuers import IssuerRepository
from app.storage.access.switches import PrincipalOff, SwitchRepository
from app.storage.audit import AuditEntry, AuditLog
from app.storage.audit_act import Act
from app.storage.audit_follower import POLL_S, AuditFollower
from app.storage.backends import BackendRepository
from app.storage.declared import StoredRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from app.telemetry.call_history.history import CallHistory
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.rig import make_upstreams
from tests.cluster.node_status.inspected import no_inspections
from tests.databases import migrated_file
from tests.integration.stopwatch import stopwatch_of
from tests.redis_servers import RedisServer
from tests.sessions.fakes import alone

SECRET = b"s" * 32
ADMINISTRATOR = ("default", "key", "root")


class Pool:
    """Remembers what it would start processes from."""

    def __init__(self) -> None:
        self.specs: dict[tuple[str, str], BackendSpec] = {}
        self.restarted: list[tuple[str, str]] = []
        self.failures = FailureLog("")

    def configure(self, spec: BackendSpec) -> None:
        self.specs[spec.key] = spec

    def forget(self, key: tuple[str, str]) -> None:
        self.specs.pop(key, None)

    def restart(self, key: tuple[str, str]) -> None:
        self.restarted.append(key)

    def spec_of(self, key: tuple[str, str]) -> BackendSpec | None:
        return self.specs.get(key)

    def backends(self) -> set[tuple[str, str]]:
        return set(self.specs)

    def snapshot(self) -> Any:
        return type("Snapshot", (), {"backends": dict(self.specs)})


class NoLines:
    """For SessionlessRequests."""

    def forget(self, tenant: str, backend: str | None = None) -> None:
        """Has none."""


class NoOffers:
    """For Toolsets."""

    def changed_elsewhere(self, key: tuple[str, str]) -> None:
        """Knows of no backend."""


class Node:
    """What one node has of it all."""

    def __init__(self, url: str, connection: RedisConnection | None, name: str) -> None:
        self.database, self.metrics, self.pool = Database(url), Metrics("test"), Pool()
        self.keys, self.backends = ApiKeyRepository(self.database), BackendRepository(self.database)
        self.tenants, self.audit = TenantRepository(self.database), AuditLog(self.database)
        self.maker = KeyMaker(SECRET)
        self.switches = SwitchRepository(self.database)
        self.authenticator = Authenticator(
            ApiKeys(self.keys, self.maker), self.metrics.auth_failures, switches=self.switches
        )
        self.directory = BackendDirectory(self.backends.get, self.tenants.get)
        unused: Any = None
        self.registry = SessionRegistry(self.directory, unused, self.metrics, alone(), max_sessions=100)
        pool: Any = self.pool
        lines: Any = NoLines()
        offers: Any = NoOffers()
        self.guides = StoredRepository(self.database, GUIDES)
        self.knowledge = Knowledge(self.guides, StoredRepository(self.database, RECIPES))
        toolsets = Toolsets(self.directory.find, offers, self.knowledge, self.metrics)
        budgets = TenantBudgets(Metrics("test"))
        local = ChangeEffects(
            self.authenticator,
            self.directory,
            pool,
            make_upstreams(),
            toolsets,
            self.registry,
            lines,
            budgets,
            self.knowledge,
            CallHistory(0, 0),
            no_inspections(),
        )
        issuers = IssuerRepository(self.database)
        reconciler = Reconciler(
            local, self.backends.get, self.backends, self.tenants, self.keys, issuers, self.switches
        )
        errors = self.metrics.route_store_errors
        self.notices = None if connection is None else Notices(connection, Sealer(SECRET), name, errors)
        self.effects = ChangePropagation(local, reconciler, AuditFollower(self.database), self.notices)

    async def session(self, key: str) -> Session:
        return await self.registry.open(await self.who(key), "acme", "echo", "streamable")

    async def who(self, key: str) -> Principal:
        return await self.authenticator.authenticate(b"Bearer " + key.encode())

    async def knows(self, key: str) -> bool:
        try:
            await self.who(key)
        except Unauthenticated:
            return False
        return True

    async def new_key(self) -> tuple[str, str]:
        """Its id and its text."""
        new = self.maker.make()
        record = ApiKey(new.id, "acme", "", new.digest, 1, frozenset({"mcp:connect"}), datetime.now(UTC))
        await self.keys.create("acme", record)
        return new.id, new.text

    async def revoke(self, key_id: str) -> None:
        """As the REST API does it."""
        done = act("key.revoke", f"keys/{key_id}")
        await self.keys.revoke("acme", key_id, done.at, act=done)
        self.effects.key_revoked(("acme", "key", key_id))


def act(action: str, target: str, detail: str = "") -> Act:
    return Act("acme", ADMINISTRATOR, action, target, datetime.now(UTC), "", detail)


@asynccontextmanager
async def nodes(url: str, redis_url: str | None, count: int = 2) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        if redis_url is None:  # then they hear of it by the trail only, and look often
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(audit_follower, "POLL_S", 0.1)
        made = []
        for number in range(count):
            errors = Counter("errors", "", ["reason"], registry=CollectorRegistry())
            connection = None if redis_url is None else RedisConnection(redis_url, errors)
            if connection is not None:
                await stack.enter_async_context(connection)
            node = Node(url, connection, f"node-{number}")
            stack.push_async_callback(node.database.aclose)
            await stack.enter_async_context(node.registry)
            made.append(node)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        await made[0].tenants.create(Tenant("acme"))
        await made[0].backends.create("acme", BackendSpec("acme", "echo", "/bin/cat", warm=1))
        for node in made:
            tasks.start_soon(node.effects.run)
            tasks.start_soon(node.knowledge.run)
        for node in made:
            await until(lambda node=node: bool(node.pool.specs) and (node.notices is None or node.notices.is_connected))
        yield made


async def until(is_so: Any, seconds: float = 30.0) -> float:
    """Waits until it is so; how long it took."""
    began = time.monotonic()
    with anyio.fail_after(seconds):
        while not is_so():
            await anyio.sleep(0.001)
    return time.monotonic() - began


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "trunkline.db").write_bytes(migrated_file())
    return f"sqlite:///{tmp_path}/trunkline.db"


async def test_a_revocation_ends_sessions_and_credentials_on_every_node(url, empty_redis, monkeypatch):
    monkeypatch.setattr(audit_follower, "POLL_S", 60.0)  # they hear of it by the notice
    async with nodes(url, empty_redis, 3) as made:
        key_id, key = await made[0].new_key()
        sessions = [await node.session(key) for node in made]
        await made[0].revoke(key_id)
        await until(lambda: not any(len(node.registry) for node in made))
        assert [await node.knows(key) for node in made] == [False] * 3
        assert len(sessions) == 3


@pytest.mark.parametrize(
    "how", ["revoked", "switched off", "issuer gone", "tenant switched off", "tenant gone", "later"]
)
async def test_the_alarm_for_a_credential_ends_with_it(url, how):
    async with nodes(url, None, 1) as (node,):
        key_id, key = await node.new_key()
        who, uses = await node.who(key), node.authenticator.uses
        for address in ("192.0.2.1", "198.51.100.7"):
            uses.note(who, address)
        assert uses.shown() == {who.identity}
        off = Disabled("key", key_id, "")
        match how:
            case "revoked":
                node.effects.key_revoked(who.identity)
            case "switched off":
                node.effects.principal_changed(who.identity, off)
            case "issuer gone":
                node.effects.issuer_changed(who.tenant, who.issuer)
            case "tenant switched off":
                node.effects.tenant_changed(Tenant("acme", enabled=False))
            case "tenant gone":
                node.effects.tenant_removed("acme")
            case "later":  # by another node, and nobody told this one
                await node.keys.revoke("acme", key_id, datetime.now(UTC), act=act("key.revoke", f"keys/{key_id}"))
        await until(lambda: not uses.shown())


@pytest.mark.real
async def test_a_revocation_reaches_every_node_while_redis_is_dead(url):
    with RedisServer() as server:
        async with nodes(url, server.url) as (one, two):
            key_id, key = await one.new_key()
            await two.session(key)
            server.kill()
            await one.revoke(key_id)
            async with stopwatch_of([psutil.Process()]) as watch:
                await until(lambda: not len(two.registry))
                assert watch.seconds < POLL_S + 3
            assert not await two.knows(key)


async def test_a_revocation_on_the_command_line_reaches_a_node(url, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", "00" * 32)
    async with nodes(url, None, 1) as (node,):
        key_id, key = await node.new_key()
        await node.session(key)
        command = ["keys", "revoke", key_id, "--tenant", "acme", "--data-dir", str(tmp_path)]
        assert await anyio.to_thread.run_sync(cli.main, command) == 0
        async with stopwatch_of([psutil.Process()]) as watch:
            await until(lambda: not len(node.registry))
            assert watch.seconds < 5.0
        assert not await node.knows(key)


async def test_a_key_that_was_revoked_during_a_gap_is_found(url, empty_redis):
    async with nodes(url, empty_redis) as (one, two):
        key_id, key = await one.new_key()
        _, other = await one.new_key()
        await two.session(key)
        kept = await two.session(other)
        await one.keys.revoke("acme", key_id, datetime.now(UTC))  # and no act is written, no notice sent
        two.effects.heard(Notice(Kind.RESYNC))
        await until(lambda: list(two.registry) == [kept])


async def test_a_restart_takes_effect_once_on_every_node(url, empty_redis, monkeypatch):
    async with nodes(url, empty_redis) as made:
        _, key = await made[0].new_key()
        for node in made:
            await node.session(key)
        await made[0].audit.append(act("backend.restart", "backends/echo"))
        made[0].effects.backend_restarted(("acme", "echo"))
        await until(lambda: not any(len(node.registry) for node in made))
        later = [await node.session(key) for node in made]
        follow = await made[0].new_key()
        await made[0].audit.append(act("key.revoke", f"keys/{follow[0]}"))  # when this was read, that was too
        heard = {id(node): follows(node) for node in made}
        await until(lambda: all(heard[id(node)] for node in made))
        assert [list(node.registry) for node in made] == [[session] for session in later]
        assert [node.pool.restarted for node in made] == [[("acme", "echo")]] * 2


def follows(node: Node) -> list[Notice]:
    """What it hears from now on of the trail."""
    heard = list[Notice]()
    carry_out = node.effects._carry_out

    def carry_out_and_tell(notice: Notice) -> None:
        carry_out(notice)
        heard.append(notice)

    node.effects._carry_out = carry_out_and_tell  # type: ignore[method-assign]
    return heard


@pytest.mark.parametrize("has_redis", [True, False], ids=["by notice", "by the trail"])
async def test_changed_and_removed_backends_and_tenants_are_so_on_every_node(url, empty_redis, has_redis):
    async with nodes(url, empty_redis if has_redis else None) as (one, two):
        _, key = await one.new_key()
        session = await two.session(key)
        changed = await one.backends.replace("acme", session.spec, act=act("backend.change", "backends/echo"))
        one.effects.backend_changed(changed)
        await until(lambda: two.pool.specs[changed.key].version == 2)
        assert (await two.session(key)).spec.version == 2
        tenant = Tenant("acme", Limits(sessions=2))
        one.effects.tenant_changed(await one.tenants.replace(tenant, act=act("tenant.change", "")))
        await until(lambda: dict(two.registry.gates)["acme"].limits.sessions == 2)
        await one.backends.delete("acme", "echo", act=act("backend.delete", "backends/echo"))
        one.effects.backend_removed(changed.key)
        await until(lambda: not two.pool.specs and not len(two.registry))
        await one.tenants.delete("acme", act=act("tenant.delete", ""))
        one.effects.tenant_removed("acme")
        await until(lambda: not two.authenticator._known)
        assert not await two.knows(key)


@pytest.mark.parametrize("has_redis", [True, False], ids=["by notice", "by the trail"])
async def test_a_guide_that_was_written_is_known_to_every_node_that_has_read_guides(url, empty_redis, has_redis):
    async with nodes(url, empty_redis if has_redis else None) as (one, two):
        told = list[str]()
        two.knowledge.changed.listen(told.append)
        assert (await two.knowledge.of("acme")).guides == ()
        guide = Guide(name="style", text="x", changed_at=datetime.now(UTC))
        await one.guides.create("acme", guide, act=act("guide.create", "guides/style"))
        one.effects.writings_changed("acme")
        await until(lambda: told)
        assert [each.text for each in two.knowledge.cached("acme").guides] == ["x"]
        await one.guides.delete("acme", "style")  # and no act is written, no notice sent
        two.knowledge.anything_may_have_changed()
        await until(lambda: not two.knowledge.cached("acme").guides)


@pytest.mark.parametrize("has_redis", [True, False], ids=["by notice", "by the trail"])
async def test_what_is_switched_off_and_on_is_so_on_every_node(url, empty_redis, has_redis, caplog):
    caplog.set_level("INFO")
    async with nodes(url, empty_redis if has_redis else None) as (one, two):
        key_id, key = await one.new_key()
        record = await one.keys.get("acme", key_id)
        off = replace(record, enabled=False, reason="lost")
        session = await two.session(key)
        await one.keys.switch(record, off, act=act("key.change", f"keys/{key_id}"))
        one.effects.principal_changed(("acme", "key", key_id), Disabled("key", key_id, "lost"))
        await until(lambda: not len(two.registry))
        assert "this key is switched off: lost" in str(session.refusal)
        assert "Ended 1 session on this node: this key is switched off: lost" in caplog.messages
        with pytest.raises(Disabled, match="this key is switched off: lost"):
            await two.who(key)
        await one.keys.switch(off, record, act=act("key.change", f"keys/{key_id}"))
        one.effects.principal_changed(("acme", "key", key_id), None)
        await until(lambda: not two.authenticator._refused)
        session = await two.session(key)
        tenant = await one.tenants.get("acme")
        tenant = await one.tenants.replace(replace(tenant, enabled=False), act=act("tenant.change", ""))
        one.effects.tenant_changed(tenant)
        await until(lambda: not len(two.registry) and not two.pool.specs)
        assert not one.pool.specs
        with pytest.raises(Disabled, match="the tenant `acme` is switched off"):
            await two.who(key)
        changed = await one.backends.replace("acme", session.spec, act=act("backend.change", "backends/echo"))
        one.effects.backend_changed(changed)
        tenant = await one.tenants.replace(replace(tenant, enabled=True), act=act("tenant.change", ""))
        one.effects.tenant_changed(tenant)
        await until(lambda: all(node.pool.specs.get(changed.key) == changed for node in (one, two)))
        await two.session(key)


async def test_a_changed_backend_of_a_tenant_that_is_off_is_not_started(url):
    async with nodes(url, None, 1) as (node,):
        tenant = await node.tenants.replace(replace(await node.tenants.get("acme"), enabled=False))
        node.effects.tenant_changed(tenant)
        assert not node.pool.specs
        spec = await node.backends.replace("acme", await node.backends.get("acme", "echo"))
        node.effects.backend_changed(spec)
        assert not node.pool.specs


@pytest.mark.parametrize("what", ["key", "principal", "tenant", "backend"])
async def test_what_was_switched_off_during_a_gap_is_found(url, empty_redis, what):
    async with nodes(url, empty_redis) as (one, two):
        key_id, key = await one.new_key()
        session = await two.session(key)
        if what == "key":
            record = await one.keys.get("acme", key_id)
            await one.keys.switch(record, replace(record, enabled=False))
        elif what == "tenant":
            await one.tenants.replace(replace(await one.tenants.get("acme"), enabled=False))
        elif what == "backend":
            await one.backends.replace("acme", replace(await one.backends.get("acme", "echo"), enabled=False))
        else:
            alice = Principal("acme", "https://i", "alice", frozenset({"mcp:connect"}))
            session = await two.registry.open(alice, "acme", "echo", "streamable")
            off = PrincipalOff("acme", "https://i", "alice", "", False, datetime.now(UTC))
            await one.switches.change(None, off)
        two.effects.heard(Notice(Kind.RESYNC))  # no act is written, no notice sent
        await until(lambda: len(two.registry) == (1 if what == "principal" else 0))
        assert isinstance(session.refusal, Disabled)
        assert session.refusal.what == what
        if what in ("tenant", "backend"):
            await until(lambda: not two.pool.specs)


async def test_a_backend_of_the_command_line_is_started_warm(url):
    async with nodes(url, None, 1) as (node,):
        new = BackendSpec("acme", "imported", "/bin/cat", warm=1)
        await node.backends.create("acme", new, act=act("backend.create", "backends/imported"))
        await until(lambda: new.key in node.pool.specs)


async def test_a_node_that_leaves_says_so(url, empty_redis):
    async with nodes(url, empty_redis) as (one, two):
        left = list[str]()
        two.effects._on_leaving = left.append
        one.effects.node_leaving("node-0")
        await until(lambda: left == ["node-0"])


@pytest.mark.parametrize(
    ("done", "notice"),
    [
        (act("backend.create", "backends/x"), Notice(Kind.BACKEND_CHANGED, ("acme", "x"))),
        (act("backend.change", "backends/x"), Notice(Kind.BACKEND_CHANGED, ("acme", "x"))),
        (act("backend.delete", "backends/x"), Notice(Kind.BACKEND_REMOVED, ("acme", "x"))),
        (act("backend.restart", "backends/x"), Notice(Kind.BACKEND_RESTARTED, ("acme", "x"))),
        (act("tenant.change", ""), Notice(Kind.TENANT_CHANGED, ("acme",))),
        (act("tenant.delete", ""), Notice(Kind.TENANT_REMOVED, ("acme",))),
        (act("issuer.create", "issuers/1", "https://i"), Notice(Kind.ISSUER_CHANGED, ("acme", "https://i"))),
        (act("issuer.delete", "issuers/1", "https://i"), Notice(Kind.ISSUER_CHANGED, ("acme", "https://i"))),
        (act("guide.delete", "guides/g"), Notice(Kind.WRITINGS_CHANGED, ("acme",))),
        (act("recipe.create", "recipes/r"), Notice(Kind.WRITINGS_CHANGED, ("acme",))),
        (act("key.change", "keys/k"), Notice(Kind.PRINCIPAL_CHANGED, ("acme", "key", "k"))),
        (
            act("principal.change", "principals/1", "https://i a l/ice"),
            Notice(Kind.PRINCIPAL_CHANGED, ("acme", "https://i", "a l/ice")),
        ),
        (act("key.revoke", "keys/k"), Notice(Kind.KEY_REVOKED, ("acme", "key", "k"))),
        (act("key.create", "keys/k"), None),
        (act("tenant.create", ""), None),
        (act("session.end", "sessions/s"), None),
    ],
    ids=lambda each: each.action if isinstance(each, Act) else "",
)
def test_what_an_act_means(done, notice):
    assert notice_of(done) == notice


@pytest.mark.long
async def test_revocations_reach_every_node_within_a_second(url, empty_redis):
    async with nodes(url, empty_redis, 3) as made:
        took = []
        for _ in range(300):
            key_id, key = await made[0].new_key()
            for node in made:
                await node.session(key)
            began = time.monotonic()
            await made[0].revoke(key_id)
            await until(lambda: not any(len(node.registry) for node in made))
            took.append(time.monotonic() - began)
        took.sort()
        print(f"revocation: p50 {took[150] * 1000:.1f} ms, p99 {took[297] * 1000:.1f} ms")
        assert took[297] < 1.0  # calm: the promise is a second, for 99 of 100


async def test_a_change_by_the_command_line_counts_though_an_older_one_was_heard_before_the_trail_was_followed(
    tmp_path: Path,
) -> None:
    """The older one is in the trail from before the first look, so it never comes from there."""
    node = Node(f"sqlite:///{tmp_path}/unused.db", None, "a")
    restarted = Notice(Kind.BACKEND_RESTARTED, ("acme", "echo"))
    node.effects.heard(restarted)
    node.effects.trail_lost()  # what the follower says at its first look
    act = Act("acme", ("", "cli", ""), "backend.restart", "backends/echo", datetime.now(UTC))
    node.effects.followed([AuditEntry(1, act)])
    assert node.pool.restarted == [("acme", "echo")] * 2
    await node.database.aclose()


@pytest.mark.parametrize("what", ["backend", "removed backend", "tenant"])
async def test_of_two_changes_the_later_one_counts_though_a_node_is_told_of_it_first(url, what):
    """The database's answer to who has made the first one is late; another request has made the second meanwhile."""
    async with nodes(url, None, 1) as (node,):
        if what == "tenant":
            tenant = await node.tenants.get("acme")
            first = await node.tenants.replace(replace(tenant, enabled=False), act=act("tenant.change", ""))
            second = await node.tenants.replace(replace(first, enabled=True), act=act("tenant.change", ""))
            node.effects.tenant_changed(second)
            node.effects.tenant_changed(first)
            await until(lambda: not node.effects._local.is_off("acme"))
            return
        changed = act("backend.change", "backends/echo")
        spec = await node.backends.replace("acme", await node.backends.get("acme", "echo"), act=changed)
        if what == "backend":
            off = await node.backends.replace("acme", replace(spec, enabled=False), act=changed)
            node.effects.backend_changed(off)
        else:
            await node.backends.delete("acme", "echo", act=act("backend.delete", "backends/echo"))
            node.effects.backend_removed(spec.key)
        node.effects.backend_changed(spec)
        await until(lambda: not node.pool.specs)
        with pytest.raises((Disabled, BackendNotFound)):
            await node.directory.find("acme", "echo")
