"""The names of a tenant's backends and toolsets, which are one space: both are served at `/t/{tenant}/{name}`."""

from datetime import datetime

from sqlalchemy import select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import Conflict, NotFound
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
