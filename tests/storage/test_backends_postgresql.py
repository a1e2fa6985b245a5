"""Backends and their tenant, changed at the same moment, where several may write."""

import anyio
import pytest
from sqlalchemy import select, text, update

from app.domain import BackendSpec, Tenant
from app.storage._tables import tenants
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from tests.databases import SEALER
from tests.postgres import empty

WAITING = select(text("pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"))


@pytest.mark.parametrize("is_new", [True, False])
async def test_who_writes_a_backend_waits_for_a_change_of_its_tenant(postgres_database, is_new):
    """It would be told that the tenant is exempt, or is not, when that is already otherwise."""
    empty(postgres_database)
    database = Database(postgres_database)
    backends, spec, written = (
        BackendRepository(database, SEALER),
        BackendSpec("acme", "echo", "cat"),
        list[BackendSpec](),
    )
    try:
        await TenantRepository(database).create(Tenant("acme"))
        before = spec if is_new else await backends.create("acme", spec)

        async def write() -> None:
            written.append(await (backends.create if is_new else backends.replace)("acme", before))

        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(20):
                async with database.write() as connection:
                    await connection.execute(update(tenants).values(sandbox_exempt=True))
                    tasks.start_soon(write)
                    while not await database.rows(WAITING):
                        await anyio.sleep(0.01)
                    assert written == []
        assert [each.sandbox_exempt for each in written] == [True]
    finally:
        await database.aclose()
