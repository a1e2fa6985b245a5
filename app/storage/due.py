"""What in the database waits for a person: keys that expire soon, and tools that nobody has approved."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select

from app.storage._tables import api_keys, backends, catalog, tenants
from app.storage.engine import Database

MOST = 200  # rows of each kind

# Each look at an overview asks: made once.
_KEYS = (
    select(api_keys.c.tenant, api_keys.c.id, api_keys.c.name, api_keys.c.expires_at)
    .where(
        api_keys.c.expires_at > bindparam("now"),
        api_keys.c.expires_at <= bindparam("until"),
        api_keys.c.revoked_at.is_(None),
        api_keys.c.last_used_at.is_not(None),
        api_keys.c.enabled,
        tenants.c.enabled,
    )
    .join(tenants, tenants.c.name == api_keys.c.tenant)
    .order_by(api_keys.c.expires_at)
    .limit(MOST)
)
_KEYS_OF_TENANT = _KEYS.where(api_keys.c.tenant == bindparam("tenant"))
_TOOLS = (
    select(catalog.c.tenant, catalog.c.backend, backends.c.pin, catalog.c.pins, catalog.c.changed_at)
    .join(backends, (backends.c.tenant == catalog.c.tenant) & (backends.c.name == catalog.c.backend))
    .join(tenants, tenants.c.name == catalog.c.tenant)
    .where(backends.c.pin != "off", backends.c.enabled, tenants.c.enabled)
    .order_by(catalog.c.changed_at.desc())
    .limit(MOST)
)
_TOOLS_OF_TENANT = _TOOLS.where(catalog.c.tenant == bindparam("tenant"))


@dataclass(frozen=True, slots=True)
class ExpiringKey:
    """A key that is in use, and will expire."""

    tenant: str
    id: str
    name: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingTools:
    """How many tools of a backend have which status of those that a person has to look at, since the last change."""

    tenant: str
    backend: str
    policy: str
    statuses: Mapping[str, int]
    since: datetime


class DueRepository:
    """Of one tenant, or of all: None."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keys(self, tenant: str | None, now: datetime, until: datetime) -> Sequence[ExpiringKey]:
        """The keys that expire between, the first first. Keys that were never used, or are off, are left out."""
        query, values = (_KEYS, {}) if tenant is None else (_KEYS_OF_TENANT, {"tenant": tenant})
        rows = await self._database.rows(query, now=now, until=until, **values)
        return [ExpiringKey(row.tenant, row.id, row.name, row.expires_at) for row in rows]

    async def tools(self, tenant: str | None) -> Sequence[WaitingTools]:
        """The backends with pinned tools that have changed, or that nobody has looked at."""
        query, values = (_TOOLS, {}) if tenant is None else (_TOOLS_OF_TENANT, {"tenant": tenant})
        found = []
        for row in await self._database.rows(query, **values):
            statuses = _waiting(row.pins)
            if statuses:
                found.append(WaitingTools(row.tenant, row.backend, row.pin, statuses, row.changed_at))
        return found


def _waiting(pins: Mapping[str, Any]) -> Mapping[str, int]:
    return Counter(str(each["status"]) for each in pins.values() if each["status"] in ("new", "changed"))
