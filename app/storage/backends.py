"""Registered backends in the database."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, select

from app.domain import BackendSpec, home_of
from app.errors import BackendNotFound
from app.storage._specs import SpecRepository
from app.storage._tables import backends, tenants
from app.storage.audit import Act
from app.storage.engine import Database
from app.storage.tools.approvals import Judgement


class BackendRepository(SpecRepository):
    """The backends. Raises BackendNotFound where others raise NotFound."""

    _unread = ("api",)

    def __init__(self, database: Database) -> None:
        super().__init__(database, backends, "backend", BackendNotFound)

    async def list_warm(self, tenant: str | None = None) -> Sequence[BackendSpec]:
        """The enabled backends with warm processes, of all tenants or of this one."""
        query = self._select().where(
            backends.c.enabled, (backends.c.warm > 0) | backends.c.warm_auto, tenants.c.enabled
        )
        if tenant is not None:
            query = query.where(backends.c.tenant == tenant)
        return [self._value(row) for row in await self._database.rows(query)]

    async def homes(self, *, limit: int) -> Sequence[str]:
        """The names of up to `limit` homes of tenants that have backends."""
        query = select(tenants.c.name, tenants.c.created_at).where(tenants.c.name.in_(select(backends.c.tenant)))
        rows = await self._database.rows(query.order_by(tenants.c.name).limit(limit))
        return [home_of(row.name, row.created_at) for row in rows]

    async def create(self, tenant: str, spec: BackendSpec, *, act: Act | None = None) -> BackendSpec:
        return replace(await super().create(tenant, spec, act=act), api=None)

    async def replace(
        self, tenant: str, value: BackendSpec, *, judgement: Judgement | None = None, act: Act | None = None
    ) -> BackendSpec:
        return replace(await super().replace(tenant, value, judgement=judgement, act=act), api=None)

    async def api(self, tenant: str, name: str) -> tuple[str, bytes] | None:
        """What was made of a backend's document, after its digest; None: there is no such backend, or it has none."""
        query = select(backends.c.openapi_made, backends.c.api).where(self._versioned.row(tenant, name))
        row = await self._database.row(query)
        return None if row is None or row.api is None else (row.openapi_made, row.api)

    def _values(self, spec: BackendSpec) -> dict[str, Any]:
        is_auto = spec.warm == "auto"
        made = {} if spec.api is None else {"api": spec.api}
        return {**super()._values(spec), "warm": 0 if is_auto else spec.warm, "warm_auto": is_auto, **made}

    def _own(self, row: Row[Any]) -> Mapping[str, Any]:
        return {"warm": "auto" if row.warm_auto else row.warm}
