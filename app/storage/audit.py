"""The audit trail in the database. It only grows: triggers refuse to change or delete a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Row, Select, func, select

from app.storage.audit_act import Act, changes_in
from app.storage.engine import Database
from app.storage.tables import audit


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An act as it was written down; later ones have larger ids. `left_out` of its changes did not fit."""

    id: int
    act: Act
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Which:
    """Which entries are asked for: those that fit everything that is given. `actor` is the subject of who acted.

    `action`, `target` and `actor` are exact; one that ends with `*` is the beginning. `since` belongs to the time that
    is meant, `until` does not.
    """

    tenant: str | None = None
    action: str | None = None
    target: str | None = None
    actor: str | None = None
    request_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def narrow(self, query: Select[Any]) -> Select[Any]:
        """The query, for these entries only."""
        for column, text in (
            (audit.c.action, self.action), (audit.c.target, self.target), (audit.c.actor_subject, self.actor),
        ):  # fmt: skip
            if text is not None:
                query = query.where(_fits(column, text))
        if self.tenant is not None:
            query = query.where(audit.c.tenant == self.tenant)
        if self.request_id is not None:
            query = query.where(audit.c.request_id == self.request_id)
        if self.since is not None:
            query = query.where(audit.c.at >= self.since)
        if self.until is not None:
            query = query.where(audit.c.at < self.until)
        return query


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

    async def list(self, which: Which, *, before: int | None = None, limit: int) -> Sequence[AuditEntry]:
        """Up to `limit` of these entries, newest first; those with smaller ids than `before`."""
        query = which.narrow(select(audit)).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        async with self._database.read() as connection:
            return [entry_of(row) for row in await connection.execute(query)]


def entry_of(row: Row[Any]) -> AuditEntry:
    """The entry in a row of the table."""
    actor = (row.actor_tenant, row.actor_issuer, row.actor_subject)
    changes, left_out = changes_in(row.changes)
    act = Act(row.tenant, actor, row.action, row.target, row.at, row.request_id, row.detail, changes)
    return AuditEntry(row.id, act, left_out)


def _fits(column: Column[str], text: str) -> ColumnElement[bool]:
    if not text.endswith("*"):
        return column == text
    # Not LIKE, which takes capitals for small letters on SQLite; nor a range, for which PostgreSQL has its own order.
    beginning = text[:-1]
    return func.substr(column, 1, len(beginning)) == beginning
