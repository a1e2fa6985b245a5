"""Toolsets in the database. To everything but administration a toolset is a backend."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from app.domain import BackendSpec, Toolset
from app.domain.resources.toolsets import TOOLSETS
from app.errors import BackendNotFound, Conflict, NotFound
from app.storage._connections import AsyncConnection
from app.storage._rows import object_of, require_room, values_of
from app.storage._specs import SpecRepository
from app.storage._tables import toolsets
from app.storage.engine import Database


class ToolsetRepository(SpecRepository):
    """The toolsets."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, toolsets, TOOLSETS.one, lambda: NotFound(TOOLSETS.missing()))

    async def find(self, tenant: str, name: str) -> BackendSpec:
        """As `get`, for those who look for a backend. Raises BackendNotFound."""
        try:
            return await self.get(tenant, name)
        except NotFound:
            raise BackendNotFound from None

    async def _require_room(self, connection: AsyncConnection, tenant: str) -> None:
        message = f"a tenant has at most {TOOLSETS.per_tenant} toolsets"
        await require_room(connection, toolsets.c.tenant == tenant, "toolsets", TOOLSETS.per_tenant, message)

    def _values(self, spec: BackendSpec) -> dict[str, Any]:
        if spec.toolset is None:
            raise Conflict("this is a backend, not a toolset")
        return {**super()._values(spec), **values_of(spec.toolset, toolsets)}

    def _own(self, row: Row[Any]) -> Mapping[str, Any]:
        return {"command": "", "toolset": object_of(Toolset, row)}
