"""Backends in the database."""

from dataclasses import replace

import pytest

from app.domain import ProcessLimits, Sandbox, Tenant, is_home
from app.errors import BackendNotFound, Conflict, NotFound


async def test_a_backend_comes_back_as_it_was_stored(backends, spec):
    created = await backends.create("acme", spec)
    assert replace(created, home="") == spec
    assert await backends.get("acme", "echo") == created


async def test_a_backend_knows_the_home_of_its_tenant(backends, tenants, spec):
    created = await backends.create("acme", spec)
    changed = await backends.replace("acme", replace(created, enabled=False, home=""))
    other = await backends.create("zenith", spec)
    (listed,) = await backends.list("acme", limit=9)
    assert created.home == changed.home == listed.home == (await backends.get("acme", "echo")).home
    assert is_home(created.home)
    names = {each.home: each.tenant for each in (created, other)}
    assert len(names) == 2
    assert names.items() <= (await tenants.homes()).items()
    assert list(await backends.homes(limit=9)) == [created.home, other.home]
    await tenants.delete("acme")
    await tenants.create(Tenant("acme"))
    again = await backends.create("acme", spec)
    assert again.home not in names


async def test_the_same_name_in_another_tenant_is_another_backend(backends, spec):
    await backends.create("acme", spec)
    await backends.create("zenith", replace(spec, command="other"))
    assert (await backends.get("acme", "echo")).command == "/bin/echo"
    assert (await backends.get("zenith", "echo")).tenant == "zenith"
    with pytest.raises(Conflict):
        await backends.create("acme", spec)


async def test_each_form_of_sandbox_limits_and_state_comes_back(backends, spec):
    unlimited = ProcessLimits(None, None, None, None, None)
    for number, (sandbox, limits) in enumerate(((Sandbox(), ProcessLimits()), (Sandbox("off"), unlimited))):
        stored = replace(spec, name=f"b{number}", sandbox=sandbox, limits=limits, state="keep")
        await backends.create("acme", stored)
        assert replace(await backends.get("acme", stored.name), home="") == stored


async def test_a_backend_needs_a_tenant(backends, spec):
    with pytest.raises(NotFound, match="Tenant not found"):
        await backends.create("nobody", spec)
    with pytest.raises(NotFound, match="Tenant not found"):
        await backends.replace("nobody", spec)


async def test_another_tenants_backend_is_out_of_reach(backends, spec):
    await backends.create("acme", spec)
    for attempt in (
        backends.get("zenith", "echo"),
        backends.delete("zenith", "echo"),
        backends.replace("zenith", spec),
    ):
        with pytest.raises(BackendNotFound):
            await attempt
    assert await backends.list("zenith", limit=9) == []
    assert replace(await backends.get("acme", "echo"), home="") == spec


async def test_a_change_needs_the_version_that_was_read(backends, spec):
    first = await backends.create("acme", spec)
    second = await backends.replace("acme", replace(first, enabled=False))
    assert (second.version, await backends.get("acme", "echo")) == (2, second)
    with pytest.raises(Conflict):
        await backends.replace("acme", first)


async def test_lists_are_by_name_and_go_on_behind_the_last_one(backends, spec):
    for name in ("c", "a", "b"):
        await backends.create("acme", replace(spec, name=name))
    assert [each.name for each in await backends.list("acme", limit=2)] == ["a", "b"]
    assert [each.name for each in await backends.list("acme", after="b", limit=2)] == ["c"]


async def test_a_node_starts_with_the_enabled_warm_backends_of_all_tenants(backends, spec):
    await backends.create("acme", spec)
    await backends.create("zenith", replace(spec, name="w"))
    await backends.create("acme", replace(spec, name="off", enabled=False))
    await backends.create("acme", replace(spec, name="cold", warm=0))
    assert sorted(each.key for each in await backends.list_warm()) == [("acme", "echo"), ("zenith", "w")]


async def test_a_number_of_warm_processes_that_follows_demand_is_stored(backends, spec):
    await backends.create("acme", replace(spec, warm="auto"))
    found = await backends.get("acme", "echo")
    assert found.warm == "auto"
    assert [each.warm for each in await backends.list_warm()] == ["auto"]
    await backends.replace("acme", replace(found, warm=0))
    assert (await backends.get("acme", "echo")).warm == 0
    assert await backends.list_warm() == []
