"""The audit trail in the database. It is append-only: triggers refuse to change or delete a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Row, Select, func, select

from app.storage._tables import audit
from app.storage.audit import Act, changes_in
from app.storage.engine import Database


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A recorded act. Ids grow in the order of commits. `left_out` is the number of changes that did not fit."""

    id: int
    act: Act
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Which:
    """A filter: entries must match every field that is given. `actor` is the subject of the principal.

    `action`, `target` and `actor` are exact, or prefixes if they end with `*`. `since` is inclusive, `until` exclusive.
    """

    tenant: str | None = None
    action: str | None = None
    target: str | None = None
    actor: str | None = None
    request_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def narrow(self, query: Select[Any]) -> Select[Any]:
        patterns = ((audit.c.action, self.action), (audit.c.target, self.target), (audit.c.actor_subject, self.actor))
        query = query.where(*(_fits(column, text) for column, text in patterns if text is not None))
        exact = ((audit.c.tenant, self.tenant), (audit.c.request_id, self.request_id))
        query = query.where(*(column == text for column, text in exact if text is not None))
        if self.since is not None:
            query = query.where(audit.c.at >= self.since)
        return query if self.until is None else query.where(audit.c.at < self.until)


class AuditLog:
    """Reads the trail, and records acts that change nothing in the database. `Database.write` records the others."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, act: Act) -> None:
        """Records an act on something that lives in memory only. Call it first: no record, no act.

        Raises:
            StorageUnavailable: it cannot be recorded now.
        """
        async with self._database.write(act):
            pass

    async def list(self, which: Which, *, before: int | None = None, limit: int) -> Sequence[AuditEntry]:
        """Up to `limit` of these entries, newest first, with ids smaller than `before`."""
        query = which.narrow(select(audit)).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        return [entry_of(row) for row in await self._database.rows(query)]


def entry_of(row: Row[Any]) -> AuditEntry:
    actor = (row.actor_tenant, row.actor_issuer, row.actor_subject)
    changes, left_out = changes_in(row.changes)
    act = Act(row.tenant, actor, row.action, row.target, row.at, row.request_id, row.detail, changes)
    return AuditEntry(row.id, act, left_out)


def _fits(column: Column[str], text: str) -> ColumnElement[bool]:
    if not text.endswith("*"):
        return column == text
    # Not LIKE, which ignores case on SQLite; nor a range, which depends on the collation on PostgreSQL.
    beginning = text[:-1]
    return func.substr(column, 1, len(beginning)) == beginning
