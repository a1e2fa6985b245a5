"""Toolsets in the database. To everything but administration a toolset is a backend."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, Select, insert, select

from app.domain import BackendSpec, Toolset, home_of
from app.domain.resources.toolsets import TOOLSETS
from app.errors import BackendNotFound, Conflict, NotFound
from app.storage._rows import NamedRepository, microseconds, object_of, require_room, values_of
from app.storage._tables import tenants, toolsets
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.tools.names import require_free_name, spec_of


class ToolsetRepository(NamedRepository[BackendSpec]):
    """The toolsets, enabled or not."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, toolsets, TOOLSETS.one, lambda: NotFound(TOOLSETS.missing()))

    async def find(self, tenant: str, name: str) -> BackendSpec:
        """As `get`, for those who look for a backend. Raises BackendNotFound."""
        try:
            return await self.get(tenant, name)
        except NotFound:
            raise BackendNotFound from None

    async def create(self, tenant: str, spec: BackendSpec, *, act: Act | None = None) -> BackendSpec:
        """Adds the toolset.

        Raises:
            Conflict: the name is taken, by a toolset or a backend.
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many toolsets as it may have.
        """
        now = datetime.now(UTC)
        created = replace(spec, tenant=tenant, version=1, made=microseconds(now))
        async with self._database.write(act) as connection:
            made_at = await require_free_name(connection, tenant, spec.name)
            message = f"a tenant has at most {TOOLSETS.per_tenant} toolsets"
            await require_room(connection, toolsets.c.tenant == tenant, "toolsets", TOOLSETS.per_tenant, message)
            await connection.execute(insert(toolsets).values(**_values(created), created_at=now))
        return replace(created, home=home_of(tenant, made_at))

    def _select(self) -> Select[Any]:
        query = select(toolsets, tenants.c.created_at.label("tenant_created_at"))
        return query.join(tenants, tenants.c.name == toolsets.c.tenant)

    def _value(self, row: Row[Any]) -> BackendSpec:
        return _spec(row)

    def _changed(self, tenant: str, value: BackendSpec) -> tuple[BackendSpec, Mapping[str, Any]]:
        changed = replace(value, tenant=tenant, version=value.version + 1)
        return changed, {**_values(changed), "changed_at": datetime.now(UTC)}


def _values(spec: BackendSpec) -> dict[str, Any]:
    if spec.toolset is None:
        raise Conflict("this is a backend, not a toolset")
    return {**values_of(spec, toolsets), **values_of(spec.toolset, toolsets)}


def _spec(row: Row[Any]) -> BackendSpec:
    return spec_of(row, command="", toolset=object_of(Toolset, row))
