"""Changes: two nodes on one database, with a Redis between them that may be gone."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.sealing import Sealer
from app.backends.catalog.knowledge import Knowledge
from app.backends.connections.toolsets import Toolsets
from app.backends.failures import FailureLog
from app.cluster import changes
from app.cluster._affected import EVERYTHING, Affected, Kind
from app.cluster.changes import LOOK_EVERY_S, Changes
from app.cluster.node_status.change_effects import ChangeEffects
from app.cluster.reconcile import Reconciler
from app.cluster.redis.connection import RedisConnection
from app.cluster.routing.notices import Notices
from app.domain import ApiKey, BackendSpec, Limits, Principal, Tenant
from app.domain.resources.access import AccessEntry, Who
from app.domain.resources.guides import GUIDES, Guide
from app.domain.resources.recipes import RECIPES
from app.errors import ConcurrentChange, Disabled, StorageUnavailable, Unauthenticated
from app.limits.caller_limits import CallerLimits
from app.limits.tenant_budgets import TenantBudgets
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.storage import audit_follower
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.access.connections import ConnectionRepository
from app.storage.access.issuers import IssuerRepository
from app.storage.access.switches import PrincipalOff, SwitchRepository
from app.storage.audit import Act
from app.storage.audit_follower import AuditFollower
from app.storage.audit_queries import AuditLog
from app.storage.backends import BackendRepository
from app.storage.declared import StoredRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from app.telemetry.call_history.history import CallHistory
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.rig import make_upstreams
from tests.cluster.node_status.inspected import no_inspections
from tests.databases import SEALER, migrated_file
from tests.integration.stopwatch import stopwatch_of
from tests.redis_servers import RedisServer, client_of
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

    def changed_elsewhere(self, key: tuple[str, str], *, is_shown: bool) -> None:
        """Knows of no backend."""


class Node:
    """What one node has of it all."""

    def __init__(self, url: str, connection: RedisConnection | None, name: str) -> None:
        self.database, self.metrics, self.pool = Database(url), Metrics("test"), Pool()
        self.keys, self.backends = ApiKeyRepository(self.database), BackendRepository(self.database, SEALER)
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
        toolsets = Toolsets(
            self.directory.find, offers, self.knowledge, self.metrics, CallerLimits(self.metrics.rate_limited)
        )
        budgets = TenantBudgets(Metrics("test"))
        self.local = ChangeEffects(
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
            self.local,
            self.backends.get,
            self.backends,
            self.tenants,
            self.keys,
            issuers,
            self.switches,
            ConnectionRepository(self.database),
        )
        notices = None if connection is None else Notices(connection, Sealer(SECRET), name)
        self.follower = AuditFollower(self.database)
        self.changes = Changes(self.local, reconciler, self.follower, notices)
        self.database.after_commits(self.changes.committed)

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
        done = act("key.revoke", f"keys/{key_id}")
        await self.keys.revoke("acme", key_id, done.at, act=done)

    async def switch(self, name: str, *, enabled: bool, is_told: bool = True) -> BackendSpec:
        """A backend on or off."""
        spec = replace(await self.backends.get("acme", name), enabled=enabled)
        return await self.backends.replace(
            "acme", spec, act=act("backend.change", f"backends/{name}") if is_told else None
        )

    async def switch_tenant(self, *, enabled: bool, is_told: bool = True) -> None:
        tenant = replace(await self.tenants.get("acme"), enabled=enabled)
        await self.tenants.replace(tenant, act=act("tenant.change", "") if is_told else None)

    async def loses_its_place(self) -> None:
        """As after a start, or a failover."""
        self.follower._last = None
        await self.changes.look()


def act(action: str, target: str, detail: str = "") -> Act:
    return Act("acme", ADMINISTRATOR, action, target, datetime.now(UTC), "", detail)


@asynccontextmanager
async def nodes(
    url: str, redis_url: str | None, count: int = 2, every_s: float | None = None
) -> AsyncIterator[list[Node]]:
    """With a Redis they hear of a change by that only; without one they look often."""
    async with AsyncExitStack() as stack:
        every_s = every_s or (0.1 if redis_url is None else 600.0)
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(changes, "LOOK_EVERY_S", every_s)
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
            tasks.start_soon(node.changes.run)
            tasks.start_soon(node.knowledge.run)
        for node in made:
            await until(lambda node=node: bool(node.pool.specs))
        if redis_url is not None:
            with client_of(redis_url) as client:
                await until(lambda: client.info("clients")["blocked_clients"] == count)
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


async def test_a_revocation_has_ended_sessions_and_credentials_here_at_once_and_soon_on_every_node(url, empty_redis):
    async with nodes(url, empty_redis, 3) as made:
        key_id, key = await made[0].new_key()
        for node in made:
            await node.session(key)
        await made[0].revoke(key_id)
        assert not len(made[0].registry)
        await until(lambda: not any(len(node.registry) for node in made))
        assert [await node.knows(key) for node in made] == [False] * 3


@pytest.mark.parametrize("how", ["revoked", "switched off", "issuer gone", "tenant switched off", "tenant gone"])
async def test_the_alarm_for_a_credential_ends_with_it(url, how):
    async with nodes(url, None, 1) as (node,):
        key_id, key = await node.new_key()
        who, uses = await node.who(key), node.authenticator.uses
        for address in ("192.0.2.1", "198.51.100.7"):
            uses.note(who, address)
        assert uses.shown() == {who.identity}
        match how:
            case "revoked":
                await node.revoke(key_id)
            case "switched off":
                record = await node.keys.get("acme", key_id)
                await node.keys.switch(record, replace(record, enabled=False), act=act("key.change", f"keys/{key_id}"))
            case "issuer gone":
                await node.audit.append(act("issuer.delete", "issuers/1", who.issuer))
            case "tenant switched off":
                await node.switch_tenant(enabled=False)
            case "tenant gone":
                await node.tenants.delete("acme", act=act("tenant.delete", ""))
        assert not uses.shown()


@pytest.mark.real
async def test_a_revocation_reaches_every_node_within_two_seconds_while_redis_is_dead(url):
    with RedisServer() as server:
        async with nodes(url, server.url, every_s=LOOK_EVERY_S) as (one, two):
            key_id, key = await one.new_key()
            await two.session(key)
            server.kill()
            await one.revoke(key_id)
            async with stopwatch_of([psutil.Process()]) as watch:
                await until(lambda: not len(two.registry))
                assert watch.seconds < LOOK_EVERY_S + 1 <= 2
            assert not await two.knows(key)


async def test_a_restart_takes_effect_once_on_every_node(url, empty_redis):
    async with nodes(url, empty_redis) as made:
        _, key = await made[0].new_key()
        for node in made:
            await node.session(key)
        await made[0].audit.append(act("backend.restart", "backends/echo"))
        await until(lambda: not any(len(node.registry) for node in made))
        later = [await node.session(key) for node in made]
        for node in made:
            await node.changes.look()
        assert [list(node.registry) for node in made] == [[session] for session in later]
        assert [node.pool.restarted for node in made] == [[("acme", "echo")]] * 2


async def test_a_restart_among_more_changes_than_are_read_at_once_takes_effect(url, monkeypatch):
    monkeypatch.setattr(audit_follower, "AT_ONCE", 3)
    monkeypatch.setattr(changes, "MAX_DUE", 3)
    async with nodes(url, None, 1) as (node,):
        await node.changes.look()
        database = Database(url)
        async with node.changes._turn:
            for number in range(9):
                made = act("backend.restart", "backends/echo") if number == 4 else act("key.revoke", f"keys/{number}")
                await AuditLog(database).append(made)
        await database.aclose()
        await node.changes.look()
        assert node.pool.restarted == [("acme", "echo")]


async def test_changed_and_removed_backends_and_tenants_are_so_on_every_node(url, empty_redis):
    async with nodes(url, empty_redis) as (one, two):
        _, key = await one.new_key()
        session = await two.session(key)
        new = BackendSpec("acme", "imported", "/bin/cat", warm=1)
        await one.backends.create("acme", new, act=act("backend.create", "backends/imported"))
        await until(lambda: new.key in two.pool.specs)
        changed = await one.backends.replace("acme", session.spec, act=act("backend.change", "backends/echo"))
        await until(lambda: two.pool.specs[changed.key].version == 2)
        assert (await two.session(key)).spec.version == 2
        await one.tenants.replace(Tenant("acme", Limits(sessions=2)), act=act("tenant.change", ""))
        await until(lambda: dict(two.registry.gates)["acme"].limits.sessions == 2)
        await one.backends.delete("acme", "echo", act=act("backend.delete", "backends/echo"))
        await until(lambda: list(two.pool.specs) == [new.key] and not len(two.registry))
        await one.tenants.delete("acme", act=act("tenant.delete", ""))
        await until(lambda: not two.authenticator._known and not two.pool.specs)
        assert not await two.knows(key)


async def test_a_tenant_that_was_removed_and_made_again_before_a_node_looks_is_another_one(url):
    async with nodes(url, None) as (one, two):
        _, key = await one.new_key()
        await two.session(key)
        async with two.changes._turn:
            await one.tenants.delete("acme", act=act("tenant.delete", ""))
            await one.tenants.create(Tenant("acme"), act=act("tenant.create", ""))
        await until(lambda: not len(two.registry) and not two.pool.specs)


async def test_a_guide_that_was_written_is_known_to_every_node_that_has_read_guides(url, empty_redis):
    async with nodes(url, empty_redis) as (one, two):
        told = list[str]()
        two.knowledge.changed.listen(told.append)
        assert (await two.knowledge.of("acme")).guides == ()
        guide = Guide(name="style", text="x", changed_at=datetime.now(UTC))
        await one.guides.create("acme", guide, act=act("guide.create", "guides/style"))
        await until(lambda: told)
        assert [each.text for each in two.knowledge.cached("acme").guides] == ["x"]
        await one.guides.delete("acme", "style")  # and no act is written
        await two.loses_its_place()
        await until(lambda: not two.knowledge.cached("acme").guides)


async def test_what_is_switched_off_and_on_is_so_on_every_node(url, caplog):
    caplog.set_level("INFO")
    async with nodes(url, None) as (one, two):
        key_id, key = await one.new_key()
        record = await one.keys.get("acme", key_id)
        off = replace(record, enabled=False, reason="lost")
        session = await two.session(key)
        await one.keys.switch(record, off, act=act("key.change", f"keys/{key_id}"))
        await until(lambda: not len(two.registry))
        assert "this key is switched off: lost" in str(session.refusal)
        assert "Ended 1 session on this node: this key is switched off: lost" in caplog.messages
        with pytest.raises(Disabled, match="this key is switched off: lost"):
            await two.who(key)
        await one.keys.switch(off, record, act=act("key.change", f"keys/{key_id}"))
        await until(lambda: not two.authenticator._refused)
        session = await two.session(key)
        await one.switch_tenant(enabled=False)
        await until(lambda: not len(two.registry) and not two.pool.specs)
        assert not one.pool.specs
        with pytest.raises(Disabled, match="the tenant `acme` is switched off"):
            await two.who(key)
        changed = await one.backends.replace("acme", session.spec, act=act("backend.change", "backends/echo"))
        assert not one.pool.specs
        await one.switch_tenant(enabled=True)
        await until(lambda: all(node.pool.specs.get(changed.key) == changed for node in (one, two)))
        await two.session(key)


@pytest.mark.parametrize("what", ["revoked key", "key", "principal", "tenant", "backend"])
async def test_who_does_not_know_its_place_compares_everything(url, empty_redis, what):
    """No act is written: a failover, a restored backup, or a node that was away for long."""
    async with nodes(url, empty_redis) as (one, two):
        key_id, key = await one.new_key()
        _, other = await one.new_key()
        session, kept = await two.session(key), await two.session(other)
        if what == "revoked key":
            await one.keys.revoke("acme", key_id, datetime.now(UTC))
        elif what == "key":
            record = await one.keys.get("acme", key_id)
            await one.keys.switch(record, replace(record, enabled=False))
        elif what == "tenant":
            await one.switch_tenant(enabled=False, is_told=False)
        elif what == "backend":
            await one.switch("echo", enabled=False, is_told=False)
        else:
            alice = Principal("acme", "https://i", "alice", frozenset({"mcp:connect"}))
            session = await two.registry.open(alice, "acme", "echo", "streamable")
            await one.switches.change(None, PrincipalOff("acme", "https://i", "alice", "", False, datetime.now(UTC)))
        await two.loses_its_place()
        two.changes.look_soon()
        await until(lambda: session not in list(two.registry))
        if what != "revoked key":
            assert isinstance(session.refusal, Disabled)
            assert session.refusal.what == what
        if what in ("tenant", "backend"):
            await until(lambda: not two.pool.specs and not len(two.registry))
        else:
            assert kept in list(two.registry)


async def test_whatever_order_they_were_made_in_all_changes_end_as_what_is_stored(url, empty_redis):
    async with nodes(url, empty_redis) as made, anyio.create_task_group() as tasks:
        names = ["a", "b", "c"]
        for name in names:
            new = BackendSpec("acme", name, "/bin/cat", warm=1)
            await made[0].backends.create("acme", new, act=act("backend.create", f"backends/{name}"))

        async def change(node: Node, name: str) -> None:
            for number in range(7):
                with suppress(ConcurrentChange):
                    await node.switch(name, enabled=number % 2 == 0)

        async with anyio.create_task_group() as changing:
            for node in made:
                for name in names:
                    changing.start_soon(change, node, name)
        stored = [await made[0].backends.get("acme", name) for name in names]
        wanted = {spec.key: spec for spec in stored if spec.enabled}
        for node in made:
            await node.changes.look()
            del node.pool.specs["acme", "echo"]
            assert node.pool.specs == wanted
        tasks.cancel_scope.cancel()


async def test_while_the_database_is_away_nothing_is_believed_of_what_is_due(url, monkeypatch):
    """The row of the revocation was read, the key itself could not be."""
    async with nodes(url, None) as (one, two):
        key_id, key = await one.new_key()
        await two.session(key)
        is_away = StorageUnavailable()
        with monkeypatch.context() as away:
            away.setattr(two.keys, "standing", fails(is_away))
            away.setattr(two.keys, "find", fails(is_away))
            await one.revoke(key_id)
            await until(lambda: two.changes._due)
            with pytest.raises(StorageUnavailable):
                await two.who(key)
        await until(lambda: not len(two.registry))


async def test_what_a_bug_keeps_from_this_node_stays_due_is_said_once_and_keeps_nothing_else(url, monkeypatch, caplog):
    async with nodes(url, None, 1) as (node,):
        (key_id, key), (later_id, later) = await node.new_key(), await node.new_key()
        session, other = await node.session(key), await node.session(later)
        with monkeypatch.context() as odd:
            odd.setattr(node.local, "key_revoked", Odd(node.local, ("acme", "key", key_id)))
            await node.revoke(key_id)
            await node.revoke(later_id)
            for _ in range(2):
                await node.changes.look()
            assert list(node.registry) == [session]
        await until(lambda: not len(node.registry))
        (said,) = [each for each in caplog.messages if "Could not apply a change to this node; will retry" in each]
        assert key_id in said
        assert other not in list(node.registry)


class Odd:
    """Fails for this identity."""

    def __init__(self, local: ChangeEffects, identity: tuple[str, str, str]) -> None:
        self.revoked, self.identity = local.key_revoked, identity

    def __call__(self, identity: tuple[str, str, str]) -> None:
        if identity == self.identity:
            raise ZeroDivisionError
        self.revoked(identity)


async def test_after_a_bug_in_what_ends_at_once_everything_is_compared(url, monkeypatch):
    async with nodes(url, None, 1) as (node,):
        key_id, key = await node.new_key()
        await node.session(key)
        await node.keys.revoke("acme", key_id, datetime.now(UTC))
        monkeypatch.setattr(node.local, "doubt", lambda affected: 1 / 0)
        await node.audit.append(act("backend.restart", "backends/echo"))
        assert not len(node.registry)


async def test_what_is_new_is_not_kept_waiting_by_a_comparison_of_everything(url, monkeypatch):
    async with nodes(url, None, 1) as (node,):
        compared, may_go_on, compare = list[Affected](), anyio.Event(), node.changes._reconciler.compare

        async def slowly(affected: Affected) -> Any:
            compared.append(affected)
            if affected.kind is Kind.BACKEND and affected.about[1] != "new":
                await may_go_on.wait()
            return await compare(affected)

        monkeypatch.setattr(node.changes._reconciler, "compare", slowly)
        node.changes._doubtful = {Affected(Kind.BACKEND, ("acme", f"b{number}")): False for number in range(10)}
        await until(lambda: compared)
        async with anyio.create_task_group() as tasks:
            new = BackendSpec("acme", "new", "/bin/cat")
            tasks.start_soon(partial(node.backends.create, "acme", new, act=act("backend.create", "backends/new")))
            await until(lambda: node.changes._turn.statistics().tasks_waiting)
            may_go_on.set()
        assert Affected(Kind.BACKEND, new.key) in compared[:3]
        await until(lambda: not node.changes._doubtful)


async def test_too_much_at_once_is_compared_as_everything(url, monkeypatch):
    monkeypatch.setattr(changes, "MAX_DUE", 3)
    async with nodes(url, None, 1) as (node,):
        async with node.changes._turn:
            node.changes._note([act("backend.change", f"backends/b{number}") for number in range(5)])
            assert EVERYTHING in node.changes._due
        await until(lambda: not node.changes._due and not node.changes._doubtful)


def fails(error: Exception) -> Any:
    async def method(*_: object, **__: object) -> None:
        raise error

    return method


async def test_sessions_end_that_were_opened_before_their_backend_had_a_list(url):
    """Every call of theirs would reach it. Others are shown something else."""
    async with nodes(url, None) as (one, two):
        await one.backends.create("acme", BackendSpec("acme", "other", "/bin/cat"))
        _, key = await one.new_key()
        for node in (one, two):
            await node.session(key)
            await node.registry.open(await node.who(key), "acme", "other", "streamable")
        spec = await one.backends.get("acme", "echo")
        listed = replace(spec, access=(AccessEntry(Who(everyone=True), ("say",)),))
        await one.backends.replace("acme", listed, act=act("backend.change", "backends/echo"))
        for node in (one, two):
            await until(lambda node=node: len(node.registry) == 1)
            assert [each.spec.name for each in node.registry] == ["other"]
            later = await node.session(key)
            assert later.spec.is_toolset
        spec = await one.backends.get("acme", "echo")
        await one.backends.replace("acme", replace(spec, access=()), act=act("backend.change", "backends/echo"))
        await one.changes.look()
        assert len(one.registry) == 2
