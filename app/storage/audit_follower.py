"""AuditFollower: reads new acts of all processes from the audit trail, each act once, in the order of their commits.

Ids grow in that order. SQLite has one writer at a time; on PostgreSQL the table has a trigger (migration 0023).
"""

import logging
import math
import time
from collections.abc import Callable, Sequence

from sqlalchemy import select

from app.errors import GatewayError
from app.storage._tables import audit
from app.storage.audit import Act
from app.storage.audit_queries import AuditEntry, entry_of
from app.storage.engine import Database

AT_ONCE = 1000  # entries in memory

log = logging.getLogger(__name__)


class AuditFollower:
    """A place in the trail."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._last: Sequence[AuditEntry] | None = None  # the last entry that was read; none in an empty trail
        self._read_at = -math.inf
        self.is_behind = False  # there is more than the last call of `new` has returned

    def age_s(self) -> float:
        """How long ago the last look that succeeded began."""
        return self._clock() - self._read_at

    async def new(self) -> Sequence[Act] | None:
        """What was committed since the last call, AT_ONCE acts at most; None where some of it may be missing, first at
        the start: then the place is the end of the trail. Raises StorageUnavailable: nothing is lost, call it again."""
        began, last, self._last = self._clock(), self._last, None
        try:
            found = None if last is None else await self._after(last)
            if found is None and last is not None:
                log.warning(
                    "The audit trail lacks entries that it had (a failover, a restored backup); comparing everything"
                )
            self._last = await self._end() if found is None else found[-1:] or last
        except GatewayError:
            self._last = last
            raise
        self._read_at, self.is_behind = began, found is not None and len(found) == AT_ONCE
        return None if found is None else [entry.act for entry in found]

    async def _after(self, last: Sequence[AuditEntry]) -> Sequence[AuditEntry] | None:
        """The next entries; None if the last one is not there any more: the trail was replaced by another one, or a
        standby has it that lacks the last rows."""
        query = select(audit).order_by(audit.c.id).limit(len(last) + AT_ONCE)
        if last:
            query = query.where(audit.c.id >= last[0].id)
        found = [entry_of(row) for row in await self._database.rows(query)]
        return found[len(last) :] if found[: len(last)] == last else None

    async def _end(self) -> Sequence[AuditEntry]:
        query = select(audit).order_by(audit.c.id.desc()).limit(1)
        return [entry_of(row) for row in await self._database.rows(query)]
