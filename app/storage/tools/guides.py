"""Guides in the database."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Row, insert, select

from app.domain import Guide
from app.errors import Conflict, NotFound
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.rows import VersionedTable, matching, require_room
from app.storage.tables import guides, tenants

MAX_GUIDES_PER_TENANT = 100
_VERSIONED = VersionedTable(guides, ["tenant", "name"], "guide", lambda: NotFound("Guide not found"))


class GuideRepository:
    """Finds and changes guides, always of one tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, name: str) -> Guide:
        """Raises NotFound: the tenant has none of this name."""
        row = await self._database.row(select(guides).where(_VERSIONED.row(tenant, name)))
        if row is None:
            raise NotFound("Guide not found")
        return _guide(row)

    async def list(self, tenant: str, *, after: str = "", limit: int = MAX_GUIDES_PER_TENANT) -> Sequence[Guide]:
        """Up to `limit` guides by name, after the name `after`."""
        behind = (guides.c.tenant == tenant) & (guides.c.name > after)
        query = select(guides).where(behind).order_by(guides.c.name).limit(limit)
        return [_guide(row) for row in await self._database.rows(query)]

    async def state(self, tenant: str) -> object:
        """Equal to an earlier one if no guide of the tenant has changed since."""
        query = select(guides.c.name, guides.c.version, guides.c.changed_at).where(matching(guides, tenant=tenant))
        return [tuple(row) for row in await self._database.rows(query.order_by(guides.c.name))]

    async def create(self, tenant: str, guide: Guide, *, act: Act | None = None) -> Guide:
        """Adds the guide.

        Raises:
            Conflict: the tenant has one of this name.
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many guides as it may have.
        """
        created = replace(guide, version=1)
        async with self._database.write(act) as connection:
            query = select(tenants.c.name).where(tenants.c.name == tenant).with_for_update()
            if (await connection.execute(query)).first() is None:
                raise NotFound("Tenant not found")
            if (await connection.execute(select(guides.c.name).where(_VERSIONED.row(tenant, guide.name)))).first():
                raise Conflict("there is a guide of this name")
            words = f"a tenant has at most {MAX_GUIDES_PER_TENANT} guides"
            await require_room(connection, guides.c.tenant == tenant, "guides", MAX_GUIDES_PER_TENANT, words)
            await connection.execute(insert(guides).values(tenant=tenant, **asdict(created)))
        return created

    async def replace(self, tenant: str, guide: Guide, *, act: Act | None = None) -> Guide:
        """Writes a guide that was read before, as its next version.

        Raises:
            NotFound: it is gone.
            ConcurrentChange: somebody else has changed it since it was read.
        """
        changed = replace(guide, version=guide.version + 1)
        async with self._database.write(act) as connection:
            await _VERSIONED.update(connection, [tenant, guide.name], guide.version, asdict(changed))
        return changed

    async def delete(self, tenant: str, name: str, *, version: int | None = None, act: Act | None = None) -> None:
        """Removes the guide; with a `version`, only that one.

        Raises:
            NotFound: the tenant has none of this name.
            ConcurrentChange: it is another version now.
        """
        await _VERSIONED.delete(self._database, [tenant, name], version, act)


def _guide(row: Row[Any]) -> Guide:
    return Guide(row.name, row.title, row.description, row.text, row.changed_at, row.version)
