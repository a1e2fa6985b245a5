"""Approved definitions of tools in the database, as bytes that only `catalog` understands; and what was found of the
tools that a backend offers, which is stored in the transaction of whatever it follows from.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select, update

from app.errors import BackendNotFound
from app.storage._connections import AsyncConnection
from app.storage._rows import matching
from app.storage._tables import approvals, backends, catalog
from app.storage.audit import Act
from app.storage.engine import Database


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person has said of a tool: the definition that was `approved`, and the fingerprint of the one that was
    `rejected` last. `by`: who has said so last."""

    tool: str
    approved: bytes | None
    rejected: str | None
    by: str
    at: datetime

    @property
    def is_empty(self) -> bool:
        """Nothing is kept of it."""
        return self.approved is None and self.rejected is None


@dataclass(frozen=True, slots=True)
class Approvals:
    """Of one backend, by tool, with its policy."""

    policy: str
    minor: str
    tools: Mapping[str, Approval]

    def after(self, changed: Iterable[Approval]) -> "Approvals":
        """What is said once these are stored."""
        said = {**self.tools, **{each.tool: each for each in changed}}
        return replace(self, tools={tool: each for tool, each in said.items() if not each.is_empty})


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found of each tool (`catalog.judging`) of this `revision` of what a backend offers; None: it has offered
    nothing yet. `said`: what persons had said when it began, with which it is outdated."""

    pins: Mapping[str, Any]
    said: Approvals
    revision: int | None = None


class Overtaken(Exception):
    """Something else is said of the tools, or offered, than what was judged: nothing is stored. Judge again."""


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

    async def put(
        self, tenant: str, backend: str, changed: Sequence[Approval], judgement: Judgement, *, act: Act | None = None
    ) -> None:
        """Stores these instead of what was said of their tools before, and what follows from them: no node sees the one
        without the other. One with neither removes it.

        Raises:
            BackendNotFound: there is no such backend any more.
            Overtaken: it was judged by what is no longer so.
        """
        async with self._database.write(act) as connection:
            await keep(connection, tenant, backend, judgement)
            tools = [each.tool for each in changed]
            await connection.execute(delete(approvals).where(_of(tenant, backend), approvals.c.tool.in_(tools)))
            kept = [_values(tenant, backend, each) for each in changed if not each.is_empty]
            if kept:
                await connection.execute(insert(approvals), kept)


async def require_said(connection: AsyncConnection, tenant: str, backend: str, said: Approvals) -> None:
    """Nothing else is said of the backend's tools, nor stored of them, before the end of the transaction.

    Raises:
        BackendNotFound: there is no such backend.
        Overtaken: something else is said by now.
    """
    # The lock that a change of the backend takes: whoever says, stores or judges something queues here.
    policy = select(backends.c.pin, backends.c.pin_minor).where(matching(backends, tenant=tenant, name=backend))
    found = (await connection.execute(policy.with_for_update(key_share=True))).first()
    if found is None:
        raise BackendNotFound
    columns = (
        approvals.c.tool,
        approvals.c.rejected,
        approvals.c.by,
        approvals.c.at,
    )  # who and when: without the texts
    rows = (await connection.execute(select(*columns).where(_of(tenant, backend)))).all()
    before = {(each.tool, each.rejected, each.by, each.at) for each in said.tools.values()}
    if (found.pin, found.pin_minor) != (said.policy, said.minor) or {tuple(row) for row in rows} != before:
        raise Overtaken


async def keep(connection: AsyncConnection, tenant: str, backend: str, judgement: Judgement) -> None:
    """Stores what was found, in this transaction. Raises: as `require_said`; Overtaken also if it offers another
    revision by now."""
    await require_said(connection, tenant, backend, judgement.said)
    row = matching(catalog, tenant=tenant, backend=backend)
    revision = (await connection.execute(select(catalog.c.revision).where(row))).scalar_one_or_none()
    if revision != judgement.revision:
        raise Overtaken
    if revision is not None:
        await connection.execute(update(catalog).where(row).values(pins=judgement.pins))


def _of(tenant: str, backend: str) -> Any:
    return matching(approvals, tenant=tenant, backend=backend)


def _values(tenant: str, backend: str, approval: Approval) -> dict[str, Any]:
    members = {name: getattr(approval, name) for name in Approval.__slots__}
    return {"tenant": tenant, "backend": backend, **members}
