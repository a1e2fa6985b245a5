"""The catalogue in the database: what backends offer, as bytes that only `catalog` understands."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from secrets import randbelow
from typing import Any

from sqlalchemy import Row, insert, select, update

from app.domain.resources.access import AccessEntry
from app.domain.resources.members import reader_of
from app.storage._rows import matching
from app.storage._tables import approvals, catalog
from app.storage._tables import backends as registered
from app.storage.engine import Database
from app.storage.tools.approvals import Judgement, require_said


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """What a backend of this `definition` has offered. `pins`: what was found of each tool (`catalog.judging`), and
    `policy` what follows from it: the backend's `pin`, and `minor` its `pin_minor`; `access`: the backend's.
    `rejected`: the fingerprints of the definitions that were rejected last, by tool; read only where there is a policy.
    `revision` grows with every change of it, from any number on: one that was read of a backend that had this name must
    not be one of this. `looked_at` is when it was asked last."""

    tenant: str
    backend: str
    definition: str
    revision: int
    offer: bytes
    pins: Mapping[str, Any]
    looked_at: datetime
    changed_at: datetime
    policy: str = "off"
    minor: str = "ask"
    access: tuple[AccessEntry, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)


class CatalogRepository:
    """Reads and writes the catalogue, always of one tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, backends: Collection[str]) -> Mapping[str, CatalogRow]:
        """The rows of these backends, by backend; those that nobody has asked yet are missing."""
        same = (registered.c.tenant == catalog.c.tenant) & (registered.c.name == catalog.c.backend)
        policy = (registered.c.pin.label("policy"), registered.c.pin_minor.label("minor"), registered.c.access)
        query = select(catalog, *policy).join(registered, same)
        query = query.where(catalog.c.tenant == tenant, catalog.c.backend.in_(list(backends)))
        rows = await self._database.rows(query)
        pinned = [row.backend for row in rows if row.policy != "off"]
        # After the rows: what is rejected in between is withheld, whatever the rows say.
        rejected = await self._rejected(tenant, pinned) if pinned else {}
        return {row.backend: _row(row, rejected.get(row.backend, {})) for row in rows}

    async def _rejected(self, tenant: str, backends: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        query = select(approvals.c.backend, approvals.c.tool, approvals.c.rejected)
        meant = (approvals.c.tenant == tenant) & approvals.c.backend.in_(backends) & approvals.c.rejected.is_not(None)
        found: dict[str, dict[str, str]] = {}
        for row in await self._database.rows(query.where(meant)):
            found.setdefault(row.backend, {})[row.tool] = row.rejected
        return found

    async def backends(self, tenant: str) -> Sequence[str]:
        """Those that have been asked, by name."""
        query = select(catalog.c.backend).where(catalog.c.tenant == tenant).order_by(catalog.c.backend)
        return [row.backend for row in await self._database.rows(query)]

    async def put(
        self, tenant: str, backend: str, definition: str, offer: bytes, judgement: Judgement, now: datetime
    ) -> None:
        """Stores what a backend offers now, and what was found of it; of whatever revision that will be.

        Raises:
            BackendNotFound: there is no such backend any more.
            Overtaken: something else is said of its tools by now.
        """
        same = matching(catalog, tenant=tenant, backend=backend)
        values = {"definition": definition, "offer": offer, "pins": judgement.pins, "looked_at": now}
        async with self._database.write() as connection:
            await require_said(connection, tenant, backend, judgement.said)
            found = (await connection.execute(select(catalog).where(same))).first()
            if found is None:
                key = {"tenant": tenant, "backend": backend, "revision": 1 + randbelow(1 << 30), "changed_at": now}
                await connection.execute(insert(catalog).values(**key, **values))
            elif found.offer == offer:
                await connection.execute(update(catalog).where(same).values(**values))
            else:
                values |= {"revision": found.revision + 1, "changed_at": now}
                await connection.execute(update(catalog).where(same).values(**values))


def _row(row: Row[Any], rejected: Mapping[str, str]) -> CatalogRow:
    access = tuple(map(reader_of(AccessEntry), row.access))
    return CatalogRow(**{**row._asdict(), "access": access}, rejected=rejected)
