"""What is switched off. Principals are stored only while they are."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, delete, false, insert, select, true, update

from app.domain import KEY_ISSUER, Principal
from app.errors import ConcurrentChange, Disabled
from app.storage._rows import matching, require_room
from app.storage._tables import api_keys, principals_off, tenants
from app.storage.audit import Act
from app.storage.engine import Database

MAX_PRINCIPALS_OFF = 1000  # of a tenant; to keep out more, switch off or narrow their issuer

Identity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class PrincipalOff:
    tenant: str
    issuer: str
    subject: str
    reason: str
    off_by_platform: bool
    at: datetime

    @property
    def id(self) -> str:
        """Names it in paths and in the audit trail: a subject may have any characters."""
        return principal_id(self.issuer, self.subject)

    @property
    def identity(self) -> Identity:
        """As `Principal.identity`."""
        return self.tenant, self.issuer, self.subject


def principal_id(issuer: str, subject: str) -> str:
    """Within its tenant."""
    return hashlib.sha256(f"{issuer}\0{subject}".encode()).hexdigest()[:32]


class SwitchRepository:
    """Fulfils `auth.authenticator.Switches`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def require_on(self, principal: Principal) -> None:
        """Raises Disabled where the principal or its tenant is switched off."""
        off = await self.off(principal.identity)
        if off is not None:
            raise off

    async def off(self, identity: Identity) -> Disabled | None:
        """Why an identity is refused: its tenant is switched off, or else the key or the principal itself."""
        tenant, issuer, subject = identity
        is_key = issuer == KEY_ISSUER
        own: Any = api_keys if is_key else principals_off
        named = own.c.id == (subject if is_key else principal_id(issuer, subject))
        is_off = and_(named, own.c.tenant == tenants.c.name, api_keys.c.enabled.is_(false()) if is_key else true())
        query = (
            select(tenants.c.enabled, tenants.c.reason, own.c.id, own.c.reason.label("why"))
            .select_from(tenants.outerjoin(own, is_off))
            .where(tenants.c.name == tenant)
        )
        row = await self._database.row(query)
        if row is None:
            return None
        if not row.enabled:
            return Disabled("tenant", tenant, row.reason)
        return None if row.id is None else _disabled(identity, row.why)

    async def off_among(self, identities: Collection[Identity]) -> Mapping[Identity, Disabled]:
        """The keys and principals among these that are switched off; does not look at their tenants."""
        keys = [identity[2] for identity in identities if identity[1] == KEY_ISSUER]
        others = [principal_id(*identity[1:]) for identity in identities if identity[1] != KEY_ISSUER]
        of_keys = select(api_keys.c.tenant, api_keys.c.id, api_keys.c.reason).where(
            api_keys.c.id.in_(keys), api_keys.c.enabled.is_(false())
        )
        of_others = select(principals_off).where(principals_off.c.id.in_(others))
        async with self._database.read() as connection:
            found = {(row.tenant, KEY_ISSUER, row.id): row.reason for row in await connection.execute(of_keys)}
            found |= {(row.tenant, row.issuer, row.subject): row.reason for row in await connection.execute(of_others)}
        return {identity: _disabled(identity, found[identity]) for identity in identities if identity in found}

    async def tenants_off(self) -> Mapping[str, Disabled]:
        """Every tenant that is switched off."""
        query = select(tenants.c.name, tenants.c.reason).where(tenants.c.enabled.is_(false()))
        rows = await self._database.rows(query)
        return {row.name: Disabled("tenant", row.name, row.reason) for row in rows}

    # --- principals

    async def list(self, tenant: str, *, after: str = "", limit: int) -> Sequence[PrincipalOff]:
        """Up to `limit` principals that are switched off, by id, after the id `after`."""
        behind = (principals_off.c.tenant == tenant) & (principals_off.c.id > after)
        query = select(principals_off).where(behind).order_by(principals_off.c.id).limit(limit)
        return [_principal(row) for row in await self._database.rows(query)]

    async def find(self, tenant: str, issuer: str, subject: str) -> PrincipalOff | None:
        """The principal, if it is switched off."""
        this = matching(principals_off, tenant=tenant, id=principal_id(issuer, subject))
        row = await self._database.row(select(principals_off).where(this))
        return None if row is None else _principal(row)

    async def change(self, old: PrincipalOff | None, new: PrincipalOff | None, *, act: Act | None = None) -> None:
        """Switches a principal off (`old` is None), on again (`new` is None), or changes why it is off.

        Raises:
            NotFound: there is no such tenant.
            QuotaExceeded: as many are switched off as can be.
            ConcurrentChange: it is no longer as it was read.
        """
        async with self._database.write(act) as connection:
            if old is None:
                assert new is not None
                others = principals_off.c.tenant == new.tenant
                message = f"a tenant has at most {MAX_PRINCIPALS_OFF} principals switched off; look at their issuer"
                await require_room(connection, others, "principals_off", MAX_PRINCIPALS_OFF, message)
                await connection.execute(insert(principals_off).values(_values(new)))
                return
            statement: Any = delete(principals_off) if new is None else update(principals_off).values(_values(new))
            switch = {"reason": old.reason, "off_by_platform": old.off_by_platform}
            unchanged = matching(principals_off, tenant=old.tenant, id=old.id, **switch)
            if not (await connection.execute(statement.where(unchanged))).rowcount:
                raise ConcurrentChange("the principal was changed by somebody else; read it again")


def _disabled(identity: Identity, why: str) -> Disabled:
    _, issuer, subject = identity
    return Disabled("key" if issuer == KEY_ISSUER else "principal", subject, why)


def _values(principal: PrincipalOff) -> dict[str, Any]:
    return {**asdict(principal), "id": principal.id}


def _principal(row: Row[Any]) -> PrincipalOff:
    return PrincipalOff(row.tenant, row.issuer, row.subject, row.reason, row.off_by_platform, row.at)
