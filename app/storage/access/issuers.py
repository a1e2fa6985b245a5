"""Token issuers in the database. Their secrets are stored sealed.

An issuer of the platform is a row of the tenant `default` that gives access to the tenants of its list, and to
`default` only if that is in it. There it takes precedence over the tenant's own issuer of the same name: administrators
of a tenant must not be able to sign tokens for principals of the platform's issuer.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, insert, or_, select

from app.domain import DEFAULT_TENANT, Issuer, ServedTenants, TenantGrant
from app.errors import Conflict, NotFound
from app.storage._connections import AsyncConnection
from app.storage._rows import VersionedTable, object_of, require_room, values_of
from app.storage._tables import issuer_tenants, issuers, tenants
from app.storage.audit import Act
from app.storage.engine import Database

MAX_ISSUERS_PER_TENANT = 50
_VERSIONED = VersionedTable(issuers, ["tenant", "id"], "issuer", lambda: NotFound("Issuer not found"))


class IssuerRepository:
    """Finds and changes issuers, always of one tenant. Fulfils `auth.tokens.IssuerStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def are_any(self) -> bool:
        """Whether any tenant has one."""
        return await self._database.row(select(issuers.c.id).limit(1)) is not None

    async def find(self, tenant: str, issuer: str) -> Issuer | None:
        """The issuer with this `iss` for tokens of the tenant: the platform's, if it serves the tenant, else the
        tenant's own. Without what its list has for other tenants."""
        own = and_(issuers.c.tenant == tenant, issuers.c.tenants_claim.is_(None))
        query = select(issuers).where(issuers.c.issuer == issuer, or_(own, _serves(tenant)))
        async with self._database.read() as connection:
            rows = await connection.execute(query.order_by(issuers.c.tenants_claim.is_(None)))
            found = await _with_tenants(connection, rows.all()[:1])
        return found[0].seen_from(tenant) if found else None

    async def get(self, tenant: str, issuer_id: str) -> Issuer:
        """An issuer of the tenant, or of the platform that serves it. Raises NotFound: there is none of this id."""
        query = select(issuers).where(issuers.c.id == issuer_id, _visible(tenant))
        async with self._database.read() as connection:
            found = await _with_tenants(connection, (await connection.execute(query)).all())
        if not found:
            raise NotFound("Issuer not found")
        return found[0]

    async def list(self, tenant: str, *, after: str = "", limit: int | None = None) -> Sequence[Issuer]:
        """Up to `limit` issuers by id, after the id `after`, including those of the platform that serve the tenant.
        Without `limit` all of them."""
        query = select(issuers).where(_visible(tenant), issuers.c.id > after).order_by(issuers.c.id)
        async with self._database.read() as connection:
            rows = await connection.execute(query.limit(limit or 2 * MAX_ISSUERS_PER_TENANT))
            return await _with_tenants(connection, rows.all())

    async def authorization_servers(self, tenant: str) -> Sequence[str]:
        """The issuers where clients of the tenant can get a token: its own authorization server, as a path below the
        gateway's URL, and those with a URL and public keys."""
        urls = ("https://", "http://")
        query = select(tenants.c.name).where(tenants.c.name == tenant, tenants.c.sign_in.is_not(None))
        own = [] if await self._database.row(query) is None else [f"/oauth/{tenant}"]
        found = [each for each in await self.list(tenant) if tenant in each.opens() and each.sealed_secret is None]
        return [*own, *dict.fromkeys(each.issuer for each in found if each.issuer.startswith(urls))]

    async def create(self, tenant: str, issuer: Issuer, *, acts: Sequence[Act] = ()) -> Issuer:
        """Adds the issuer.

        Raises:
            Conflict: the tenant has this `iss` already, or the platform's issuer of this name opens it.
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many issuers as it may have.
        """
        created = replace(issuer, tenant=tenant, version=1)
        async with self._database.write(*acts) as connection:
            message = f"a tenant has at most {MAX_ISSUERS_PER_TENANT} issuers"
            await require_room(connection, issuers.c.tenant == tenant, "issuers", MAX_ISSUERS_PER_TENANT, message)
            await _require_one_of_a_name(connection, created)
            await connection.execute(insert(issuers).values(_values(created)))
            await _write_tenants(connection, created)
        return created

    async def replace(self, tenant: str, issuer: Issuer, *, acts: Sequence[Act] = ()) -> Issuer:
        """Writes an issuer that was read before, as its next version.

        Raises:
            Conflict: a tenant that is new in its list has an issuer of this name.
            NotFound: it is gone, or a tenant of its list.
            ConcurrentChange: somebody else has changed it since it was read.
        """
        changed = replace(issuer, tenant=tenant, version=issuer.version + 1)
        async with self._database.write(*acts) as connection:
            await _VERSIONED.update(connection, [tenant, issuer.id], issuer.version, _values(changed))
            await _require_one_of_a_name(connection, changed)
            await connection.execute(delete(issuer_tenants).where(issuer_tenants.c.issuer_id == issuer.id))
            await _write_tenants(connection, changed)
        return changed

    async def delete(
        self, tenant: str, issuer_id: str, *, version: int | None = None, acts: Sequence[Act] = ()
    ) -> None:
        """Removes the issuer; with a `version`, only that one.

        Raises:
            NotFound: the tenant has none of this id.
            ConcurrentChange: it is another version now.
        """
        await _VERSIONED.delete(self._database, [tenant, issuer_id], version, *acts)


def _serves(tenant: str) -> ColumnElement[bool]:
    """The issuers of the platform that give access to this tenant."""
    listed = select(issuer_tenants.c.issuer_id).where(issuer_tenants.c.tenant == tenant)
    is_platforms = and_(issuers.c.tenant == DEFAULT_TENANT, issuers.c.tenants_claim.is_not(None))
    return and_(is_platforms, issuers.c.id.in_(listed))


def _visible(tenant: str) -> ColumnElement[bool]:
    return or_(issuers.c.tenant == tenant, _serves(tenant))


async def _require_one_of_a_name(connection: AsyncConnection, issuer: Issuer) -> None:
    """Raises Conflict where a tenant would have two issuers of one name, which would be confusing. Two that are made at
    the same time are not noticed: then `find` decides."""
    same = issuers.c.issuer == issuer.issuer
    if issuer.tenants is None:
        query = select(issuers.c.id).where(same, _serves(issuer.tenant))
        if (await connection.execute(query)).first() is not None:
            raise Conflict("the platform has an issuer of this name that opens this tenant")
        return
    listed = issuer.tenants.names() - {DEFAULT_TENANT}
    query = select(issuers.c.tenant).where(same, issuers.c.tenant.in_(listed)).order_by(issuers.c.tenant)
    own = (await connection.execute(query)).scalars().all()
    if own:
        raise Conflict(f"these tenants have an issuer of this name themselves: {', '.join(own)}")


async def _write_tenants(connection: AsyncConnection, issuer: Issuer) -> None:
    if issuer.tenants is not None and issuer.tenants.map:
        rows = [
            {"issuer_id": issuer.id, "value": value, "tenant": grant.tenant, "scopes": list(grant.scopes)}
            for value, grant in issuer.tenants.map.items()
        ]
        await connection.execute(insert(issuer_tenants), rows)


async def _with_tenants(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[Issuer]:
    platforms = [row.id for row in rows if row.tenants_claim is not None]
    lists = defaultdict[str, dict[str, TenantGrant]](dict)
    if platforms:
        query = select(issuer_tenants).where(issuer_tenants.c.issuer_id.in_(platforms))
        # Sorted here: entity tags depend on the order, and databases sort differently.
        for each in sorted(await connection.execute(query), key=lambda row: str(row.value)):
            lists[each.issuer_id][each.value] = TenantGrant(each.tenant, tuple(each.scopes))
    return [_issuer(row, lists[row.id]) for row in rows]


def _values(issuer: Issuer) -> dict[str, Any]:
    claim = None if issuer.tenants is None else issuer.tenants.claim
    return {**values_of(issuer, issuers), "tenants_claim": claim}


def _issuer(row: Row[Any], listed: Mapping[str, TenantGrant]) -> Issuer:
    claim = row.tenants_claim
    return object_of(Issuer, row, tenants=None if claim is None else ServedTenants(claim, listed))
