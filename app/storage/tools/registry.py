"""What the registry of a tenant lists, in the database: names and times of its backends and toolsets, and nothing else
of them, so that nothing else can be shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func, literal, select, union_all

from app.domain import RegistryMode
from app.storage._tables import backends, tenants, toolsets
from app.storage.engine import Database

MAX_LISTED = 2000  # of one tenant; by name, the first ones


@dataclass(frozen=True, slots=True)
class Listed:
    """A backend or a toolset, as anybody may know it."""

    name: str
    title: str
    is_toolset: bool
    version: int
    created_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class TenantListing:
    """What a tenant lists, and who may read it."""

    mode: RegistryMode
    servers: Sequence[Listed] = ()


NOTHING = TenantListing("off")


class RegistryRepository:
    """Reads what registries list."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def listing(self, tenant: str) -> TenantListing:
        """The enabled backends and toolsets by name. Of a tenant that is not there, is switched off or has no registry:
        nothing.

        Raises:
            StorageUnavailable: the database does not answer.
        """
        known = select(tenants.c.registry).where(tenants.c.name == tenant, tenants.c.enabled)
        row = await self._database.row(known)
        if row is None or row.registry not in ("keys", "public"):
            return NOTHING
        found = union_all(
            _of(backends, literal(""), is_toolset=False, tenant=tenant),
            _of(toolsets, toolsets.c.title, is_toolset=True, tenant=tenant),
        ).subquery()
        rows = await self._database.rows(select(found).order_by(found.c.name).limit(MAX_LISTED))
        return TenantListing(row.registry, [Listed(**each._asdict()) for each in rows])


def _of(table: sa.Table, title: sa.ColumnElement[str], *, is_toolset: bool, tenant: str) -> sa.Select[Any]:
    changed = func.coalesce(table.c.changed_at, table.c.created_at).label("changed_at")
    chosen = (table.c.name, title.label("title"), literal(is_toolset).label("is_toolset"), table.c.version)
    return select(*chosen, table.c.created_at, changed).where(table.c.tenant == tenant, table.c.enabled)
