"""Locks of packages: what a backend's program is installed from, by tenant and hash."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, insert, select

from app.errors import NotFound
from app.storage._connections import AsyncConnection
from app.storage._rows import matching, require_room
from app.storage._tables import backends, packages
from app.storage.engine import Database

MAX_PACKAGES = 100  # of a tenant
UNUSED = timedelta(hours=1)  # so long a lock is kept that no backend names: its backend is being registered

_named = select(backends.c.package["lock"].as_string()).where(backends.c.tenant == packages.c.tenant)


@dataclass(frozen=True, slots=True)
class StoredLock:
    """One lock; `lock` is the hash of its `content`."""

    lock: str
    registry: str
    name: str
    version: str
    content: str


class PackageRepository:
    """The locks of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, tenant: str, lock: StoredLock) -> None:
        """Stores a lock, if it is not there; removes those of the tenant that no backend needs.

        Raises:
            QuotaExceeded: the tenant has MAX_PACKAGES.
        """
        now = datetime.now(UTC)
        row = matching(packages, tenant=tenant, lock=lock.lock)
        async with self._database.write(None) as connection:
            await _remove_unused(connection, tenant, now)
            if (await connection.execute(select(packages.c.lock).where(row))).first() is not None:
                return
            message = f"a tenant has at most {MAX_PACKAGES} packages: remove backends that nobody needs"
            await require_room(connection, packages.c.tenant == tenant, "packages", MAX_PACKAGES, message)
            values = {
                "tenant": tenant, "lock": lock.lock, "registry": lock.registry, "name": lock.name,
                "version": lock.version, "content": lock.content, "created_at": now,
            }  # fmt: skip
            await connection.execute(insert(packages).values(values))

    async def content(self, tenant: str, lock: str) -> str:
        """Raises NotFound."""
        row = await self._database.row(select(packages.c.content).where(matching(packages, tenant=tenant, lock=lock)))
        if row is None:
            raise NotFound("There is no such lock")
        return str(row.content)

    async def wanted(self) -> Sequence[str]:
        """The hashes of all locks."""
        return [row.lock for row in await self._database.rows(select(packages.c.lock).distinct())]


async def _remove_unused(connection: AsyncConnection, tenant: str, now: datetime) -> None:
    old = packages.c.created_at < now - UNUSED
    unused = packages.c.lock.not_in(_named.where(backends.c.package.is_not(None)))
    await connection.execute(delete(packages).where(packages.c.tenant == tenant, old, unused))
