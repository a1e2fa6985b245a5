"""What registries list, on both databases: enabled backends and toolsets of tenants that have one."""

from dataclasses import replace

import pytest

from app.domain import BackendSpec, Toolset
from app.storage.tools import registry
from app.storage.tools.registry import NOTHING, RegistryRepository
from app.storage.tools.toolsets import ToolsetRepository


@pytest.fixture
async def repository(database, backends):
    for name in ("time", "notes"):
        await backends.create("acme", BackendSpec("acme", name, "cat", env={"TOKEN": "s3cret"}))
    await backends.create("acme", BackendSpec("acme", "off", "cat", enabled=False))
    await backends.create("zenith", BackendSpec("zenith", "theirs", "cat"))
    await ToolsetRepository(database).create("acme", BackendSpec("acme", "work", "", toolset=Toolset("Work")))
    return RegistryRepository(database)


@pytest.mark.parametrize("mode", ["keys", "public"])
async def test_enabled_backends_and_toolsets_by_name(repository, tenants, mode):
    await tenants.replace(replace(await tenants.get("acme"), registry=mode))
    found = await repository.listing("acme")
    assert found.mode == mode
    shown = [(each.name, each.title, each.is_toolset, each.version) for each in found.servers]
    assert shown == [("notes", "", False, 1), ("time", "", False, 1), ("work", "Work", True, 1)]
    assert all(each.changed_at == each.created_at and each.created_at.tzinfo is not None for each in found.servers)
    assert "s3cret" not in repr(found)


async def test_nothing_of_who_has_none_is_off_or_is_not_there(repository, tenants):
    assert await repository.listing("acme") == NOTHING
    await tenants.replace(replace(await tenants.get("acme"), registry="public", enabled=False))
    assert await repository.listing("acme") == NOTHING
    assert await repository.listing("unknown") == NOTHING


async def test_a_change_has_its_time(repository, tenants, backends, database):
    await tenants.replace(replace(await tenants.get("acme"), registry="public"))
    await backends.replace("acme", replace(await backends.get("acme", "time"), warm=1))
    toolsets = ToolsetRepository(database)
    await toolsets.replace("acme", replace(await toolsets.get("acme", "work"), enabled=True))
    times = {
        each.name: (each.version, each.changed_at > each.created_at)
        for each in (await repository.listing("acme")).servers
    }
    assert times == {"notes": (1, False), "time": (2, True), "work": (2, True)}


async def test_a_list_has_a_limit(repository, tenants, monkeypatch):
    await tenants.replace(replace(await tenants.get("acme"), registry="public"))
    monkeypatch.setattr(registry, "MAX_LISTED", 2)
    assert [each.name for each in (await repository.listing("acme")).servers] == ["notes", "time"]
