"""Tenants in the database."""

from dataclasses import replace

import pytest

from app.domain import BackendSpec, Limits, Tenant
from app.errors import Conflict, NotFound


async def test_a_tenant_comes_back_as_it_was_stored(tenants):
    tenant = Tenant("new", Limits(sessions=None, processes=0, requests_per_second=0.5))
    assert await tenants.create(tenant) == tenant == await tenants.get("new")


async def test_the_default_tenant_has_the_default_limits(tenants):
    assert await tenants.get("default") == Tenant("default")


async def test_a_taken_name_is_a_conflict(tenants):
    with pytest.raises(Conflict):
        await tenants.create(Tenant("acme"))


async def test_lists_are_by_name_and_go_on_behind_the_last_one(tenants):
    assert [tenant.name for tenant in await tenants.list(limit=2)] == ["acme", "default"]
    assert [tenant.name for tenant in await tenants.list(after="default", limit=2)] == ["zenith"]


async def test_a_change_needs_the_version_that_was_read(tenants):
    first = await tenants.get("acme")
    second = await tenants.replace(replace(first, limits=Limits(sessions=1)))
    assert (second.version, await tenants.get("acme")) == (2, second)
    with pytest.raises(Conflict, match="changed by somebody else"):
        await tenants.replace(replace(first, limits=Limits(sessions=2)))
    with pytest.raises(NotFound):
        await tenants.replace(Tenant("nobody"))


async def test_what_changes_the_sandbox_of_its_backends_gives_each_its_next_version(tenants, backends, spec):
    await backends.create("acme", spec)
    await backends.create("zenith", spec)

    async def change(**members: object) -> BackendSpec:
        await tenants.replace(replace(await tenants.get("acme"), **members))
        return await backends.get("acme", spec.name)

    exempt = await change(sandbox_exempt=True)
    assert (exempt.sandbox_exempt, exempt.version) == (True, 2)
    assert await change(limits=Limits(sessions=1)) == exempt
    assert (await backends.list("acme", limit=9), await backends.list_warm("acme")) == ([exempt], [exempt])
    changed = await backends.replace("acme", replace(exempt, enabled=False, sandbox_exempt=False))
    assert (changed.sandbox_exempt, changed.version) == (True, 3)
    assert (await backends.create("acme", replace(spec, name="new"))).sandbox_exempt is True
    assert (await change(sandbox_exempt=False)).version == 4
    assert (await backends.get("zenith", spec.name)).version == 1


async def test_deleting_takes_backends_and_keys_along(tenants, backends, keys, spec, make_key):
    await backends.create("acme", spec)
    key = make_key("acme")
    await keys.create("acme", key)
    await tenants.delete("acme")
    assert await keys.find(key.id) is None
    assert await backends.list("acme", limit=9) == []
    for again in (tenants.get, tenants.delete):
        with pytest.raises(NotFound):
            await again("acme")


async def test_the_default_tenant_stays(tenants):
    with pytest.raises(Conflict):
        await tenants.delete("default")
