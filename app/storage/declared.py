"""Tables and repositories of declared resources."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import asdict, fields, replace
from sqlalchemy import JSON, Row, insert, select

from app.errors import Conflict, NotFound
from app.resources.fields import Stored
from app.resources.resource import Resource
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.rows import VersionedTable, matching, require_room
from app.storage.tables import metadata, tenants

S = TypeVar("S", bound=Stored)


class StoredResources:
    """The repositories of all declared resources."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, resource: Resource[S]) -> "StoredRepository[S]":
        return StoredRepository(self._database, resource)


class StoredRepository(Generic[S]):
    """Finds and changes the objects of a resource, always of one tenant."""

    def __init__(self, database: Database, resource: Resource[S]) -> None:
        self._database, self._resource = database, resource
        self._table = metadata.tables[resource.name]
        self._versioned = VersionedTable(self._table, ["tenant", "name"], resource.one, self._missing)
        # What is not a plain value is one JSON document.
        documents = {each.name for each in self._table.c if isinstance(each.type, JSON)}
        self._documents = {each.name: each.type for each in fields(resource.model) if each.name in documents}

    async def get(self, tenant: str, name: str) -> S:
        """Raises NotFound: the tenant has none of this name."""
        row = await self._database.row(select(self._table).where(self._versioned.row(tenant, name)))
        if row is None:
            raise self._missing()
        return self._value(row)

    async def list(self, tenant: str, *, after: str = "", limit: int | None = None) -> Sequence[S]:
        """Up to `limit` objects by name, after the name `after`; without `limit` all of them."""
        own = (self._table.c.tenant == tenant) & (self._table.c.name > after)
        rows = await self._database.rows(select(self._table).where(own).order_by(self._table.c.name).limit(limit))
        return [self._value(row) for row in rows]

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
            await connection.execute(insert(table).values(tenant=tenant, **self._values(created)))
        return created

    async def replace(self, tenant: str, value: S, *, act: Act | None = None) -> S:
        """Writes an object that was read before, as its next version.

        Raises:
            NotFound: it is gone.
            ConcurrentChange: somebody else has changed it since it was read.
        """
        changed = replace(value, version=value.version + 1)
        async with self._database.write(act) as connection:
            key = [tenant, value.name]
            await self._versioned.update(connection, key, value.version, self._values(changed))
        return changed

    async def delete(self, tenant: str, name: str, *, version: int | None = None, act: Act | None = None) -> None:
        """Removes the object; with a `version`, only that one.

        Raises:
            NotFound: the tenant has none of this name.
            ConcurrentChange: it is another version now.
        """
        await self._versioned.delete(self._database, [tenant, name], version, act)

    def _owner(self, tenant: str, value: S) -> Any:
        """Asks for the row that the object goes with, and keeps it until the end of the transaction."""
        owner = self._resource.goes_with
        if not owner:
            return select(tenants.c.name).where(tenants.c.name == tenant).with_for_update()
        table = metadata.tables[f"{owner}s"]
        named = matching(table, tenant=tenant, name=getattr(value, owner))
        return select(table.c.name).where(named).with_for_update()

    def _missing(self) -> NotFound:
        return NotFound(self._resource.missing())

    def _values(self, value: S) -> dict[str, Any]:
        made = {name: msgspec.to_builtins(getattr(value, name)) for name in self._documents}
        return {**asdict(value), **made}

    def _value(self, row: Row[Any]) -> S:
        columns = {name: getattr(row, name) for name in self._resource.model.__struct_fields__}
        made = {name: msgspec.convert(columns[name], kind) for name, kind in self._documents.items()}
        return self._resource.model(**{**columns, **made})
