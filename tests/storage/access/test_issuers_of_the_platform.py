"""Issuers of the platform in the database: whom they open, whom they go before, what is left of a removed tenant."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest
from sqlalchemy import insert

from app.domain import Issuer, ServedTenants, Tenant, TenantGrant
from app.errors import Conflict, NotFound
from app.storage._tables import issuers
from app.storage.access.issuers import IssuerRepository, _values
from app.storage.engine import Database
from app.storage.tenants import TenantRepository

ISS = "https://idp.example.com"
LIST = ServedTenants(
    "groups", {"a": TenantGrant("acme"), "b": TenantGrant("acme", ("tenant:admin",)), "z": TenantGrant("zenith")}
)
Make = Callable[..., Issuer]


@pytest.fixture
def repository(database: Database, tenants: TenantRepository) -> IssuerRepository:
    return IssuerRepository(database)


@pytest.fixture
def make() -> Make:
    numbers = count(1)

    def make(tenant: str = "default", served: ServedTenants | None = LIST, issuer: str = ISS) -> Issuer:
        made = Issuer(
            f"{next(numbers):016}", tenant, issuer, ("RS256",), ("api://gw",), {"subject": "sub", "scopes": "scope"},
            frozenset({"mcp:connect", "tenant:admin"}), datetime(2026, 1, 1, tzinfo=UTC), jwks_url=ISS + "/jwks",
        )  # fmt: skip
        return replace(made, tenants=served)

    return make


async def test_it_comes_back_as_it_was_stored_and_opens_the_tenants_of_its_list_only(repository, make):
    made = await repository.create("default", make())
    assert await repository.get("default", made.id) == made
    assert made.opens() == {"acme", "zenith"}
    for tenant, values in (("acme", {"a", "b"}), ("zenith", {"z"})):
        found = await repository.find(tenant, ISS)
        assert (found.id, found.tenant, set(found.tenants.map)) == (made.id, "default", values)
        assert found == made.seen_from(tenant)
        assert await repository.list(tenant) == [made]
        assert await repository.get(tenant, made.id) == made
        assert await repository.authorization_servers(tenant) == [ISS]
    assert await repository.find("default", ISS) is None
    assert await repository.authorization_servers("default") == []
    assert await repository.find("nobody", ISS) is None


async def test_the_default_tenant_is_opened_if_it_is_in_the_list(repository, make):
    await repository.create("default", make(served=ServedTenants("groups", {"d": TenantGrant("default")})))
    assert set((await repository.find("default", ISS)).tenants.map) == {"d"}
    assert await repository.find("acme", ISS) is None


async def test_an_empty_list_opens_nothing_not_even_its_own_tenant(repository, make):
    made = await repository.create("default", make(served=ServedTenants("groups", {})))
    assert await repository.get("default", made.id) == made
    for tenant in ("default", "acme", "zenith"):
        assert await repository.find(tenant, ISS) is None


async def test_a_changed_list_is_the_whole_list(repository, make):
    made = await repository.create("default", make())
    shorter = ServedTenants("roles", {"z": TenantGrant("zenith", ("mcp:connect",))})
    changed = await repository.replace("default", replace(made, tenants=shorter))
    assert changed.version == 2
    assert await repository.find("acme", ISS) is None
    assert (await repository.find("zenith", ISS)).tenants == shorter
    await repository.delete("default", made.id)
    assert await repository.find("zenith", ISS) is None
    with pytest.raises(NotFound):
        await repository.get("zenith", made.id)


async def test_another_tenant_can_look_at_it_and_not_touch_it(repository, make):
    made = await repository.create("default", make())
    with pytest.raises(NotFound):
        await repository.replace("acme", made)
    with pytest.raises(NotFound):
        await repository.delete("acme", made.id)
    assert await repository.get("default", made.id) == made


async def test_a_list_with_a_tenant_that_is_not_there_is_not_stored(repository, make):
    wrong = ServedTenants("groups", {"a": TenantGrant("acme"), "n": TenantGrant("nobody")})
    with pytest.raises(NotFound):
        await repository.create("default", make(served=wrong))
    assert await repository.find("acme", ISS) is None
    made = await repository.create("default", make())
    with pytest.raises(NotFound):
        await repository.replace("default", replace(made, tenants=wrong))
    assert await repository.get("default", made.id) == made


async def test_of_a_removed_tenant_nothing_stays_that_another_of_its_name_would_get(repository, make, tenants):
    made = await repository.create("default", make())
    await tenants.delete("acme")
    await tenants.create(Tenant("acme"))
    assert await repository.find("acme", ISS) is None
    assert set((await repository.get("default", made.id)).tenants.map) == {"z"}
    await tenants.delete("zenith")
    assert (await repository.get("default", made.id)).tenants == ServedTenants("groups", {})
    assert await repository.find("default", ISS) is None


async def test_a_name_is_the_platforms_or_the_tenants_and_not_both(repository, make):
    own = await repository.create("acme", make("acme", served=None))
    with pytest.raises(Conflict, match="acme"):
        await repository.create("default", make())
    made = await repository.create("default", make(served=LIST.within("zenith")))
    with pytest.raises(Conflict, match="acme"):
        await repository.replace("default", replace(made, tenants=LIST))
    with pytest.raises(Conflict):
        await repository.create("zenith", make("zenith", served=None))
    await repository.create("zenith", make("zenith", served=None, issuer="https://own.example.com"))
    await repository.delete("acme", own.id)
    await repository.replace("default", replace(await repository.get("default", made.id), tenants=LIST))
    with pytest.raises(Conflict):
        await repository.create("acme", make("acme", served=None))


async def test_of_two_that_were_made_at_once_the_platforms_counts(repository, make, database):
    """Each looked before the other was written. A tenant's administrator must not sign for the platform's people."""
    made = await repository.create("default", make())
    async with database.write() as connection:
        await connection.execute(insert(issuers).values(_values(make("acme", served=None))))
    found = await repository.find("acme", ISS)
    assert (found.id, found.tenant) == (made.id, "default")
    assert (await repository.find("zenith", ISS)).id == made.id
    await repository.delete("default", made.id)
    assert (await repository.find("acme", ISS)).tenant == "acme"


async def test_a_plain_issuer_of_another_tenant_with_entries_by_mistake_opens_nothing_there(repository, make, database):
    """A list counts in the tenant `default` only, whatever the rows say."""
    stray = replace(make("zenith"), tenants=ServedTenants("groups", {"a": TenantGrant("acme")}))
    await repository.create("zenith", stray)
    assert await repository.find("acme", ISS) is None
    assert await repository.find("zenith", ISS) is None
