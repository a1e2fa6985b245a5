"""Calls in the database: CallRepository fulfils `telemetry.call_history.kept.CallShelf` and `CallArchive`."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, func, insert, or_, select, true

from app.storage._tables import calls
from app.storage.engine import Database
from app.telemetry.call_history.kept import KeptCall
from app.telemetry.call_history.query import ANY_ERROR, OK, CallFilter, CallGroup, bucket_of

_KEPT: list[Any] = [calls.c[each.name] for each in fields(KeptCall)]
_ITSELF = ("backend", "method", "tool", "subject", "client_name", "session", "request_id")  # must be equal
_EMPTY = ""
PORTION = 2_000  # calls that are removed in one transaction
_GROUPS: dict[str, tuple[ColumnElement[str] | str, ColumnElement[str] | str]] = {  # what they have in common, within
    "backend": (calls.c.backend, _EMPTY),
    "tool": (case((calls.c.tool == "", calls.c.method), else_=calls.c.tool), calls.c.backend),
    "outcome": (calls.c.outcome, _EMPTY),
    "subject": (calls.c.subject, calls.c.issuer),
    "client": (func.trim(calls.c.client_name + " " + calls.c.client_version), _EMPTY),
}


class CallRepository:
    """Of all nodes. Newest first means by `at_us`, and of one moment by `number`, upwards."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, kept: Sequence[KeptCall]) -> None:
        """Stores them all, or none.

        Raises:
            NotFound: a tenant is gone.
            Conflict: they are stored already.
        """
        async with self._database.write() as connection:
            await connection.execute(insert(calls), [_values(each) for each in kept])

    async def find(
        self, tenant: str | None, wanted: CallFilter, after: tuple[int, int] | None, most: int
    ) -> list[KeptCall]:
        """The newest that match, behind the one with this `at_us` and `number`."""
        rows = _matching(tenant, wanted)
        if after is not None:
            at_us, number = after
            rows &= or_(calls.c.at_us < at_us, and_(calls.c.at_us == at_us, calls.c.number > number))
        query = select(*_KEPT).where(rows).order_by(calls.c.at_us.desc(), calls.c.number).limit(most)
        rows_found: Sequence[Any] = await self._database.rows(query)
        return [KeptCall(*row) for row in rows_found]

    async def count(self, tenant: str | None, wanted: CallFilter, most: int) -> int:
        """How many match; counts up to `most`."""
        some = select(calls.c.number).where(_matching(tenant, wanted)).limit(most).subquery()
        async with self._database.read() as connection:
            return int((await connection.execute(select(func.count()).select_from(some))).scalar_one())

    async def groups(
        self, tenant: str | None, wanted: CallFilter, by: str, not_of: Collection[str] = ()
    ) -> list[CallGroup]:
        """The sums of those that match and are not of these nodes, by what they have in common, in no order."""
        name, within = _GROUPS[by]
        keys = [each for each in (name, within) if not isinstance(each, str)]
        errors = func.sum(case((calls.c.outcome == OK, 0), else_=1))
        sums = func.count(), errors, func.sum(calls.c.bytes_in), func.sum(calls.c.bytes_out)
        columns: list[Any] = [*keys, calls.c.bucket, *sums]
        query = (
            select(*columns)
            .where(_matching(tenant, wanted), calls.c.node.not_in(not_of))
            .group_by(*keys, calls.c.bucket)
        )
        found = defaultdict[tuple[str, str], list[Any]](list)
        rows: Sequence[Any] = await self._database.rows(query)
        for row in rows:
            found[row[0], row[1] if len(keys) > 1 else ""].append(row[len(keys) :])
        return [_group(*key, sums_of_key) for key, sums_of_key in found.items()]

    async def remove_older(self, than_us: int, most: int) -> int:
        """Removes up to so many calls of all tenants from before; returns how many."""
        oldest = select(calls.c.number).where(calls.c.at_us < than_us).order_by(calls.c.at_us).limit(most)
        return await self._remove(calls.c.number.in_(oldest.scalar_subquery()))

    async def remove_of(self, tenant: str) -> None:
        """Removes all of a tenant, in portions: with the tenant they would go in one statement, which might take longer
        than one may."""
        while await self.trim(tenant, 0, PORTION) == PORTION:
            pass

    async def trim(self, tenant: str, kept: int, most: int) -> int:
        """Removes up to so many of the tenant's oldest calls, where it has more than `kept`; returns how many."""
        mine = select(calls.c.at_us).where(calls.c.tenant == tenant)
        async with self._database.read() as connection:
            last = await connection.execute(mine.order_by(calls.c.at_us.desc()).offset(kept).limit(1))
            newest_us = last.scalar_one_or_none()
        if newest_us is None:
            return 0
        surplus = select(calls.c.number).where(calls.c.tenant == tenant, calls.c.at_us <= newest_us)
        oldest = surplus.order_by(calls.c.at_us).limit(most)
        return await self._remove(calls.c.number.in_(oldest.scalar_subquery()))

    async def _remove(self, rows: ColumnElement[bool]) -> int:
        async with self._database.write() as connection:
            return (await connection.execute(delete(calls).where(rows))).rowcount


def _matching(tenant: str | None, wanted: CallFilter) -> ColumnElement[bool]:
    """As `CallFilter.matches`, of one tenant or of all."""
    found: list[ColumnElement[bool]] = [true()] if tenant is None else [calls.c.tenant == tenant]
    found += [calls.c[name] == _storable(value) for name in _ITSELF if (value := getattr(wanted, name))]
    if wanted.outcome:
        is_error = wanted.outcome == ANY_ERROR
        found.append(calls.c.outcome != OK if is_error else calls.c.outcome == _storable(wanted.outcome))
    if wanted.since > 0:
        found.append(calls.c.at_us >= round(wanted.since * 1_000_000))
    if wanted.until < math.inf:
        found.append(calls.c.at_us < round(wanted.until * 1_000_000))
    if wanted.min_ms > 0:
        found.append(calls.c.seconds >= wanted.min_ms / 1000)
    return and_(*found)


def _values(call: KeptCall) -> dict[str, Any]:
    texts = {name: _storable(value) for name, value in asdict(call).items() if isinstance(value, str)}
    return {**asdict(call), **texts, "bucket": bucket_of(call.seconds)}


def _storable(text: str) -> str:
    """PostgreSQL takes no NUL, and clients choose methods."""
    return text.replace("\0", "?").encode(errors="replace").decode()


def _group(name: str, within: str, rows: Sequence[Sequence[Any]]) -> CallGroup:
    """Of rows with a bucket, a count, and sums of errors and bytes."""
    return CallGroup(
        name,
        within,
        count=sum(row[1] for row in rows),
        errors=sum(int(row[2]) for row in rows),
        bytes_in=sum(int(row[3]) for row in rows),
        bytes_out=sum(int(row[4]) for row in rows),
        buckets={row[0]: row[1] for row in rows},
    )
