"""Tenants in the database."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select, update

from app.domain import DEFAULT_TENANT, Limits, Tenant, home_of
from app.errors import Conflict, NotFound
from app.storage.audit_act import Act
from app.storage.engine import Database, change_one
from app.storage.tables import tenants

_LIMITS = frozenset(each.name for each in fields(Limits))


class TenantRepository:
    """Finds and changes tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, name: str) -> Tenant:
        """The tenant.

        Raises:
            NotFound: there is none of this name.
        """
        async with self._database.read() as connection:
            row = (await connection.execute(select(tenants).where(tenants.c.name == name))).one_or_none()
        if row is None:
            raise NotFound("Tenant not found")
        return _tenant(row)

    async def list(self, *, after: str = "", limit: int) -> Sequence[Tenant]:
        """Up to `limit` tenants by name, beginning behind `after`."""
        query = select(tenants).where(tenants.c.name > after).order_by(tenants.c.name).limit(limit)
        async with self._database.read() as connection:
            return [_tenant(row) for row in await connection.execute(query)]

    async def homes(self) -> Mapping[str, str]:
        """The home of every tenant, and whose it is."""
        async with self._database.read() as connection:
            rows = await connection.execute(select(tenants.c.name, tenants.c.created_at).order_by(tenants.c.name))
            return {home_of(*row): row.name for row in rows}

    async def create(self, tenant: Tenant, *, act: Act | None = None) -> Tenant:
        """Adds the tenant.

        Raises:
            Conflict: the name is taken.
        """
        created = replace(tenant, version=1)
        values = {**_values(created), "created_at": datetime.now(UTC)}
        async with self._database.write(act) as connection:
            await connection.execute(insert(tenants).values(values))
        return created

    async def replace(self, tenant: Tenant, *, act: Act | None = None) -> Tenant:
        """Writes a tenant that was read before; its version grows.

        Raises:
            NotFound: it is gone.
            ConcurrentChange: somebody else changed it since it was read.
        """
        changed = replace(tenant, version=tenant.version + 1)
        unchanged = (tenants.c.name == tenant.name) & (tenants.c.version == tenant.version)
        async with self._database.write(act) as connection:
            statement = update(tenants).where(unchanged).values(_values(changed))
            await change_one(connection, statement, "tenant", lambda: self.get(tenant.name))
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
        doomed = tenants.c.name == name
        if version is not None:
            doomed &= tenants.c.version == version
        async with self._database.write(act) as connection:
            statement = delete(tenants).where(doomed)
            await change_one(connection, statement, "tenant", lambda: self.get(name))


def _values(tenant: Tenant) -> dict[str, Any]:
    return {**asdict(tenant), "limits": asdict(tenant.limits)}


def _tenant(row: Row[Any]) -> Tenant:
    # A limit that the row does not know has its default; one that this version does not know is left out.
    limits = {name: value for name, value in row.limits.items() if name in _LIMITS}
    return Tenant(row.name, Limits(**limits), row.enabled, row.reason, row.version)
