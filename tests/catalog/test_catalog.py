"""The catalogue: real backends are asked once, together, and again when something has changed."""

from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from app.catalog import catalog as catalog_module
from app.catalog.catalog import Catalog, definition_of
from app.domain import Sandbox
from app.errors import NotFound, StorageUnavailable
from app.storage.tools.catalog import CatalogRow
from tests.backends.rig import NO_LIMITS
from tests.processes.rig import eventually, spec_of


class Store:
    """The database's part, as values."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], CatalogRow] = {}
        self.reads = 0
        self.is_away = False

    async def get(self, tenant, backends):
        self.reads += 1
        if self.is_away:
            raise StorageUnavailable
        return {name: self.rows[tenant, name] for name in backends if (tenant, name) in self.rows}

    async def put(self, tenant, backend, definition, offer, now):
        before = self.rows.get((tenant, backend))
        revision = 1 if before is None else before.revision + (before.offer != offer)
        self.rows[tenant, backend] = row = CatalogRow(tenant, backend, definition, revision, offer, now, now)
        return row


class Rig:
    def __init__(self, running, pool) -> None:
        self.running, self.store = running, Store()
        self.specs = {name: toolbox(name) for name in ("red", "blue")}
        self.catalog = Catalog(self.store, self.find, pool, running.metrics)
        self.changes: list[tuple[str, str]] = []
        self.catalog.changed.listen(self.changes.append)

    async def find(self, tenant, name):
        if name not in self.specs:
            raise NotFound
        return self.specs[name], NO_LIMITS

    @property
    def started(self) -> float:
        return self.running.value("trunkline_process_spawns_total", result="started")


def toolbox(name: str):
    return spec_of("toolbox", name, name=name)


@pytest.fixture
async def rig(running, make_pool):
    return Rig(running, await make_pool())


def tools(offer) -> int:
    return len(offer.items("tools/list"))


async def test_backends_are_asked_once_however_many_want_to_know(rig):
    found = []

    async def ask():
        found.append(await rig.catalog.of_members("acme", ["red", "blue"]))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
    assert [[tools(offer) for offer in each] for each in found] == [[6, 6]] * 5
    assert rig.started == 2
    assert sorted(rig.changes) == [("acme", "blue"), ("acme", "red")]
    again = await rig.catalog.of_members("acme", ["blue"])
    assert again[0] is found[0][1]
    assert rig.started == 2


async def test_what_another_node_has_stored_is_read_and_nothing_started(rig, monkeypatch):
    other = Catalog(rig.store, rig.find, None, rig.running.metrics)  # type: ignore[arg-type]
    await rig.catalog.of_members("acme", ["red"])
    (offer,) = await other.of_members("acme", ["red"])
    assert offer == rig.catalog.cached("acme", ["red"])[0]
    monkeypatch.setattr(catalog_module, "MAX_AGE_S", 0.0)
    await rig.catalog.note(rig.specs["red"], replace_tools(offer))
    reads = rig.store.reads
    await anyio.lowlevel.checkpoint()
    other._entries = {key: (entry, 0.0) for key, (entry, _) in other._entries.items()}
    assert tools((await other.of_members("acme", ["red"]))[0]) == 0
    assert rig.store.reads == reads + 1


def replace_tools(offer):
    return offer.with_list("tools/list", [])


async def test_one_that_does_not_start_is_unknown_with_the_reason_and_not_asked_again_at_once(rig):
    rig.specs["bad"] = replace(toolbox("bad"), command="/nowhere/at/all")
    found = await rig.catalog.of_members("acme", ["red", "bad", "unknown"])
    assert [offer is None for offer in found] == [False, True, True]
    assert "/nowhere/at/all" in rig.catalog.problem(("acme", "bad"))
    assert rig.catalog.problem(("acme", "unknown")) is None
    started = rig.started
    assert (await rig.catalog.of_members("acme", ["bad"])) == [None]
    assert rig.started == started


def mute(name: str, tenant: str = "acme"):
    return replace(spec_of("trickster", "mute", name=name), tenant=tenant)


async def test_one_that_never_answers_is_waited_for_once(rig, monkeypatch):
    monkeypatch.setattr(catalog_module, "FIRST_S", 0.5)
    monkeypatch.setattr(catalog_module, "RETRY_S", 0.0)  # it may be asked again at once, but nobody waits for that
    rig.specs["mute"] = mute("mute")
    assert (await rig.catalog.of_members("acme", ["mute"])) == [None]
    assert "within" in rig.catalog.problem(("acme", "mute"))
    with anyio.fail_after(0.4):
        assert (await rig.catalog.of_members("acme", ["mute"])) == [None]


async def test_backends_that_never_answer_hold_up_no_other_tenant(rig):
    rig.specs |= {f"mute{number}": mute(f"mute{number}", "evil") for number in range(10)}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.catalog.run)
        for number in range(10):
            rig.catalog.doubt(("evil", f"mute{number}"))
        await eventually(lambda: rig.started == 2, 10)
        rig.catalog.doubt(("acme", "red"))
        await eventually(lambda: rig.catalog.cached("acme", ["red"])[0] is not None, 10)
        assert rig.started == 3
        tasks.cancel_scope.cancel()


async def test_a_doubt_is_cleared_in_the_background(rig, monkeypatch):
    monkeypatch.setattr(catalog_module, "RETRY_S", 0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.catalog.run)
        (offer,) = await rig.catalog.of_members("acme", ["red"])
        rig.catalog.used(rig.specs["red"])
        rig.specs["red"] = replace(rig.specs["red"], args=toolbox("green").args)
        assert definition_of(rig.specs["red"]) != definition_of(toolbox("red"))
        rig.catalog.used(rig.specs["red"])
        await eventually(lambda: rig.catalog.cached("acme", ["red"])[0] is not offer, 30)
        tasks.cancel_scope.cancel()
    assert rig.changes == [("acme", "red")] * 2
    assert rig.started == 2


async def test_without_the_database_what_is_cached_serves_on(rig):
    (offer,) = await rig.catalog.of_members("acme", ["red"])
    rig.store.is_away = True
    rig.catalog._entries = {key: (entry, 0.0) for key, (entry, _) in rig.catalog._entries.items()}
    assert (await rig.catalog.of_members("acme", ["red"]))[0] is offer
    with pytest.raises(StorageUnavailable):
        await rig.catalog.of_members("acme", ["red", "blue"])


async def test_the_cache_is_bounded(rig, monkeypatch):
    monkeypatch.setattr(catalog_module, "MAX_ENTRIES", 1)
    await rig.catalog.of_members("acme", ["red"])
    await rig.catalog.of_members("acme", ["blue"])
    assert [offer is None for offer in rig.catalog.cached("acme", ["red", "blue"])] == [True, False]


def test_a_definition_is_what_is_started_and_how():
    spec = toolbox("red")
    assert definition_of(replace(spec, version=7, enabled=False, warm=3)) == definition_of(spec)
    for other in (replace(spec, args=()), replace(spec, env={"A": "b"}), replace(spec, sandbox=Sandbox(network="web"))):
        assert definition_of(other) != definition_of(spec)


async def test_what_is_cached_has_a_limit_in_bytes(rig, monkeypatch):
    await rig.catalog.of_members("acme", ["red", "blue"])
    monkeypatch.setattr(catalog_module, "MAX_CACHED_BYTES", rig.catalog._cached_bytes - 1)
    (offer,) = rig.catalog.cached("acme", ["red"])
    await rig.catalog.note(rig.specs["red"], replace_tools(offer))
    await rig.catalog.note(rig.specs["red"], offer)
    assert [each is None for each in rig.catalog.cached("acme", ["red", "blue"])] == [False, True]
    assert rig.catalog._cached_bytes == len(offer.dump())
