"""Token issuers in the database: whom a tenant believes. Secrets come sealed and go sealed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, select, update

from app.errors import ConcurrentChange, NotFound, QuotaExceeded
from app.storage.acts import Act
from app.storage.engine import Database
from app.storage.tables import issuers

MAX_ISSUERS_PER_TENANT = 50


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer of one tenant, with exactly one of `sealed_secret`, `jwks_url` and `discovery_url`.

    `audience` may be empty: then a token must be for the endpoint that it is sent to. `claims` are the names of
    subject, scopes and tenant; `max_scopes` is the most that its tokens can confer.
    """

    id: str
    tenant: str
    issuer: str
    algorithms: tuple[str, ...]
    audience: tuple[str, ...]
    claims: Mapping[str, str | None]
    max_scopes: frozenset[str]
    created_at: datetime
    sealed_secret: bytes | None = None
    jwks_url: str | None = None
    discovery_url: str | None = None
    version: int = 1

    def __repr__(self) -> str:
        return f"<Issuer {self.issuer!r} of {self.tenant}>"


class IssuerRepository:
    """Finds and changes issuers, always of one tenant. Fulfils `auth.tokens.IssuerStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant: str, issuer: str) -> Issuer | None:
        """The tenant's issuer with exactly this `iss`."""
        named = and_(issuers.c.tenant == tenant, issuers.c.issuer == issuer)
        async with self._database.read() as connection:
            row = (await connection.execute(select(issuers).where(named))).one_or_none()
        return None if row is None else _issuer(row)

    async def get(self, tenant: str, issuer_id: str) -> Issuer:
        """The issuer.

        Raises:
            NotFound: the tenant has none of this id.
        """
        async with self._database.read() as connection:
            row = (await connection.execute(select(issuers).where(_is(tenant, issuer_id)))).one_or_none()
        if row is None:
            raise NotFound("Issuer not found")
        return _issuer(row)

    async def list(self, tenant: str, *, after: str = "", limit: int = MAX_ISSUERS_PER_TENANT) -> Sequence[Issuer]:
        """Up to `limit` issuers by id, beginning behind `after`. All of them, if nothing is said."""
        behind = (issuers.c.tenant == tenant) & (issuers.c.id > after)
        async with self._database.read() as connection:
            query = select(issuers).where(behind).order_by(issuers.c.id).limit(limit)
            return [_issuer(row) for row in await connection.execute(query)]

    async def authorization_servers(self, tenant: str) -> Sequence[str]:
        """The issuers of the tenant that a client could go to for a token: those with a URL and public keys."""
        urls = ("https://", "http://")
        found = await self.list(tenant)
        return [each.issuer for each in found if each.sealed_secret is None and each.issuer.startswith(urls)]

    async def create(self, tenant: str, issuer: Issuer, *, act: Act | None = None) -> Issuer:
        """Adds the issuer.

        Raises:
            Conflict: the tenant has this `iss` already.
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many issuers as it may have.
        """
        created = replace(issuer, tenant=tenant, version=1)
        count = select(func.count()).select_from(issuers).where(issuers.c.tenant == tenant)
        async with self._database.write(act) as connection:
            if (await connection.execute(count)).scalar_one() >= MAX_ISSUERS_PER_TENANT:
                raise QuotaExceeded("issuers", f"a tenant has at most {MAX_ISSUERS_PER_TENANT} issuers")
            await connection.execute(insert(issuers).values(_values(created)))
        return created

    async def replace(self, tenant: str, issuer: Issuer, *, act: Act | None = None) -> Issuer:
        """Writes an issuer that was read before; its version grows.

        Raises:
            NotFound: it is gone.
            ConcurrentChange: somebody else changed it since it was read.
        """
        changed = replace(issuer, tenant=tenant, version=issuer.version + 1)
        unchanged = and_(_is(tenant, issuer.id), issuers.c.version == issuer.version)
        async with self._database.write(act) as connection:
            result = await connection.execute(update(issuers).where(unchanged).values(_values(changed)))
            if not result.rowcount:
                await self.get(tenant, issuer.id)
                raise ConcurrentChange("the issuer was changed by somebody else; read it again")
        return changed

    async def delete(self, tenant: str, issuer_id: str, *, version: int | None = None, act: Act | None = None) -> None:
        """Removes the issuer; with a `version`, only that one.

        Raises:
            NotFound: the tenant has none of this id.
            ConcurrentChange: it is another version now.
        """
        doomed = _is(tenant, issuer_id)
        if version is not None:
            doomed &= issuers.c.version == version
        async with self._database.write(act) as connection:
            result = await connection.execute(delete(issuers).where(doomed))
            if not result.rowcount:
                await self.get(tenant, issuer_id)
                raise ConcurrentChange("the issuer was changed by somebody else; read it again")


def _is(tenant: str, issuer_id: str) -> ColumnElement[bool]:
    return and_(issuers.c.tenant == tenant, issuers.c.id == issuer_id)


def _values(issuer: Issuer) -> dict[str, Any]:
    lists = {
        "algorithms": list(issuer.algorithms),
        "audience": list(issuer.audience),
        "claims": dict(issuer.claims),
        "max_scopes": sorted(issuer.max_scopes),
    }
    return {**asdict(issuer), **lists}


def _issuer(row: Row[Any]) -> Issuer:
    lists = {
        "algorithms": tuple(row.algorithms),
        "audience": tuple(row.audience),
        "max_scopes": frozenset(row.max_scopes),
    }
    return Issuer(**{**row._asdict(), **lists})
