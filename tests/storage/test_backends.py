"""Backends in the database."""

from dataclasses import replace

import pytest
from sqlalchemy import select, update

from app.auth.sealing import Sealer
from app.domain import BackendSpec, ProcessLimits, Sandbox, Tenant, is_home
from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.errors import BackendNotFound, Conflict, NotFound
from app.storage._tables import backends as table
from app.storage.backends import BackendRepository


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


SECRETS = {
    "args": ("--api-key", "s3cret-1", "--at", "postgres://shop:s3cret-2@db.internal/shop", "-v"),
    "env": {"TOKEN": "s3cret-3"},
}


async def rows_of(database):
    return (await database.rows(select(table)))[0]


async def test_no_column_has_a_secret_and_all_come_back(backends, database, spec):
    made = await backends.create("acme", replace(spec, **SECRETS))
    assert ("s3cret" in repr(await rows_of(database)), (await rows_of(database)).env) == (False, {"TOKEN": "***"})
    assert (await rows_of(database)).args == ["--api-key", "***", "--at", "postgres://shop:***@db.internal/shop", "-v"]
    assert await backends.get("acme", "echo") == made
    assert (made.args, dict(made.env)) == (SECRETS["args"], SECRETS["env"])
    far = BackendSpec("acme", "far", "", url="https://far.example/mcp?token=s3cret-4&a=b")
    await backends.create("acme", far)
    assert (await backends.get("acme", "far")).url == far.url
    assert "s3cret" not in repr(await database.rows(select(table)))


async def test_what_is_sealed_changes_only_with_the_secrets(backends, spec):
    """What a backend offers is known by it."""
    made = await backends.create("acme", replace(spec, **SECRETS))
    found = await backends.get("acme", "echo")
    assert found.sealed == made.sealed != b""
    other = await backends.replace("acme", replace(found, enabled=False))
    assert other.sealed == made.sealed
    other = await backends.replace("acme", replace(other, env={"TOKEN": "s3cret-5"}))
    assert other.sealed != made.sealed
    plain = await backends.replace("acme", replace(other, env={}, args=("-v",)))
    assert plain.sealed == b""
    assert (await backends.get("acme", "echo")).args == ("-v",)


async def test_secrets_that_do_not_open_are_marks_and_are_not_lost(backends, database, spec):
    await backends.create("acme", replace(spec, **SECRETS))
    await backends.create("acme", replace(spec, name="plain", args=(), env={}))
    stranger = BackendRepository(database, Sealer(b"x" * 32))
    found, plain = await stranger.list("acme")
    assert (found.lacks_secrets, plain.lacks_secrets) == (True, False)
    assert (dict(found.env), found.args[:2]) == ({"TOKEN": "***"}, ("--api-key", "***"))
    await stranger.replace("acme", replace(found, enabled=False))
    again = await backends.get("acme", "echo")
    assert (again.args, again.enabled, again.lacks_secrets) == (SECRETS["args"], False, False)
    without = BackendRepository(database, None)
    assert [each.lacks_secrets for each in await without.list("acme")] == [True, False]
    with pytest.raises(TypeError):
        await without.create("acme", replace(spec, name="new"))


async def test_secrets_belong_to_one_backend(backends, database, spec):
    await backends.create("acme", replace(spec, **SECRETS))
    await backends.create("zenith", replace(spec, env={"TOKEN": "of-zenith"}))
    of_acme = (await backends.get("acme", "echo")).sealed
    async with database.write() as connection:
        await connection.execute(update(table).where(table.c.tenant == "zenith").values(sealed=of_acme))
    assert (await backends.get("zenith", "echo")).lacks_secrets


async def test_secrets_that_were_stored_before_are_sealed_at_the_next_start(backends, database, spec):
    made = await backends.create("acme", replace(spec, **SECRETS))
    plain = {"env": SECRETS["env"], "args": list(SECRETS["args"]), "sealed": None}
    async with database.write() as connection:
        await connection.execute(update(table).values(plain))
    assert (await backends.get("acme", "echo")).args == SECRETS["args"]
    for _ in range(2):
        await backends.seal_all()
        assert "s3cret" not in repr(await rows_of(database))
        found = await backends.get("acme", "echo")
        assert (found.args, dict(found.env), found.version) == (SECRETS["args"], SECRETS["env"], made.version)


async def test_a_list_of_who_may_use_what_comes_back_and_another_takes_its_place(backends, spec):
    for access in (
        (AccessEntry(Who(group="a", issuer="https://idp.example"), ("*",), ("p",), ("é://*",), CallLimits(1, 2)),),
        (AccessEntry(Who(everyone=True), ("b",)), AccessEntry(Who(key="k"), ("c",), limits=CallLimits(None, 3))),
        (),
    ):
        name = f"b{len(access)}"
        await backends.create("acme", replace(spec, name=name))
        stored = await backends.get("acme", name)
        assert stored.access == ()
        await backends.replace("acme", replace(stored, access=access))
        assert (await backends.get("acme", name)).access == access
