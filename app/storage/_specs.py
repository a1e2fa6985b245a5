"""What backends and toolsets have in common in the database: both are served at `/t/{tenant}/{name}`, so that their
names are one space."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, Select, insert, select, union_all

from app.domain import BackendSpec, home_of
from app.errors import Conflict, NotFound
from app.storage._connections import AsyncConnection
from app.storage._rows import NamedRepository, microseconds, object_of, values_of
from app.storage._tables import backends, tenants, toolsets
from app.storage.audit import Act
from app.storage.tools.approvals import Judgement, keep

_OWNER = (tenants.c.created_at.label("tenant_created_at"), tenants.c.sandbox_exempt)


class SpecRepository(NamedRepository[BackendSpec]):
    """The specs of one table, enabled or not, without the columns `_unread`."""

    _unread: Collection[str] = ()

    async def create(self, tenant: str, spec: BackendSpec, *, act: Act | None = None) -> BackendSpec:
        """Adds the spec.

        Raises:
            Conflict: the name is taken, by a backend or a toolset.
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many toolsets as it may have.
        """
        now = datetime.now(UTC)
        created = self._sealed(replace(spec, tenant=tenant, version=1, made=microseconds(now)))
        values = {**self._values(created), "created_at": now}
        async with self._database.write(act) as connection:
            created = await _of_tenant(connection, created, is_new=True)
            await _require_free_name(connection, created)
            await self._require_room(connection, tenant)
            await connection.execute(insert(self._table).values(values))
        return created

    async def replace(
        self, tenant: str, value: BackendSpec, *, judgement: Judgement | None = None, act: Act | None = None
    ) -> BackendSpec:
        """Writes a spec that was read before, as its next version. `judgement`: where the policy for its tools is
        another one, what is found of them under that.

        Raises:
            NotFound: it is gone, or its tenant.
            ConcurrentChange: somebody else has changed it since it was read.
            Overtaken: it was judged by what is no longer so.
        """
        changed = self._sealed(replace(value, tenant=tenant, version=value.version + 1))
        values = {**self._values(changed), "changed_at": datetime.now(UTC)}
        async with self._database.write(act) as connection:
            changed = await _of_tenant(connection, changed)
            await self._versioned.update(connection, [tenant, value.name], value.version, values)
            if judgement is not None:
                await keep(connection, tenant, value.name, judgement)
        return changed

    async def _require_room(self, connection: AsyncConnection, tenant: str) -> None:
        """Raises QuotaExceeded."""

    def _sealed(self, spec: BackendSpec) -> BackendSpec:
        """The spec with its secrets as they are stored."""
        return spec

    def _values(self, spec: BackendSpec) -> dict[str, Any]:
        return values_of(spec, self._table)

    def _select(self) -> Select[Any]:
        columns = [each for each in self._table.c if each.name not in self._unread]
        return select(*columns, *_OWNER).join(tenants, tenants.c.name == self._table.c.tenant)

    def _value(self, row: Row[Any]) -> BackendSpec:
        made, home = microseconds(row.created_at), home_of(row.tenant, row.tenant_created_at)
        return object_of(BackendSpec, row, made=made, home=home, **self._own(row))

    def _own(self, row: Row[Any]) -> Mapping[str, Any]:
        """The members that are not columns of the same name."""
        raise NotImplementedError


async def _of_tenant(connection: AsyncConnection, spec: BackendSpec, *, is_new: bool = False) -> BackendSpec:
    """The spec with what belongs to its tenant, which does not change before the end of the transaction. Nobody else
    takes the name of a new one.

    Raises:
        NotFound: there is no such tenant.
    """
    query = select(*_OWNER).where(tenants.c.name == spec.tenant)
    tenant = (await connection.execute(query.with_for_update(read=not is_new))).first()
    if tenant is None:
        raise NotFound("Tenant not found")
    return replace(spec, home=home_of(spec.tenant, tenant.tenant_created_at), sandbox_exempt=tenant.sandbox_exempt)


async def _require_free_name(connection: AsyncConnection, spec: BackendSpec) -> None:
    """Raises Conflict."""
    named = (
        select(each.c.name).where(each.c.tenant == spec.tenant, each.c.name == spec.name)
        for each in (backends, toolsets)
    )
    if (await connection.execute(union_all(*named))).first() is not None:
        raise Conflict("the name is taken by a backend or a toolset")
