"""API keys in the database: digests, never the keys."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, false, func, insert, or_, select, true, update

from app.errors import ConcurrentChange, NotFound, QuotaExceeded
from app.reached import FIXED, Reached
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.tables import api_keys

MAX_KEYS_PER_TENANT = 10_000  # revoked ones included: what a tenant can fill the database with


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key once it has been shown."""

    id: str
    tenant: str
    name: str
    digest: bytes
    pepper_version: int
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    enabled: bool = True
    reason: str = ""
    off_by_platform: bool = False

    def __repr__(self) -> str:
        return f"<ApiKey {self.id} of {self.tenant}>"


class ApiKeyRepository:
    """Finds and changes keys. Fulfils `auth.api_keys.ApiKeyStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key_id: str) -> ApiKey | None:
        """The key, of whatever tenant: for authentication, which learns the tenant from it."""
        async with self._database.read() as connection:
            row = (await connection.execute(select(api_keys).where(api_keys.c.id == key_id))).one_or_none()
        return None if row is None else _key(row)

    async def get(self, tenant: str, key_id: str) -> ApiKey:
        """The key.

        Raises:
            NotFound: the tenant has none of this id.
        """
        key = await self.find(key_id)
        if key is None or key.tenant != tenant:
            raise NotFound("Key not found")
        return key

    async def list(self, tenant: str, *, after: str = "", limit: int) -> Sequence[ApiKey]:
        """Up to `limit` keys by id, revoked and expired ones included, beginning behind `after`."""
        behind = (api_keys.c.tenant == tenant) & (api_keys.c.id > after)
        async with self._database.read() as connection:
            query = select(api_keys).where(behind).order_by(api_keys.c.id).limit(limit)
            return [_key(row) for row in await connection.execute(query)]

    async def standing(self, keys: Collection[tuple[str, str]], now: datetime) -> set[tuple[str, str]]:
        """Those of these keys, by (tenant, id), that are neither revoked nor expired."""
        valid = and_(api_keys.c.revoked_at.is_(None), or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now))
        query = select(api_keys.c.tenant, api_keys.c.id).where(api_keys.c.id.in_([key[1] for key in keys]), valid)
        async with self._database.read() as connection:
            return {(row.tenant, row.id) for row in await connection.execute(query)}.intersection(keys)

    async def create(self, tenant: str, key: ApiKey, *, act: Act | None = None) -> None:
        """Adds the key.

        Raises:
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many keys as it may have.
        """
        values = {**asdict(key), "tenant": tenant, "scopes": sorted(key.scopes)}
        count = select(func.count()).select_from(api_keys).where(api_keys.c.tenant == tenant)
        async with self._database.write(act) as connection:
            if (await connection.execute(count)).scalar_one() >= MAX_KEYS_PER_TENANT:
                message = f"a tenant has at most {MAX_KEYS_PER_TENANT} keys, revoked ones included"
                reached = Reached("keys", "tenant", MAX_KEYS_PER_TENANT, MAX_KEYS_PER_TENANT, FIXED)
                raise QuotaExceeded("keys", message, reached=reached)
            await connection.execute(insert(api_keys).values(values))

    async def revoke(self, tenant: str, key_id: str, at: datetime, *, act: Act | None = None) -> None:
        """Makes the key worthless. One that was revoked before keeps its date.

        Raises:
            NotFound: the tenant has none of this id.
        """
        valid = and_(_is(tenant, key_id), api_keys.c.revoked_at.is_(None))
        async with self._database.write(act) as connection:
            result = await connection.execute(update(api_keys).where(valid).values(revoked_at=at))
            if not result.rowcount:
                await self.get(tenant, key_id)

    async def switch(self, old: ApiKey, new: ApiKey, *, act: Act | None = None) -> None:
        """Switches the key on or off, or changes why it is off.

        Raises:
            ConcurrentChange: it is not as it was read any more.
        """
        column = api_keys.c
        unchanged = and_(
            _is(old.tenant, old.id),
            column.enabled.is_(true() if old.enabled else false()),
            column.off_by_platform.is_(true() if old.off_by_platform else false()),
            column.reason == old.reason,
            column.revoked_at.is_(None),
        )
        values = {"enabled": new.enabled, "reason": new.reason, "off_by_platform": new.off_by_platform}
        async with self._database.write(act) as connection:
            if not (await connection.execute(update(api_keys).where(unchanged).values(values))).rowcount:
                raise ConcurrentChange("the key was changed by somebody else; read it again")

    async def touch(self, used: Mapping[tuple[str, str], datetime]) -> None:
        """Notes when keys, by (tenant, id), were used last; never turns a date back."""
        if not used:
            return
        column = api_keys.c.last_used_at
        async with self._database.write() as connection:
            for (tenant, key_id), at in used.items():
                older = and_(_is(tenant, key_id), or_(column.is_(None), column < at))
                await connection.execute(update(api_keys).where(older).values(last_used_at=at))


def _is(tenant: str, key_id: str) -> ColumnElement[bool]:
    return and_(api_keys.c.tenant == tenant, api_keys.c.id == key_id)


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(**{**row._asdict(), "scopes": frozenset(row.scopes)})
