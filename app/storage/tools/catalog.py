"""The catalogue in the database: what backends offer, as bytes that only `catalog` understands."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select, update

from app.storage.engine import Database
from app.storage.rows import matching
from app.storage.tables import catalog


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """What a backend of this `definition` has offered. `revision` grows with every change of it; `looked_at` is when
    it was asked last."""

    tenant: str
    backend: str
    definition: str
    revision: int
    offer: bytes
    looked_at: datetime
    changed_at: datetime


class CatalogRepository:
    """Reads and writes the catalogue, always of one tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, backends: Collection[str]) -> Mapping[str, CatalogRow]:
        """The rows of these backends, by backend; those that nobody has asked yet are missing."""
        query = select(catalog).where(catalog.c.tenant == tenant, catalog.c.backend.in_(list(backends)))
        return {row.backend: _row(row) for row in await self._database.rows(query)}

    async def put(self, tenant: str, backend: str, definition: str, offer: bytes, now: datetime) -> CatalogRow:
        """Stores what a backend offers now.

        Raises:
            NotFound: there is no such backend any more.
        """
        same = matching(catalog, tenant=tenant, backend=backend)
        async with self._database.write() as connection:
            found = (await connection.execute(select(catalog).where(same).with_for_update())).first()
            if found is None:
                row = CatalogRow(tenant, backend, definition, 1, offer, now, now)
                await connection.execute(insert(catalog).values(_values(row)))
                return row
            is_same = found.offer == offer
            revision, changed_at = (found.revision, found.changed_at) if is_same else (found.revision + 1, now)
            row = CatalogRow(tenant, backend, definition, revision, offer, now, changed_at)
            await connection.execute(update(catalog).where(same).values(_values(row)))
        return row


def _values(row: CatalogRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in CatalogRow.__slots__}


def _row(row: Row[Any]) -> CatalogRow:
    return CatalogRow(**row._asdict())
