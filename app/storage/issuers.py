"""Token issuers in the database: whom a tenant believes. Secrets come sealed and go sealed.

An issuer of the platform is a row of the tenant `default` that opens the tenants of its list, and `default` only if
that is in it. In a tenant that it opens it goes before one of the tenant's own with the same name: who administers a
tenant must not be able to sign for those whom the platform vouches for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import DEFAULT_TENANT, ServedTenants, TenantGrant
from app.errors import Conflict, NotFound, QuotaExceeded
from app.reached import FIXED, Reached
from app.storage.audit_act import Act
from app.storage.engine import Database, change_one
from app.storage.tables import issuer_tenants, issuers

MAX_ISSUERS_PER_TENANT = 50


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer of one tenant, with exactly one of `sealed_secret`, `jwks_url` and `discovery_url`.

    `audience` may be empty: then a token must be for the endpoint that it is sent to. `claims` are the names of
    subject, scopes, tenant and groups, and what the groups confer (`map`); `max_scopes` is the most that its tokens can
    confer. With `tenants` it is one of the platform.
    """

    id: str
    tenant: str
    issuer: str
    algorithms: tuple[str, ...]
    audience: tuple[str, ...]
    claims: Mapping[str, Any]
    max_scopes: frozenset[str]
    created_at: datetime
    sealed_secret: bytes | None = None
    jwks_url: str | None = None
    discovery_url: str | None = None
    version: int = 1
    tenants: ServedTenants | None = None

    def __repr__(self) -> str:
        return f"<Issuer {self.issuer!r} of {self.tenant}>"

    def opens(self) -> frozenset[str]:
        """The tenants that its tokens can open."""
        return frozenset({self.tenant}) if self.tenants is None else self.tenants.names()

    def seen_from(self, tenant: str) -> "Issuer":
        """Without what its list says of other tenants."""
        return self if self.tenants is None else replace(self, tenants=self.tenants.within(tenant))


class IssuerRepository:
    """Finds and changes issuers, always of one tenant. Fulfils `auth.tokens.IssuerStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant: str, issuer: str) -> Issuer | None:
        """The issuer with exactly this `iss` whose tokens open the tenant: the platform's, if it serves it, else its
        own. Its list is that of this tenant."""
        own = and_(issuers.c.tenant == tenant, issuers.c.tenants_claim.is_(None))
        query = select(issuers).where(issuers.c.issuer == issuer, or_(own, _serves(tenant)))
        async with self._database.read() as connection:
            rows = await connection.execute(query.order_by(issuers.c.tenants_claim.is_(None)))
            found = await _with_tenants(connection, rows.all()[:1])
        return found[0].seen_from(tenant) if found else None

    async def get(self, tenant: str, issuer_id: str) -> Issuer:
        """The issuer: one of the tenant, or one of the platform that serves it.

        Raises:
            NotFound: the tenant has none of this id.
        """
        query = select(issuers).where(issuers.c.id == issuer_id, _visible(tenant))
        async with self._database.read() as connection:
            found = await _with_tenants(connection, (await connection.execute(query)).all())
        if not found:
            raise NotFound("Issuer not found")
        return found[0]

    async def list(self, tenant: str, *, after: str = "", limit: int | None = None) -> Sequence[Issuer]:
        """Up to `limit` issuers by id, beginning behind `after`, those of the platform that serve the tenant included.
        All of them, if nothing is said."""
        query = select(issuers).where(_visible(tenant), issuers.c.id > after).order_by(issuers.c.id)
        async with self._database.read() as connection:
            rows = await connection.execute(query.limit(limit or 2 * MAX_ISSUERS_PER_TENANT))
            return await _with_tenants(connection, rows.all())

    async def authorization_servers(self, tenant: str) -> Sequence[str]:
        """The issuers of the tenant that a client could go to for a token: those with a URL and public keys."""
        urls = ("https://", "http://")
        found = [each for each in await self.list(tenant) if tenant in each.opens() and each.sealed_secret is None]
        return list(dict.fromkeys(each.issuer for each in found if each.issuer.startswith(urls)))

    async def create(self, tenant: str, issuer: Issuer, *, acts: Sequence[Act] = ()) -> Issuer:
        """Adds the issuer.

        Raises:
            Conflict: the tenant has this `iss` already, or the platform's issuer of this name opens it.
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many issuers as it may have.
        """
        created = replace(issuer, tenant=tenant, version=1)
        count = select(func.count()).select_from(issuers).where(issuers.c.tenant == tenant)
        async with self._database.write(*acts) as connection:
            if (await connection.execute(count)).scalar_one() >= MAX_ISSUERS_PER_TENANT:
                reached = Reached("issuers", "tenant", MAX_ISSUERS_PER_TENANT, MAX_ISSUERS_PER_TENANT, FIXED)
                raise QuotaExceeded(
                    "issuers", f"a tenant has at most {MAX_ISSUERS_PER_TENANT} issuers", reached=reached
                )
            await _require_one_of_a_name(connection, created)
            await connection.execute(insert(issuers).values(_values(created)))
            await _write_tenants(connection, created)
        return created

    async def replace(self, tenant: str, issuer: Issuer, *, acts: Sequence[Act] = ()) -> Issuer:
        """Writes an issuer that was read before; its version grows.

        Raises:
            Conflict: a tenant that is new in its list has an issuer of this name.
            NotFound: it is gone, or a tenant of its list.
            ConcurrentChange: somebody else changed it since it was read.
        """
        changed = replace(issuer, tenant=tenant, version=issuer.version + 1)
        unchanged = and_(_is(tenant, issuer.id), issuers.c.version == issuer.version)
        async with self._database.write(*acts) as connection:
            statement = update(issuers).where(unchanged).values(_values(changed))
            await change_one(connection, statement, "issuer", lambda: self.get(tenant, issuer.id))
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
        doomed = _is(tenant, issuer_id)
        if version is not None:
            doomed &= issuers.c.version == version
        async with self._database.write(*acts) as connection:
            statement = delete(issuers).where(doomed)
            await change_one(connection, statement, "issuer", lambda: self.get(tenant, issuer_id))


def _is(tenant: str, issuer_id: str) -> ColumnElement[bool]:
    return and_(issuers.c.tenant == tenant, issuers.c.id == issuer_id)


def _serves(tenant: str) -> ColumnElement[bool]:
    """Those of the platform that open this tenant."""
    listed = select(issuer_tenants.c.issuer_id).where(issuer_tenants.c.tenant == tenant)
    is_platforms = and_(issuers.c.tenant == DEFAULT_TENANT, issuers.c.tenants_claim.is_not(None))
    return and_(is_platforms, issuers.c.id.in_(listed))


def _visible(tenant: str) -> ColumnElement[bool]:
    return or_(issuers.c.tenant == tenant, _serves(tenant))


async def _require_one_of_a_name(connection: AsyncConnection, issuer: Issuer) -> None:
    """So that nobody is surprised by whose keys count. Two that are made at once get past this: `find` knows which."""
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
    lists: dict[str, dict[str, TenantGrant]] = {issuer_id: {} for issuer_id in platforms}
    if platforms:
        query = select(issuer_tenants).where(issuer_tenants.c.issuer_id.in_(platforms))
        # Sorted here: entity tags depend on the order, and databases do not agree about it.
        for each in sorted(await connection.execute(query), key=lambda row: str(row.value)):
            lists[each.issuer_id][each.value] = TenantGrant(each.tenant, tuple(each.scopes))
    return [_issuer(row, lists.get(row.id)) for row in rows]


def _values(issuer: Issuer) -> dict[str, Any]:
    lists = {
        "algorithms": list(issuer.algorithms),
        "audience": list(issuer.audience),
        "claims": dict(issuer.claims),
        "max_scopes": sorted(issuer.max_scopes),
        "tenants_claim": None if issuer.tenants is None else issuer.tenants.claim,
    }
    values = {**{each.name: getattr(issuer, each.name) for each in fields(issuer)}, **lists}
    del values["tenants"]
    return values


def _issuer(row: Row[Any], listed: Mapping[str, TenantGrant] | None) -> Issuer:
    columns = row._asdict()
    claim = columns.pop("tenants_claim")
    lists = {
        "algorithms": tuple(row.algorithms),
        "audience": tuple(row.audience),
        "max_scopes": frozenset(row.max_scopes),
    }
    tenants = None if claim is None else ServedTenants(claim, listed or {})
    return Issuer(**{**columns, **lists, "tenants": tenants})
