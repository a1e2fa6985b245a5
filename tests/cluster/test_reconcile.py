"""Reconciler: what the database says becomes true here, with fakes for both."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from app.cluster._affected import EVERYTHING, Affected, Kind
from app.cluster.reconcile import Reconciler
from app.domain import BackendSpec, Limits, Selection, Tenant
from app.domain.resources.access import AccessEntry, Who
from app.errors import BackendNotFound, Disabled, NotFound, StorageUnavailable

Identity = tuple[str, str, str]

ECHO = BackendSpec("acme", "echo", "/bin/cat", version=3)
CHANGED = Affected(Kind.BACKEND, ECHO.key)
TENANT = Affected(Kind.TENANT, ("acme",))


class Node:
    """Writes down what it is told (for ChangeEffects); runs what it is given."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.known: dict[tuple[str, str], BackendSpec] = {}
        self.sessions: list[tuple[BackendSpec, tuple[str, str, str]]] = []
        self.off = set[str]()
        self.granted = dict[str, set[str]]()

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

    def grants(self, tenant: str) -> set[str]:
        return self.granted.get(tenant, set())

    def identities(self) -> set[tuple[str, str, str]]:
        return {identity for _, identity in self.sessions}


class Stores:
    """All that is stored (for the repositories)."""

    def __init__(self) -> None:
        self.specs = {ECHO.key: ECHO}
        self.tenants = {"acme": Tenant("acme", Limits(sessions=7))}
        self.valid = {("acme", "good")}
        self.issuers = {("acme", "https://good")}
        self.switched_off = dict[Identity, Disabled]()
        self.fails_at = 0  # the number of the question that gets no answer
        self.asked: list[Any] = []

    def _ask(self, *what: Any) -> None:
        self.asked.append(what)
        if len(self.asked) == self.fails_at:
            raise StorageUnavailable

    async def backend(self, tenant: str, name: str) -> BackendSpec:
        self._ask(tenant, name)
        if (tenant, name) not in self.specs:
            raise BackendNotFound
        return self.specs[tenant, name]

    async def list_warm(self, tenant: str | None = None) -> Sequence[BackendSpec]:
        self._ask("warm")
        return [spec for spec in self.specs.values() if spec.warm and tenant in (None, spec.tenant)]

    async def off_among(self, identities: Collection[Identity]) -> dict[Identity, Disabled]:
        self._ask("off")
        return {each: self.switched_off[each] for each in identities if each in self.switched_off}

    async def tenants_off(self) -> dict[str, Disabled]:
        off = (tenant for tenant in self.tenants.values() if not tenant.enabled)
        return {tenant.name: Disabled("tenant", tenant.name, tenant.reason) for tenant in off}

    async def tenant(self, name: str) -> Tenant:
        self._ask(name)
        if name not in self.tenants:
            raise NotFound
        return self.tenants[name]

    async def standing(self, keys: Collection[tuple[str, str]], now: datetime) -> set[tuple[str, str]]:
        self._ask(*keys)
        return self.valid & set(keys)

    async def standing_grants(self, tenant: str, grants: Collection[str], now: datetime) -> set[str]:
        self._ask(tenant, *grants)
        return set(grants) & {"goes on"}

    async def issuer(self, tenant: str, issuer: str) -> object | None:
        self._ask(tenant, issuer)
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
            _Methods(off_among=stores.off_among, tenants_off=stores.tenants_off),
            _Methods(standing=stores.standing_grants),
        )

    async def compare(self, affected: Affected) -> list[tuple[Any, ...]]:
        """Compares this, and what else is to be compared then; what the node was told."""
        for each in await self.reconciler.compare(affected):
            assert await self.reconciler.compare(each) == ()
        told, self.node.told = self.node.told, []
        return told


def _Methods(**methods: Any) -> Any:  # noqa: N802 - stands for a class
    return type("Methods", (), {name: staticmethod(method) for name, method in methods.items()})()


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_backend_is_read_again_and_configured(rig):
    assert await rig.compare(CHANGED) == [("backend_changed", ECHO)]


async def test_one_that_is_known_as_it_is_stays_undisturbed(rig):
    rig.node.known[ECHO.key] = ECHO
    assert await rig.compare(CHANGED) == []


async def test_one_that_is_gone_is_removed(rig):
    rig.stores.specs.clear()
    assert await rig.compare(CHANGED) == [("backend_removed", ECHO.key)]


@pytest.mark.parametrize("where", ["known", "sessions"])
async def test_one_that_was_removed_and_made_again_is_another_one(rig, where):
    before = replace(ECHO, command="/bin/before", version=3)
    if where == "known":
        rig.node.known[ECHO.key] = before
    else:
        rig.node.sessions = [(before, ("acme", "key", "good"))]
    assert await rig.compare(CHANGED) == [("backend_removed", ECHO.key), ("backend_changed", ECHO)]


async def test_one_of_a_tenant_that_was_made_anew_is_another_one_whatever_its_version(rig):
    rig.node.sessions = [(replace(ECHO, version=ECHO.version - 1, home="acme.1"), ("acme", "key", "good"))]
    assert await rig.compare(CHANGED) == [("backend_removed", ECHO.key), ("backend_changed", ECHO)]


async def test_sessions_of_an_older_version_go_on(rig):
    rig.node.sessions = [(replace(ECHO, version=2), ("acme", "key", "good"))]
    assert await rig.compare(CHANGED) == [("backend_changed", ECHO)]


async def test_one_whose_tools_are_chosen_or_pinned_stays_undisturbed(rig):
    """Its sessions lease the processes of all its tools (`Toolsets._lease_member`): the pool knows no selection."""
    shown = replace(ECHO, selection=Selection(include=("say",)), pin="block")
    rig.stores.specs[ECHO.key] = shown
    rig.node.known[ECHO.key], rig.node.sessions = ECHO, [(shown, ("acme", "key", "good"))]
    assert await rig.compare(CHANGED) == []


@pytest.mark.parametrize("where", ["known", "sessions"])
async def test_one_with_another_list_is_told_to_open_sessions_and_its_processes_stay(rig, where):
    listed = replace(ECHO, access=(AccessEntry(Who(everyone=True), ("*",)),))
    for before, now in ((ECHO, listed), (listed, ECHO), (listed, replace(listed, access=listed.access * 2))):
        rig.stores.specs[ECHO.key] = now
        rig.node.known[ECHO.key] = before if where == "known" else now
        rig.node.sessions = [(before, ("acme", "key", "good"))] if where == "sessions" else []
        assert await rig.compare(CHANGED) == [("access_changed", now)]
        rig.node.known[ECHO.key], rig.node.sessions = now, []
        assert await rig.compare(CHANGED) == []


async def test_a_tenant_is_read_again_with_what_it_keeps_warm(rig):
    """That was stopped if the tenant was off."""
    warm = replace(ECHO, name="warm", warm=1)
    rig.stores.specs[warm.key] = warm
    assert await rig.compare(TENANT) == [
        ("tenant_changed", Tenant("acme", Limits(sessions=7))),
        ("backend_changed", warm),
    ]
    rig.stores.fails_at = len(rig.stores.asked) + 2
    with pytest.raises(StorageUnavailable):
        await rig.compare(TENANT)
    assert rig.node.told == [], "it may not count as switched on before what it keeps warm is known"
    rig.stores.tenants.clear()
    assert await rig.compare(TENANT) == [("tenant_removed", "acme")]


async def test_keys_and_principals_are_looked_up(rig):
    alice, key = ("acme", "https://idp", "al ice"), ("acme", "key", "good")
    for identity in (alice, key):
        affected = Affected(Kind.PRINCIPAL, identity)
        assert await rig.compare(affected) == []
        off = rig.stores.switched_off[identity] = Disabled("principal", identity[2])
        assert await rig.compare(affected) == [("principal_off", identity, off)]
    revoked = ("acme", "key", "bad")
    assert await rig.compare(Affected(Kind.PRINCIPAL, revoked)) == [("key_revoked", revoked)]


async def test_everything_is_compared_each_once(rig):
    warm = replace(ECHO, name="warm", warm=1)
    gone, checked = ("acme", "gone"), ("acme", "echo:check")
    rig.stores.specs[warm.key] = warm
    rig.node.known = {ECHO.key: replace(ECHO, version=2), gone: ECHO, checked: ECHO}
    identities = [("acme", "key", "good"), ("acme", "key", "bad"), ("acme", "https://good", "x")]
    identities += [("acme", "https://bad", "x"), ("acme", "https://bad", "y")]
    rig.node.sessions = [(ECHO, identity) for identity in identities * 2]
    told = await rig.compare(EVERYTHING)
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
    questions = [frozenset(each) for each in rig.stores.asked if each != ("warm",)]
    assert len(questions) == len(set(questions)) == 8
    assert checked in rig.node.known


async def test_of_what_was_granted_goes_on_what_is_stored(rig):
    assert await rig.compare(Affected(Kind.GRANTS, ("acme",))) == []
    rig.node.granted["acme"] = {"goes on", "is over"}
    assert await rig.compare(Affected(Kind.GRANTS, ("acme",))) == [("grants_over", "acme", {"goes on"})]


async def test_without_an_answer_nothing_is_forgotten(rig):
    rig.stores.fails_at = 1
    with pytest.raises(StorageUnavailable):
        await rig.compare(EVERYTHING)
    assert rig.node.told == []
