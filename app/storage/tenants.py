"""Tenants in the database."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, insert, select, update

from app.domain import DEFAULT_TENANT, Tenant, home_of
from app.errors import Conflict, NotFound
from app.storage._rows import VersionedTable, microseconds, object_of, values_of
from app.storage._tables import backends, connections, tenants
from app.storage.audit import Act
from app.storage.calls import CallRepository
from app.storage.engine import Database

_BY_NAME = select(tenants).where(tenants.c.name == bindparam("name"))  # each request asks: made once
_VERSIONED = VersionedTable(tenants, ["name"], "tenant", lambda: NotFound("Tenant not found"))


class TenantRepository:
    """Finds and changes tenants."""

    def __init__(self, database: Database) -> None:
        self._database, self._calls = database, CallRepository(database)

    async def get(self, name: str) -> Tenant:
        """Raises NotFound."""
        row = await self._database.row(_BY_NAME, name=name)
        if row is None:
            raise NotFound("Tenant not found")
        return _tenant(row)

    async def list(self, *, after: str = "", limit: int) -> Sequence[Tenant]:
        """Up to `limit` tenants by name, after the name `after`."""
        query = select(tenants).where(tenants.c.name > after).order_by(tenants.c.name).limit(limit)
        return [_tenant(row) for row in await self._database.rows(query)]

    async def homes(self) -> Mapping[str, str]:
        """The tenants by the names of their homes."""
        query = select(tenants.c.name, tenants.c.created_at).order_by(tenants.c.name)
        return {home_of(row.name, row.created_at): row.name for row in await self._database.rows(query)}

    async def create(self, tenant: Tenant, *, act: Act | None = None) -> Tenant:
        """Adds the tenant. Raises Conflict: the name is taken."""
        now = datetime.now(UTC)
        created = replace(tenant, version=1, made=microseconds(now))
        values = {**values_of(created, tenants), "created_at": now}
        async with self._database.write(act) as connection:
            await connection.execute(insert(tenants).values(values))
        return created

    async def replace(self, tenant: Tenant, *, act: Act | None = None) -> Tenant:
        """Writes a tenant that was read before, as its next version. With another `sandbox_exempt` its backends get
        their next versions too, so that no process that was started before serves a new session.

        Raises:
            NotFound: it is gone.
            ConcurrentChange: somebody else has changed it since it was read.
        """
        changed = replace(tenant, version=tenant.version + 1)
        was_exempt = select(tenants.c.sandbox_exempt).where(_VERSIONED.row(tenant.name)).with_for_update()
        theirs = update(backends).where(backends.c.tenant == tenant.name)
        async with self._database.write(act) as connection:
            differs = (await connection.execute(was_exempt)).scalar() != tenant.sandbox_exempt
            await _VERSIONED.update(connection, [tenant.name], tenant.version, values_of(changed, tenants))
            if tenant.sign_in is None:  # what was connected does not come back with it
                await connection.execute(delete(connections).where(connections.c.tenant == tenant.name))
            if differs:
                await connection.execute(theirs.values(version=backends.c.version + 1))
        return changed

    async def delete(self, name: str, *, version: int | None = None, act: Act | None = None) -> None:
        """Removes the tenant with its backends and keys; with a `version`, only that one.

        Raises:
            NotFound: there is none of this name.
            Conflict: it is the default tenant, which always exists.
            ConcurrentChange: it is another version now.
        """
        if name == DEFAULT_TENANT:
            raise Conflict("the default tenant cannot be deleted")
        if version is None or (await self.get(name)).version == version:
            await self._calls.remove_of(name)
        await _VERSIONED.delete(self._database, [name], version, act)


def _tenant(row: Row[Any]) -> Tenant:
    return object_of(Tenant, row, made=microseconds(row.created_at))
