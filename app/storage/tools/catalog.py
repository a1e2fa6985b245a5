"""The catalogue in the database: what backends offer, as bytes that only `catalog` understands."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, insert, select, update

from app.storage.engine import Database
from app.storage.rows import matching
from app.storage.tables import backends as registered
from app.storage.tables import catalog


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """What a backend of this `definition` has offered. `pins`: what was found of each tool (`catalog.judging`), and
    `policy` what follows from it: the backend's `pin`. `revision` grows with every change of it; `looked_at` is when it
    was asked last."""

    tenant: str
    backend: str
    definition: str
    revision: int
    offer: bytes
    pins: Mapping[str, Any]
    looked_at: datetime
    changed_at: datetime
    policy: str = "off"


class CatalogRepository:
    """Reads and writes the catalogue, always of one tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, backends: Collection[str]) -> Mapping[str, CatalogRow]:
        """The rows of these backends, by backend; those that nobody has asked yet are missing."""
        same = (registered.c.tenant == catalog.c.tenant) & (registered.c.name == catalog.c.backend)
        query = select(catalog, registered.c.pin.label("policy")).join(registered, same)
        query = query.where(catalog.c.tenant == tenant, catalog.c.backend.in_(list(backends)))
        return {row.backend: _row(row) for row in await self._database.rows(query)}

    async def backends(self, tenant: str) -> Sequence[str]:
        """Those that have been asked, by name."""
        query = select(catalog.c.backend).where(catalog.c.tenant == tenant).order_by(catalog.c.backend)
        return [row.backend for row in await self._database.rows(query)]

    async def put(
        self, tenant: str, backend: str, definition: str, offer: bytes, pins: Mapping[str, Any], now: datetime
    ) -> None:
        """Stores what a backend offers now.

        Raises:
            NotFound: there is no such backend any more.
        """
        same = matching(catalog, tenant=tenant, backend=backend)
        values = {"definition": definition, "offer": offer, "pins": pins, "looked_at": now}
        async with self._database.write() as connection:
            found = (await connection.execute(select(catalog).where(same).with_for_update())).first()
            if found is None:
                key = {"tenant": tenant, "backend": backend, "revision": 1, "changed_at": now}
                await connection.execute(insert(catalog).values(**key, **values))
            elif found.offer == offer:
                await connection.execute(update(catalog).where(same).values(**values))
            else:
                values |= {"revision": found.revision + 1, "changed_at": now}
                await connection.execute(update(catalog).where(same).values(**values))

    async def judged(self, tenant: str, backend: str, revision: int, pins: Mapping[str, Any]) -> bool:
        """Stores what was found of the tools of this revision. False: it is another one by now."""
        same = matching(catalog, tenant=tenant, backend=backend, revision=revision)
        async with self._database.write() as connection:
            return (await connection.execute(update(catalog).where(same).values(pins=pins))).rowcount > 0


def _row(row: Row[Any]) -> CatalogRow:
    return CatalogRow(**row._asdict())
