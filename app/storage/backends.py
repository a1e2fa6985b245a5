"""Registered backends in the database."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, Select, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import BackendSpec, ProcessLimits, Sandbox, Timeouts, home_of
from app.errors import BackendNotFound, NotFound
from app.storage._rows import NamedRepository, microseconds
from app.storage._tables import backends, tenants
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.tools.approvals import Judgement, keep
from app.storage.tools.names import require_free_name
from app.storage.tools.toolsets import selection_of

_NESTED = {"timeouts": Timeouts, "sandbox": Sandbox, "limits": ProcessLimits}
# Members that are columns of the tenant, or derived from one; and one for a check.
_NOT_STORED = ("home", "keeper", "sandbox_exempt", "missed_log", "toolset", "made")


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
    values = {**asdict(spec), "args": list(spec.args), "env": dict(spec.env)}
    values["headers"] = dict(spec.headers)
    values["warm_auto"] = spec.warm == "auto"
    values["warm"] = 0 if spec.warm == "auto" else spec.warm
    for name in _NOT_STORED:
        del values[name]
    return values


def _spec(row: Row[Any]) -> BackendSpec:
    values = row._asdict()
    del values["changed_at"]
    values["made"] = microseconds(values.pop("created_at"))
    values["home"] = home_of(row.tenant, values.pop("tenant_created_at"))
    values["selection"] = selection_of(row.selection)
    values["warm"] = "auto" if values.pop("warm_auto") else values["warm"]
    nested = {name: _nested(kind, values[name]) for name, kind in _NESTED.items()}
    return BackendSpec(**{**values, **nested, "args": tuple(row.args)})


def _nested(kind: type[Any], stored: Mapping[str, Any]) -> Any:
    """A member that is not in the row has its default; one that this version does not know is ignored."""
    known = {each.name for each in fields(kind)}
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in stored.items() if name in known}
    )
