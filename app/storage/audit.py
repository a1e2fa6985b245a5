"""The audit trail in the database. It only grows: triggers refuse to change or delete a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select

from app.storage.acts import Act
from app.storage.engine import Database
from app.storage.tables import audit


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An act as it was written down; later ones have larger ids."""

    id: int
    act: Act


class AuditLog:
    """Reads the trail; writes what changes nothing in the database. Changes there are written down by `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, act: Act) -> None:
        """Writes down an act on something that lives in memory only. Call it first: no record, no act.

        Raises:
            StorageUnavailable: it cannot be written down now.
        """
        async with self._database.write(act):
            pass

    async def list(self, tenant: str | None, *, before: int | None = None, limit: int) -> Sequence[AuditEntry]:
        """Up to `limit` entries, newest first, of one tenant or (None) of all; those with smaller ids than `before`."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if tenant is not None:
            query = query.where(audit.c.tenant == tenant)
        if before is not None:
            query = query.where(audit.c.id < before)
        async with self._database.read() as connection:
            return [entry_of(row) for row in await connection.execute(query)]


def entry_of(row: Row[Any]) -> AuditEntry:
    """The entry in a row of the table."""
    actor = (row.actor_tenant, row.actor_issuer, row.actor_subject)
    act = Act(row.tenant, actor, row.action, row.target, row.at, row.request_id, row.detail)
    return AuditEntry(row.id, act)
