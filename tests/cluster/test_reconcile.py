"""Reconciler: what the database says becomes true here, with fakes for both."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import anyio
import pytest

from app.cluster import reconcile
from app.cluster.reconcile import Reconciler
from app.cluster.routing.notice import RESYNC, Kind, Notice
from app.domain import BackendSpec, Limits, Selection, Tenant
from app.errors import BackendNotFound, Disabled, NotFound, StorageUnavailable

Identity = tuple[str, str, str]

ECHO = BackendSpec("acme", "echo", "/bin/cat", version=3)
CHANGED = Notice(Kind.BACKEND_CHANGED, ECHO.key)
TENANT = Notice(Kind.TENANT_CHANGED, ("acme",))


class Node:
    """Writes down what it is told (for ChangeEffects); runs what it is given."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.known: dict[tuple[str, str], BackendSpec] = {}
        self.sessions: list[tuple[BackendSpec, tuple[str, str, str]]] = []
        self.off = set[str]()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.told.append((name, *arguments))

    def backend_changed(self, spec: BackendSpec) -> None:
        self.told.append(("backend_changed", spec))
        self.known[spec.key] = spec

    def backend_removed(self, key: tuple[str, str]) -> None:
        self.told.append(("backend_removed", key))
        self.known.pop(key, None)

    @property
    def tenants_off(self) -> dict[str, Disabled]:
        return {tenant: Disabled("tenant", tenant) for tenant in self.off}

    def is_off(self, tenant: str) -> bool:
        return tenant in self.off

    def current(self, key: tuple[str, str]) -> BackendSpec | None:
        return self.known.get(key)

    def running(self, key: tuple[str, str]) -> list[BackendSpec]:
        return [spec for spec, _ in self.sessions if spec.key == key]

    def backends(self) -> set[tuple[str, str]]:
        return {*self.known, *(spec.key for spec, _ in self.sessions)}

    def inspected(self) -> set[str]:
        return set()

    def identities(self) -> set[tuple[str, str, str]]:
        return {identity for _, identity in self.sessions}


class Stores:
    """All that is stored (for the repositories); answers once `gate` is open."""

    def __init__(self) -> None:
        self.specs = {ECHO.key: ECHO}
        self.tenants = {"acme": Tenant("acme", Limits(sessions=7))}
        self.valid = {("acme", "good")}
        self.issuers = {("acme", "https://good")}
        self.switched_off = dict[Identity, Disabled]()
        self.is_away = False
        self.fails_at = 0  # the number of the question that gets no answer
        self.bug_until = 0  # the number of the question from which on there is no bug
        self.asked: list[Any] = []
        self.gate = anyio.Event()
        self.gate.set()

    async def _ask(self, *what: Any) -> None:
        self.asked.append(what)
        if self.is_away or len(self.asked) == self.fails_at:
            raise StorageUnavailable
        if len(self.asked) < self.bug_until:
            raise ZeroDivisionError
        await self.gate.wait()

    async def backend(self, tenant: str, name: str) -> BackendSpec:
        found = self.specs.get((tenant, name))
        await self._ask(tenant, name)
        if found is None:
            raise BackendNotFound
        return found

    async def list_warm(self, tenant: str | None = None) -> Sequence[BackendSpec]:
        await self._ask("warm")
        return [spec for spec in self.specs.values() if spec.warm and tenant in (None, spec.tenant)]

    async def off(self, identity: Identity) -> Disabled | None:
        await self._ask(identity)
        return self.switched_off.get(identity)

    async def off_among(self, identities: Collection[Identity]) -> dict[Identity, Disabled]:
        return {each: self.switched_off[each] for each in identities if each in self.switched_off}

    async def tenants_off(self) -> dict[str, Disabled]:
        off = (tenant for tenant in self.tenants.values() if not tenant.enabled)
        return {tenant.name: Disabled("tenant", tenant.name, tenant.reason) for tenant in off}

    async def tenant(self, name: str) -> Tenant:
        await self._ask(name)
        if name not in self.tenants:
            raise NotFound
        return self.tenants[name]

    async def standing(self, keys: Collection[tuple[str, str]], now: datetime) -> set[tuple[str, str]]:
        await self._ask(*keys)
        return self.valid & set(keys)

    async def issuer(self, tenant: str, issuer: str) -> object | None:
        await self._ask(tenant, issuer)
        return object() if (tenant, issuer) in self.issuers else None


class Rig:
    def __init__(self) -> None:
        self.node, self.stores = Node(), Stores()
        stores = self.stores
        local: Any = self.node
        self.reconciler = Reconciler(
            local,
            stores.backend,
            _Methods(list_warm=stores.list_warm),
            _Methods(get=stores.tenant),
            _Methods(standing=stores.standing),
            _Methods(find=stores.issuer),
            _Methods(off=stores.off, off_among=stores.off_among, tenants_off=stores.tenants_off),
        )

    async def has_asked(self, count: int) -> None:
        """Waits until the database was asked so often."""
        with anyio.fail_after(20):
            while len(self.stores.asked) < count:
                await anyio.sleep(0.001)

    async def settle(self) -> list[tuple[Any, ...]]:
        """Waits until nothing is due; what the node was told."""
        with anyio.fail_after(20):
            while self.reconciler._due or self.reconciler._doubtful or self.reconciler._in_hand is not None:
                await anyio.sleep(0.001)
        told, self.node.told = self.node.told, []
        return told


def _Methods(**methods: Any) -> Any:  # noqa: N802 - stands for a class
    return type("Methods", (), {name: staticmethod(method) for name, method in methods.items()})()


@pytest.fixture
async def rig(monkeypatch):
    monkeypatch.setattr(reconcile, "RETRY_S", 0.01)
    rig = Rig()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.reconciler.run)
        yield rig
        tasks.cancel_scope.cancel()


async def test_a_backend_is_read_again_and_configured(rig):
    rig.reconciler.add(CHANGED)
    assert await rig.settle() == [("backend_changed", ECHO)]


async def test_one_that_is_known_as_it_is_stays_undisturbed(rig):
    rig.node.known[ECHO.key] = ECHO
    rig.reconciler.add(CHANGED)
    assert await rig.settle() == []


async def test_one_that_is_gone_is_removed(rig):
    rig.stores.specs.clear()
    rig.reconciler.add(CHANGED)
    assert await rig.settle() == [("backend_removed", ECHO.key)]


@pytest.mark.parametrize("where", ["known", "sessions"])
async def test_one_that_was_removed_and_made_again_is_another_one(rig, where):
    before = replace(ECHO, command="/bin/before", version=3)
    if where == "known":
        rig.node.known[ECHO.key] = before
    else:
        rig.node.sessions = [(before, ("acme", "key", "good"))]
    rig.reconciler.add(CHANGED)
    assert await rig.settle() == [("backend_removed", ECHO.key), ("backend_changed", ECHO)]


async def test_one_of_a_tenant_that_was_made_anew_is_another_one_whatever_its_version(rig):
    rig.node.sessions = [(replace(ECHO, version=ECHO.version - 1, home="acme.1"), ("acme", "key", "good"))]
    rig.reconciler.add(CHANGED)
    assert await rig.settle() == [("backend_removed", ECHO.key), ("backend_changed", ECHO)]


async def test_sessions_of_an_older_version_go_on(rig):
    rig.node.sessions = [(replace(ECHO, version=2), ("acme", "key", "good"))]
    rig.reconciler.add(CHANGED)
    assert await rig.settle() == [("backend_changed", ECHO)]


async def test_one_whose_tools_are_chosen_or_pinned_stays_undisturbed(rig):
    """Its sessions lease the processes of all its tools (`Toolsets._lease_member`): the pool knows no selection."""
    shown = replace(ECHO, selection=Selection(include=("say",)), pin="block")
    rig.stores.specs[ECHO.key] = shown
    rig.node.known[ECHO.key], rig.node.sessions = ECHO, [(shown, ("acme", "key", "good"))]
    rig.reconciler.add(CHANGED)
    assert await rig.settle() == []


async def test_a_tenant_is_read_again(rig):
    rig.reconciler.add(TENANT)
    assert await rig.settle() == [("tenant_changed", Tenant("acme", Limits(sessions=7)))]
    rig.stores.tenants.clear()
    rig.reconciler.add(TENANT)
    assert await rig.settle() == [("tenant_removed", "acme")]


async def test_what_a_tenant_keeps_warm_is_looked_up_when_it_is_on_again_and_not_else(rig):
    warm = replace(ECHO, name="warm", warm=1)
    rig.stores.specs[warm.key] = warm
    rig.node.off = {"acme"}
    rig.reconciler.add(TENANT)
    told = await rig.settle()
    assert told == [("tenant_changed", rig.stores.tenants["acme"]), ("backend_changed", warm)]
    rig.node.off = set()
    rig.reconciler.add(TENANT)
    assert await rig.settle() == [("tenant_changed", rig.stores.tenants["acme"])]
    rig.reconciler.came_back("acme")
    rig.stores.fails_at = len(rig.stores.asked) + 2  # the look at what is warm
    await rig.settle()
    assert rig.stores.asked[-2:] == [("warm",), warm.key]


async def test_one_that_is_off_and_on_again_while_that_is_looked_up_is_looked_up_again(rig):
    """The answer is late, and from when it was off: what it keeps warm would not be started."""
    warm, is_asked, may_answer = replace(ECHO, warm=1), anyio.Event(), anyio.Event()
    answers: list[list[BackendSpec]] = [[]]
    rig.stores.specs[ECHO.key] = warm

    async def list_warm(tenant):
        if not answers:
            return [warm]
        is_asked.set()
        await may_answer.wait()
        return answers.pop()

    rig.reconciler._backends = _Methods(list_warm=list_warm)
    rig.reconciler.came_back("acme")
    with anyio.fail_after(5):
        await is_asked.wait()
    rig.reconciler.came_back("acme")
    may_answer.set()
    assert ("backend_changed", warm) in await rig.settle()


async def test_a_principal_is_looked_up(rig):
    identity = ("acme", "https://idp", "al ice")
    notice = Notice(Kind.PRINCIPAL_CHANGED, identity)
    rig.reconciler.add(notice)
    assert await rig.settle() == [("principal_changed", identity, None)]
    off = rig.stores.switched_off[identity] = Disabled("principal", "al ice")
    rig.reconciler.add(notice)
    assert await rig.settle() == [("principal_changed", identity, off)]


async def test_what_changes_while_it_is_read_is_read_again(rig):
    rig.stores.gate = anyio.Event()
    rig.reconciler.add(CHANGED)
    await rig.has_asked(1)
    newer = rig.stores.specs[ECHO.key] = replace(ECHO, version=4)
    rig.node.known[ECHO.key] = newer
    rig.reconciler.supersede(CHANGED)
    rig.stores.gate.set()
    assert await rig.settle() == []
    assert rig.node.known[ECHO.key] == newer


async def test_what_a_bug_kept_from_this_node_stays_due_and_is_said_once(rig, monkeypatch, caplog):
    monkeypatch.setattr("app.cluster.reconcile.RETRY_S", 0.001)
    rig.stores.bug_until = 4
    rig.reconciler.add(CHANGED)
    assert await rig.settle() == [("backend_changed", ECHO)]
    (line,) = caplog.records
    assert line.getMessage().startswith("Could not apply a change to this node; will retry: BACKEND_CHANGED")


async def test_while_the_database_is_away_it_stays_due(rig):
    rig.stores.is_away = True
    rig.reconciler.add(CHANGED)
    rig.reconciler.add(RESYNC)
    await rig.has_asked(3)
    assert rig.node.told == []
    rig.stores.is_away = False
    assert ("backend_changed", ECHO) in await rig.settle()


async def test_after_a_gap_everything_is_looked_up_each_once(rig):
    warm = replace(ECHO, name="warm", warm=1)
    gone, checked = ("acme", "gone"), ("acme", "echo:check")
    rig.stores.specs[warm.key] = warm
    rig.node.known = {ECHO.key: replace(ECHO, version=2), gone: ECHO, checked: ECHO}
    identities = [("acme", "key", "good"), ("acme", "key", "bad"), ("acme", "https://good", "x")]
    identities += [("acme", "https://bad", "x"), ("acme", "https://bad", "y")]
    rig.node.sessions = [(ECHO, identity) for identity in identities * 2]
    rig.reconciler.add(RESYNC)
    told = await rig.settle()
    assert told[0] == ("forget_everything",)
    assert sorted(map(repr, told[1:])) == sorted(
        map(
            repr,
            [
                ("key_revoked", ("acme", "key", "bad")),
                ("issuer_changed", "acme", "https://bad"),
                ("tenant_changed", Tenant("acme", Limits(sessions=7))),
                ("backend_changed", ECHO),
                ("backend_changed", warm),
                ("backend_removed", gone),
            ],
        )
    )
    assert len(rig.stores.asked) == len(set(map(frozenset, rig.stores.asked))) == 8
    assert checked in rig.node.known


async def test_what_is_known_to_have_changed_does_not_wait_for_a_look_at_everything(rig):
    """However much a node runs, a change that it is told of takes effect at once."""
    many = [replace(ECHO, name=f"b{number}") for number in range(100)]
    rig.stores.specs |= {spec.key: spec for spec in many}
    rig.node.known = {spec.key: spec for spec in many}
    rig.stores.gate = anyio.Event()
    rig.reconciler.add(RESYNC)
    await rig.has_asked(1)
    rig.reconciler.add(CHANGED)
    rig.stores.gate.set()
    await rig.settle()
    assert rig.stores.asked[1] == ECHO.key
    assert len(rig.stores.asked) == 1 + 1 + 1 + len(many), "what runs, the change, the tenant, and each backend"


async def test_a_look_at_everything_is_finished_before_the_next(rig, monkeypatch):
    """Otherwise connections that come and go would keep what is looked at last from being looked at."""
    monkeypatch.setattr(reconcile, "RESYNC_EVERY_S", 0.0)
    names = [f"b{number}" for number in range(10)]
    rig.stores.specs = {("acme", name): replace(ECHO, name=name) for name in names}
    rig.node.known = dict(rig.stores.specs)
    asked = rig.stores.asked
    rig.reconciler.add(RESYNC)
    for count in range(1, 10):
        await rig.has_asked(count)
        rig.reconciler.add(RESYNC)
    await rig.settle()
    assert {name for _, name in [each for each in asked[:12] if len(each) == 2]} == set(names)


async def test_what_the_database_could_not_tell_is_asked_again_and_nothing_else(rig):
    rig.node.known = {ECHO.key: ECHO, ("acme", "other"): replace(ECHO, name="other")}
    rig.stores.specs = dict(rig.node.known)
    rig.reconciler.add(RESYNC)
    rig.stores.fails_at = 3
    await rig.settle()
    assert rig.stores.asked.count(("warm",)) == 1
    assert sorted(Counter(rig.stores.asked).values()) == [1, 1, 1, 2]


async def test_a_gap_right_after_another_waits_its_second(rig, monkeypatch):
    monkeypatch.setattr(reconcile, "RESYNC_EVERY_S", 60.0)  # longer than any machine stands still
    rig.reconciler.add(RESYNC)
    await rig.settle()
    rig.reconciler.add(RESYNC)
    with anyio.move_on_after(0.2):
        await rig.settle()
    assert rig.node.told == []
    rig.reconciler._next_resync_at = 0.0
    rig.reconciler.add(CHANGED)
    assert ("forget_everything",) in await rig.settle()


def test_too_much_at_once_becomes_a_gap():
    rig = Rig()
    for number in range(reconcile.MAX_DUE + 5):
        rig.reconciler.add(Notice(Kind.BACKEND_CHANGED, ("acme", f"b{number}")))
    assert RESYNC in rig.reconciler._due
    assert len(rig.reconciler._due) <= reconcile.MAX_DUE
