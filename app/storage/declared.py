"""Tables and repositories of declared resources."""

from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Row, insert, select

from app.domain.resources.fields import Stored
from app.domain.resources.resource import Resource
from app.errors import Conflict, NotFound
from app.storage._rows import NamedRepository, matching, object_of, require_room, values_of
from app.storage._tables import metadata, tenants
from app.storage.audit import Act
from app.storage.engine import Database

S = TypeVar("S", bound=Stored)


class StoredResources:
    """The repositories of all declared resources."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, resource: Resource[S]) -> "StoredRepository[S]":
        return StoredRepository(self._database, resource)


class StoredRepository(NamedRepository[S]):
    """The objects of a resource."""

    def __init__(self, database: Database, resource: Resource[S]) -> None:
        table, missing = metadata.tables[resource.name], lambda: NotFound(resource.missing())
        super().__init__(database, table, resource.one, missing)
        self._resource = resource

    async def state(self, tenant: str) -> object:
        """Equal to an earlier one if no object of the tenant has changed since."""
        columns = self._table.c
        query = select(columns.name, columns.version, columns.changed_at).where(columns.tenant == tenant)
        return [tuple(row) for row in await self._database.rows(query.order_by(columns.name))]

    async def create(self, tenant: str, value: S, *, act: Act | None = None) -> S:
        """Adds the object.

        Raises:
            Conflict: the tenant has one of this name.
            NotFound: there is no such tenant, or nothing of the name that it goes with.
            QuotaExceeded: the tenant has as many as it may have.
        """
        created, resource, table = replace(value, version=1), self._resource, self._table
        async with self._database.write(act) as connection:
            if (await connection.execute(self._owner(tenant, value))).first() is None:
                raise NotFound(f"{(resource.goes_with or 'tenant').capitalize()} not found")
            same = select(table.c.name).where(self._versioned.row(tenant, value.name))
            if (await connection.execute(same)).first():
                raise Conflict(f"there is a {resource.one} of this name")
            words = f"a tenant has at most {resource.per_tenant} {resource.name}"
            await require_room(connection, table.c.tenant == tenant, resource.name, resource.per_tenant, words)
            await connection.execute(insert(table).values(tenant=tenant, **values_of(created, table)))
        return created

    async def replace(self, tenant: str, value: S, *, act: Act | None = None) -> S:
        """Writes a value that was read before, as its next version.

        Raises:
            NotFound: it is gone.
            ConcurrentChange: somebody else has changed it since it was read.
        """
        changed = replace(value, version=value.version + 1)
        async with self._database.write(act) as connection:
            columns = values_of(changed, self._table)
            await self._versioned.update(connection, [tenant, value.name], value.version, columns)
        return changed

    def _owner(self, tenant: str, value: S) -> Any:
        """Asks for the row that the object goes with, and keeps it until the end of the transaction."""
        owner = self._resource.goes_with
        if not owner:
            return select(tenants.c.name).where(tenants.c.name == tenant).with_for_update()
        table = metadata.tables[f"{owner}s"]
        named = matching(table, tenant=tenant, name=getattr(value, owner))
        return select(table.c.name).where(named).with_for_update()

    def _value(self, row: Row[Any]) -> S:
        return object_of(self._resource.model, row)
