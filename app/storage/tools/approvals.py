"""Approved definitions of tools in the database, as bytes that only `catalog` understands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select

from app.errors import BackendNotFound
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.rows import matching
from app.storage.tables import approvals, backends


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person has said of a tool: the definition that was `approved`, and the fingerprint of the one that was
    `rejected` last. `by`: who has said so last."""

    tool: str
    approved: bytes | None
    rejected: str | None
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Approvals:
    """Of one backend, by tool, with its policy."""

    policy: str
    minor: str
    tools: Mapping[str, Approval]


class ApprovalRepository:
    """Reads and writes approvals, always of one backend."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, backend: str) -> Approvals:
        """Raises BackendNotFound: there is no such backend."""
        policy = select(backends.c.pin, backends.c.pin_minor).where(matching(backends, tenant=tenant, name=backend))
        async with self._database.read() as connection:
            found = (await connection.execute(policy)).first()
            rows = (await connection.execute(select(approvals).where(_of(tenant, backend)))).all()
        if found is None:
            raise BackendNotFound
        tools = {row.tool: Approval(row.tool, row.approved, row.rejected, row.by, row.at) for row in rows}
        return Approvals(found.pin, found.pin_minor, tools)

    async def put(self, tenant: str, backend: str, changed: Sequence[Approval], *, act: Act | None = None) -> None:
        """Stores these instead of what was said of their tools before; one with neither removes it.

        Raises:
            NotFound: there is no such backend any more.
        """
        kept = [each for each in changed if each.approved is not None or each.rejected is not None]
        async with self._database.write(act) as connection:
            for each in changed:
                await connection.execute(delete(approvals).where(_of(tenant, backend), approvals.c.tool == each.tool))
            if kept:
                await connection.execute(insert(approvals), [_values(tenant, backend, each) for each in kept])


def _of(tenant: str, backend: str) -> Any:
    return matching(approvals, tenant=tenant, backend=backend)


def _values(tenant: str, backend: str, approval: Approval) -> dict[str, Any]:
    members = {name: getattr(approval, name) for name in Approval.__slots__}
    return {"tenant": tenant, "backend": backend, **members}
