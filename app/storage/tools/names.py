"""The names of a tenant's backends and toolsets, which are one space: both are served at `/t/{tenant}/{name}`; and what
their rows have in common."""

from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import BackendSpec, home_of
from app.errors import Conflict, NotFound
from app.storage._rows import microseconds, object_of
from app.storage._tables import backends, tenants, toolsets


async def require_free_name(connection: AsyncConnection, tenant: str, name: str) -> datetime:
    """Nobody else takes the name before the end of the transaction. Returns when the tenant was created.

    Raises:
        Conflict: a backend or a toolset has it.
        NotFound: there is no such tenant.
    """
    query = select(tenants.c.created_at).where(tenants.c.name == tenant)
    made_at = (await connection.execute(query.with_for_update())).scalar_one_or_none()
    if made_at is None:
        raise NotFound("Tenant not found")
    taken = union_all(
        *(select(each.c.name).where(each.c.tenant == tenant, each.c.name == name) for each in (backends, toolsets))
    )
    if (await connection.execute(taken)).first() is not None:
        raise Conflict("the name is taken by a backend or a toolset")
    found: datetime = made_at
    return found


def spec_of(row: Row[Any], **given: object) -> BackendSpec:
    """The spec of a row, with members that are given; `tenant_created_at` is of its tenant."""
    made, home = microseconds(row.created_at), home_of(row.tenant, row.tenant_created_at)
    return object_of(BackendSpec, row, made=made, home=home, **given)
