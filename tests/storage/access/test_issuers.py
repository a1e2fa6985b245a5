"""Token issuers in the database."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest

from app.domain import Issuer
from app.errors import Conflict, NotFound, QuotaExceeded
from app.storage.access import issuers
from app.storage.access.issuers import IssuerRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository

ISS = "https://idp.example.com"


@pytest.fixture
def repository(database: Database, tenants: TenantRepository) -> IssuerRepository:
    return IssuerRepository(database)


@pytest.fixture
def make() -> Callable[..., Issuer]:
    numbers = count(1)

    def make(tenant: str = "acme", issuer: str = ISS, **more: object) -> Issuer:
        claims = {"subject": "sub", "scopes": "scope", "tenant": None}
        source = more or {"jwks_url": ISS + "/jwks"}
        scopes = frozenset({"mcp:connect", "tenant:read"})
        created_at = datetime(2026, 1, 1, tzinfo=UTC)
        number = f"{next(numbers):016}"
        algorithms = ("RS256", "ES256")
        made = Issuer(number, tenant, issuer, algorithms, ("a", "b"), claims, scopes, created_at)
        return replace(made, **source)  # type: ignore[arg-type]

    return make


async def test_an_issuer_comes_back_as_it_was_stored(repository, make):
    assert not await repository.are_any()
    for issuer in (make(), make(issuer="hs", sealed_secret=b"\0sealed"), make(issuer="d", discovery_url="https://d")):
        assert await repository.create("acme", issuer) == issuer
        assert await repository.get("acme", issuer.id) == issuer
        assert await repository.find("acme", issuer.issuer) == issuer
        assert "sealed" not in repr(issuer)
    assert await repository.are_any()


async def test_an_issuer_is_found_by_its_exact_name_in_its_own_tenant_only(repository, make):
    await repository.create("acme", make())
    for tenant in ("zenith", "nobody"):
        assert await repository.find(tenant, ISS) is None
    for name in (ISS + "/", ISS.upper(), ISS[:-1], ISS + " ", "%"):
        assert await repository.find("acme", name) is None
    theirs = make("zenith")
    await repository.create("zenith", theirs)
    assert (await repository.find("zenith", ISS)).id == theirs.id


async def test_another_tenants_issuer_is_out_of_reach(repository, make):
    issuer = await repository.create("acme", make())
    for attempt in (
        repository.get("zenith", issuer.id),
        repository.replace("zenith", issuer),
        repository.delete("zenith", issuer.id),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert await repository.list("zenith") == []
    assert await repository.get("acme", issuer.id) == issuer


async def test_a_name_is_taken_once_in_each_tenant_and_needs_one(repository, make):
    await repository.create("acme", make())
    with pytest.raises(Conflict):
        await repository.create("acme", make())
    await repository.create("zenith", make("zenith"))
    with pytest.raises(NotFound):
        await repository.create("nobody", make("nobody"))


async def test_of_two_changes_to_what_was_read_once_the_second_is_a_conflict(repository, make):
    issuer = await repository.create("acme", make())
    changed = await repository.replace("acme", replace(issuer, audience=("c",)))
    assert changed.version == 2
    assert await repository.get("acme", issuer.id) == changed
    with pytest.raises(Conflict):
        await repository.replace("acme", replace(issuer, audience=("d",)))
    await repository.delete("acme", issuer.id)
    with pytest.raises(NotFound):
        await repository.replace("acme", changed)


async def test_a_removed_issuer_is_gone_and_a_removed_tenants_too(repository, make, tenants):
    issuer = await repository.create("acme", make())
    await repository.delete("acme", issuer.id)
    with pytest.raises(NotFound):
        await repository.delete("acme", issuer.id)
    await repository.create("acme", make())
    await tenants.delete("acme")
    assert await repository.find("acme", ISS) is None


async def test_lists_go_on_behind_the_last_one(repository, make):
    made = [await repository.create("acme", make(issuer=f"https://{number}")) for number in range(3)]
    assert await repository.list("acme", limit=2) == made[:2]
    assert await repository.list("acme", after=made[1].id, limit=2) == made[2:]
    assert await repository.list("acme") == made


async def test_a_tenant_cannot_fill_the_database(repository, make, monkeypatch):
    monkeypatch.setattr(issuers, "MAX_ISSUERS_PER_TENANT", 1)
    await repository.create("acme", make())
    with pytest.raises(QuotaExceeded):
        await repository.create("acme", make(issuer="other"))
    await repository.create("zenith", make("zenith"))


async def test_clients_are_sent_to_issuers_with_a_url_and_public_keys(repository, make):
    await repository.create("acme", make())
    await repository.create("acme", make(issuer="not-a-url"))
    await repository.create("acme", make(issuer="https://secret.example.com", sealed_secret=b"x", jwks_url=None))
    assert await repository.authorization_servers("acme") == [ISS]
    assert await repository.authorization_servers("zenith") == []
    assert await repository.authorization_servers("nobody") == []
