"""Toolsets in the database. To everything but administration a toolset is a backend."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, Select, insert, select

from app.domain import BackendSpec, Member, Selection, Timeouts, Toolset, home_of
from app.domain.resources.toolsets import TOOLSETS
from app.errors import BackendNotFound, Conflict, NotFound
from app.storage._rows import NamedRepository, microseconds, require_room
from app.storage._tables import tenants, toolsets
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.tools.names import require_free_name


class ToolsetRepository(NamedRepository[BackendSpec]):
    """The toolsets, enabled or not."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, toolsets, TOOLSETS.one, lambda: NotFound(TOOLSETS.missing()))

    async def find(self, tenant: str, name: str) -> BackendSpec:
        """As `get`, for those who look for a backend. Raises BackendNotFound."""
        try:
            return await self.get(tenant, name)
        except NotFound:
            raise BackendNotFound from None

    async def create(self, tenant: str, spec: BackendSpec, *, act: Act | None = None) -> BackendSpec:
        """Adds the toolset.

        Raises:
            Conflict: the name is taken, by a toolset or a backend.
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many toolsets as it may have.
        """
        now = datetime.now(UTC)
        created = replace(spec, tenant=tenant, version=1, made=microseconds(now))
        async with self._database.write(act) as connection:
            made_at = await require_free_name(connection, tenant, spec.name)
            message = f"a tenant has at most {TOOLSETS.per_tenant} toolsets"
            await require_room(connection, toolsets.c.tenant == tenant, "toolsets", TOOLSETS.per_tenant, message)
            await connection.execute(insert(toolsets).values(**_values(created), created_at=now))
        return replace(created, home=home_of(tenant, made_at))

    def _select(self) -> Select[Any]:
        query = select(toolsets, tenants.c.created_at.label("tenant_created_at"))
        return query.join(tenants, tenants.c.name == toolsets.c.tenant)

    def _value(self, row: Row[Any]) -> BackendSpec:
        return _spec(row)

    def _changed(self, tenant: str, value: BackendSpec) -> tuple[BackendSpec, Mapping[str, Any]]:
        changed = replace(value, tenant=tenant, version=value.version + 1)
        return changed, {**_values(changed), "changed_at": datetime.now(UTC)}


def _values(spec: BackendSpec) -> dict[str, Any]:
    toolset = spec.toolset
    if toolset is None:
        raise Conflict("this is a backend, not a toolset")
    return {
        "tenant": spec.tenant,
        "name": spec.name,
        "title": toolset.title,
        "instructions": toolset.instructions,
        "members": [asdict(member) for member in toolset.members],
        "mode": toolset.mode,
        "always": list(toolset.always),
        "learns": toolset.learns,
        "guides": list(toolset.guides),
        # Older versions, which may run beside this one, do not know `park_s`; no toolset has one.
        "timeouts": {name: value for name, value in asdict(spec.timeouts).items() if name != "park_s"},
        "enabled": spec.enabled,
        "reason": spec.reason,
        "off_by_platform": spec.off_by_platform,
        "version": spec.version,
    }


def _spec(row: Row[Any]) -> BackendSpec:
    return BackendSpec(
        tenant=row.tenant,
        name=row.name,
        command="",
        timeouts=Timeouts(**row.timeouts),
        toolset=Toolset(
            row.title,
            row.instructions,
            tuple(_member(each) for each in row.members),
            row.mode,
            tuple(row.always),
            row.learns,
            tuple(row.guides),
        ),
        enabled=row.enabled,
        reason=row.reason,
        off_by_platform=row.off_by_platform,
        version=row.version,
        home=home_of(row.tenant, row.tenant_created_at),
        made=microseconds(row.created_at),
    )


def _member(stored: Mapping[str, Any]) -> Member:
    return Member(stored["backend"], stored["prefix"], selection_of(stored.get("selection", {})))


def selection_of(stored: Mapping[str, Any]) -> Selection:
    """A selection as it is stored."""
    return Selection(
        tuple(stored.get("include", ())),
        tuple(stored.get("exclude", ())),
        stored.get("rename", {}),
        stored.get("describe", {}),
    )
