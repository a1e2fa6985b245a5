"""Registered backends in the database."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import BackendSpec, Timeouts, home_of
from app.errors import BackendNotFound
from app.storage.audit_act import Act
from app.storage.engine import Database, change_one
from app.storage.tables import backends, tenants

_TIMEOUTS = frozenset(each.name for each in fields(Timeouts))


class BackendRepository:
    """Finds and changes backends, always of one tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, name: str) -> BackendSpec:
        """The backend, enabled or not.

        Raises:
            BackendNotFound: the tenant has none of this name.
        """
        async with self._database.read() as connection:
            row = (await connection.execute(_select().where(_is(tenant, name)))).one_or_none()
        if row is None:
            raise BackendNotFound
        return _spec(row)

    async def list(self, tenant: str, *, after: str = "", limit: int) -> Sequence[BackendSpec]:
        """Up to `limit` backends by name, beginning behind `after`."""
        behind = (backends.c.tenant == tenant) & (backends.c.name > after)
        async with self._database.read() as connection:
            query = _select().where(behind).order_by(backends.c.name).limit(limit)
            return [_spec(row) for row in await connection.execute(query)]

    async def list_warm(self, tenant: str | None = None) -> Sequence[BackendSpec]:
        """The enabled backends, of all tenants or of this one, that keep warm processes: what a node starts with."""
        query = _select().where(backends.c.enabled, backends.c.warm > 0, tenants.c.enabled)
        if tenant is not None:
            query = query.where(backends.c.tenant == tenant)
        async with self._database.read() as connection:
            return [_spec(row) for row in await connection.execute(query)]

    async def homes(self, *, limit: int) -> Sequence[str]:
        """Up to `limit` homes of tenants that have backends."""
        query = select(tenants.c.name, tenants.c.created_at).where(tenants.c.name.in_(select(backends.c.tenant)))
        async with self._database.read() as connection:
            return [home_of(*row) for row in await connection.execute(query.order_by(tenants.c.name).limit(limit))]

    async def create(self, tenant: str, spec: BackendSpec, *, act: Act | None = None) -> BackendSpec:
        """Adds the backend.

        Raises:
            Conflict: the name is taken.
            NotFound: there is no such tenant.
        """
        created = replace(spec, tenant=tenant, version=1)
        values = {**_values(created), "created_at": datetime.now(UTC)}
        async with self._database.write(act) as connection:
            await connection.execute(insert(backends).values(values))
            return replace(created, home=await _home(connection, tenant))

    async def replace(self, tenant: str, spec: BackendSpec, *, act: Act | None = None) -> BackendSpec:
        """Writes a backend that was read before; its version grows.

        Raises:
            BackendNotFound: it is gone.
            ConcurrentChange: somebody else changed it since it was read.
        """
        changed = replace(spec, tenant=tenant, version=spec.version + 1)
        unchanged = and_(_is(tenant, spec.name), backends.c.version == spec.version)
        async with self._database.write(act) as connection:
            statement = update(backends).where(unchanged).values(_values(changed))
            await change_one(connection, statement, "backend", lambda: self.get(tenant, spec.name))
            return replace(changed, home=await _home(connection, tenant))

    async def delete(self, tenant: str, name: str, *, version: int | None = None, act: Act | None = None) -> None:
        """Removes the backend; with a `version`, only that one.

        Raises:
            BackendNotFound: the tenant has none of this name.
            ConcurrentChange: it is another version now.
        """
        doomed = _is(tenant, name)
        if version is not None:
            doomed &= backends.c.version == version
        async with self._database.write(act) as connection:
            statement = delete(backends).where(doomed)
            await change_one(connection, statement, "backend", lambda: self.get(tenant, name))


async def _home(connection: AsyncConnection, tenant: str) -> str:
    created_at = await connection.scalar(select(tenants.c.created_at).where(tenants.c.name == tenant))
    assert created_at is not None  # it is what its backends refer to
    return home_of(tenant, created_at)


def _select() -> Select[Any]:
    made = tenants.c.created_at.label("tenant_created_at")
    return select(backends, made).join(tenants, tenants.c.name == backends.c.tenant)


def _is(tenant: str, name: str) -> ColumnElement[bool]:
    return and_(backends.c.tenant == tenant, backends.c.name == name)


def _values(spec: BackendSpec) -> dict[str, Any]:
    values = {**asdict(spec), "args": list(spec.args), "env": dict(spec.env)}
    return {name: value for name, value in values.items() if name != "home"}


def _spec(row: Row[Any]) -> BackendSpec:
    values = row._asdict()
    del values["created_at"]
    values["home"] = home_of(row.tenant, values.pop("tenant_created_at"))
    timeouts = {name: value for name, value in row.timeouts.items() if name in _TIMEOUTS}
    return BackendSpec(**{**values, "args": tuple(row.args), "timeouts": Timeouts(**timeouts)})
