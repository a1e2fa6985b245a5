"""Registered backends in the database."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, Select, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import BackendSpec, home_of
from app.errors import BackendNotFound, NotFound
from app.storage._rows import NamedRepository, microseconds, values_of
from app.storage._tables import backends, tenants
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.tools.approvals import Judgement, keep
from app.storage.tools.names import require_free_name, spec_of


class BackendRepository(NamedRepository[BackendSpec]):
    """The backends, enabled or not. Raises BackendNotFound where others raise NotFound."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, backends, "backend", BackendNotFound)

    async def list_warm(self, tenant: str | None = None) -> Sequence[BackendSpec]:
        """The enabled backends with warm processes, of all tenants or of this one."""
        query = self._select().where(
            backends.c.enabled, (backends.c.warm > 0) | backends.c.warm_auto, tenants.c.enabled
        )
        if tenant is not None:
            query = query.where(backends.c.tenant == tenant)
        return [_spec(row) for row in await self._database.rows(query)]

    async def homes(self, *, limit: int) -> Sequence[str]:
        """The names of up to `limit` homes of tenants that have backends."""
        query = select(tenants.c.name, tenants.c.created_at).where(tenants.c.name.in_(select(backends.c.tenant)))
        rows = await self._database.rows(query.order_by(tenants.c.name).limit(limit))
        return [home_of(row.name, row.created_at) for row in rows]

    async def create(self, tenant: str, spec: BackendSpec, *, act: Act | None = None) -> BackendSpec:
        """Adds the backend.

        Raises:
            Conflict: the name is taken, by a backend or a toolset.
            NotFound: there is no such tenant.
        """
        now = datetime.now(UTC)
        created = replace(spec, tenant=tenant, version=1, made=microseconds(now))
        values = {**_values(created), "created_at": now}
        async with self._database.write(act) as connection:
            await require_free_name(connection, tenant, spec.name)
            created = await _of_tenant(connection, created)
            await connection.execute(insert(backends).values(values))
        return created

    async def replace(
        self, tenant: str, spec: BackendSpec, *, judgement: Judgement | None = None, act: Act | None = None
    ) -> BackendSpec:
        """Writes a backend that was read before, as its next version. `judgement`: where the policy for its tools is
        another one, what is found of them under that.

        Raises:
            NotFound: it is gone, or its tenant.
            ConcurrentChange: somebody else has changed it since it was read.
            Overtaken: it was judged by what is no longer so.
        """
        changed = replace(spec, tenant=tenant, version=spec.version + 1)
        async with self._database.write(act) as connection:
            changed = await _of_tenant(connection, changed)
            await self._versioned.update(
                connection, [tenant, spec.name], spec.version, {**_values(changed), "changed_at": datetime.now(UTC)}
            )
            if judgement is not None:
                await keep(connection, tenant, spec.name, judgement)
        return changed

    def _select(self) -> Select[Any]:
        made = tenants.c.created_at.label("tenant_created_at")
        query = select(backends, made, tenants.c.sandbox_exempt)
        return query.join(tenants, tenants.c.name == backends.c.tenant)

    def _value(self, row: Row[Any]) -> BackendSpec:
        return _spec(row)


async def _of_tenant(connection: AsyncConnection, spec: BackendSpec) -> BackendSpec:
    """The spec with what belongs to its tenant, which does not change before the end of the transaction.

    Raises:
        NotFound: there is no such tenant.
    """
    query = select(tenants.c.created_at, tenants.c.sandbox_exempt).where(tenants.c.name == spec.tenant)
    tenant = (await connection.execute(query.with_for_update(read=True))).first()
    if tenant is None:
        raise NotFound("Tenant not found")
    return replace(spec, home=home_of(spec.tenant, tenant.created_at), sandbox_exempt=tenant.sandbox_exempt)


def _values(spec: BackendSpec) -> dict[str, Any]:
    is_auto = spec.warm == "auto"
    return {**values_of(spec, backends), "warm": 0 if is_auto else spec.warm, "warm_auto": is_auto}


def _spec(row: Row[Any]) -> BackendSpec:
    return spec_of(row, warm="auto" if row.warm_auto else row.warm)
