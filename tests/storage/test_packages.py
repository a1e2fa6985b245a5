"""Locks of packages: kept as long as a backend names them, for each tenant by itself."""

from dataclasses import replace
from datetime import timedelta

import pytest

from app.domain import BackendSpec, Package, Tenant
from app.errors import NotFound, QuotaExceeded
from app.storage import packages as module
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.packages import PackageRepository, StoredLock
from app.storage.tenants import TenantRepository


def lock(number: int) -> StoredLock:
    return StoredLock(f"{number:064x}", "npm", "notes", f"{number}.0.0", f"lock {number}")


async def test_a_lock_is_kept_once_for_a_tenant_and_is_nothing_to_others(database: Database):
    tenants, packages = TenantRepository(database), PackageRepository(database)
    await tenants.create(Tenant("acme"))
    await tenants.create(Tenant("other"))
    await packages.keep("acme", lock(1))
    await packages.keep("acme", lock(1))
    await packages.keep("other", lock(1))
    await packages.keep("other", lock(2))
    assert await packages.content("acme", lock(1).lock) == "lock 1"
    assert sorted(await packages.wanted()) == [lock(1).lock, lock(2).lock]
    with pytest.raises(NotFound):
        await packages.content("acme", lock(2).lock)
    await tenants.delete("other")
    assert await packages.wanted() == [lock(1).lock]


async def test_what_no_backend_names_is_removed_when_the_next_comes(database: Database, monkeypatch):
    monkeypatch.setattr(module, "UNUSED", timedelta(seconds=-60))
    packages, backends = PackageRepository(database), BackendRepository(database, None)
    await TenantRepository(database).create(Tenant("acme"))
    package = Package("npm", "notes", "1.0.0", "notes", lock(1).lock)
    await packages.keep("acme", lock(1))
    await backends.create("acme", BackendSpec("acme", "notes", "npx", args=("notes",), package=package))
    await backends.create("acme", BackendSpec("acme", "echo", "echo"))
    await packages.keep("acme", lock(2))
    assert (await backends.get("acme", "notes")).package == package
    assert (await backends.get("acme", "echo")).package is None
    await packages.keep("acme", lock(3))
    assert sorted(await packages.wanted()) == [lock(1).lock, lock(3).lock]
    spec = await backends.get("acme", "notes")
    await backends.replace("acme", replace(spec, package=replace(package, lock=lock(3).lock)))
    await packages.keep("acme", lock(4))
    assert sorted(await packages.wanted()) == [lock(3).lock, lock(4).lock]


async def test_a_tenant_has_only_so_many(database: Database, monkeypatch):
    monkeypatch.setattr(module, "MAX_PACKAGES", 2)
    packages = PackageRepository(database)
    await TenantRepository(database).create(Tenant("acme"))
    await packages.keep("acme", lock(1))
    await packages.keep("acme", lock(2))
    await packages.keep("acme", lock(2))
    with pytest.raises(QuotaExceeded, match="at most 2 packages"):
        await packages.keep("acme", lock(3))
