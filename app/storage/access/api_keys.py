"""API keys in the database: digests, never the keys."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import and_, insert, or_, select, update

from app.domain import ApiKey
from app.errors import ConcurrentChange, NotFound
from app.storage._rows import matching, object_of, require_room, values_of
from app.storage._tables import api_keys
from app.storage.audit import Act
from app.storage.engine import Database

MAX_KEYS_PER_TENANT = 10_000  # revoked ones included: what a tenant can fill the database with


class ApiKeyRepository:
    """Finds and changes keys. Fulfils `auth.api_keys.ApiKeyStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key_id: str) -> ApiKey | None:
        """The key, of any tenant: authentication learns the tenant from it."""
        row = await self._database.row(select(api_keys).where(api_keys.c.id == key_id))
        return None if row is None else object_of(ApiKey, row)

    async def get(self, tenant: str, key_id: str) -> ApiKey:
        """Raises NotFound where the tenant has none of this id."""
        key = await self.find(key_id)
        if key is None or key.tenant != tenant:
            raise NotFound("Key not found")
        return key

    async def list(self, tenant: str, *, after: str = "", limit: int) -> Sequence[ApiKey]:
        """Up to `limit` keys by id, revoked and expired ones included, after the id `after`."""
        behind = (api_keys.c.tenant == tenant) & (api_keys.c.id > after)
        query = select(api_keys).where(behind).order_by(api_keys.c.id).limit(limit)
        return [object_of(ApiKey, row) for row in await self._database.rows(query)]

    async def standing(self, keys: Collection[tuple[str, str]], now: datetime) -> set[tuple[str, str]]:
        """Those of these keys, by (tenant, id), that are neither revoked nor expired."""
        valid = and_(api_keys.c.revoked_at.is_(None), or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now))
        query = select(api_keys.c.tenant, api_keys.c.id).where(api_keys.c.id.in_([key[1] for key in keys]), valid)
        return {(row.tenant, row.id) for row in await self._database.rows(query)}.intersection(keys)

    async def create(self, tenant: str, key: ApiKey, *, act: Act | None = None) -> None:
        """Adds the key.

        Raises:
            NotFound: there is no such tenant.
            QuotaExceeded: it has as many keys as it may have.
        """
        values = {**values_of(key, api_keys), "tenant": tenant}
        message = f"a tenant has at most {MAX_KEYS_PER_TENANT} keys, revoked ones included"
        async with self._database.write(act) as connection:
            await require_room(connection, api_keys.c.tenant == tenant, "keys", MAX_KEYS_PER_TENANT, message)
            await connection.execute(insert(api_keys).values(values))

    async def revoke(self, tenant: str, key_id: str, at: datetime, *, act: Act | None = None) -> None:
        """Revokes the key. One that was revoked before keeps its date; then there is no `act`.

        Raises:
            NotFound: the tenant has none of this id.
        """
        valid = matching(api_keys, tenant=tenant, id=key_id, revoked_at=None)
        try:
            async with self._database.write(act) as connection:
                if not (await connection.execute(update(api_keys).where(valid).values(revoked_at=at))).rowcount:
                    raise ConcurrentChange  # rolls back
        except ConcurrentChange:
            await self.get(tenant, key_id)

    async def switch(self, old: ApiKey, new: ApiKey, *, act: Act | None = None) -> None:
        """Switches the key on or off, or changes why it is off.

        Raises:
            ConcurrentChange: it is no longer as it was read.
        """
        before, after = (
            {"enabled": key.enabled, "reason": key.reason, "off_by_platform": key.off_by_platform} for key in (old, new)
        )
        unchanged = matching(api_keys, tenant=old.tenant, id=old.id, revoked_at=None, **before)
        async with self._database.write(act) as connection:
            if not (await connection.execute(update(api_keys).where(unchanged).values(after))).rowcount:
                raise ConcurrentChange("the key was changed by somebody else; read it again")

    async def touch(self, used: Mapping[tuple[str, str], datetime]) -> None:
        """Stores when keys, by (tenant, id), were last used; never moves a date back."""
        if not used:
            return
        column = api_keys.c.last_used_at
        async with self._database.write() as connection:
            for (tenant, key_id), at in used.items():
                older = matching(api_keys, tenant=tenant, id=key_id) & or_(column.is_(None), column < at)
                await connection.execute(update(api_keys).where(older).values(last_used_at=at))
