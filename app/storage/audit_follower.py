"""AuditFollower: reads new acts of all processes from the audit trail, each act once, in the order of their commits.

Ids grow in that order. SQLite has one writer at a time; on PostgreSQL the table has a trigger (migration 0023).
"""

import logging
import math
import time
from collections.abc import Callable, Sequence

import anyio
from sqlalchemy import select

from app.errors import GatewayError
from app.storage._tables import audit
from app.storage.audit import AuditEntry, entry_of
from app.storage.engine import Database

POLL_S = 1.0
MAX_NEW = 1000  # in one look; a node that is further behind reloads everything

log = logging.getLogger(__name__)


class AuditFollower:
    """Reads the trail every POLL_S."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._last: Sequence[AuditEntry] | None = None  # the last entry that was read; none in an empty trail
        self._read_at = -math.inf

    def age_s(self) -> float:
        """How long ago the last complete look began."""
        return self._clock() - self._read_at

    async def run(self, heard: Callable[[Sequence[AuditEntry]], None], lost: Callable[[], None]) -> None:
        """Passes new acts to `heard`; calls `lost` where some may have been missed, first at the start."""
        while True:
            try:
                await self.look(heard, lost)
            except GatewayError:
                log.debug("Could not read the audit trail; will retry")
            except Exception:
                log.exception("Could not follow the audit trail; reloading everything")
                self._last = None  # it has entries that nobody was told of
            await anyio.sleep(POLL_S)

    async def look(self, heard: Callable[[Sequence[AuditEntry]], None], lost: Callable[[], None]) -> None:
        """Reads once. After StorageUnavailable nothing is lost: call it again."""
        began = self._clock()
        new = None if self._last is None else await self._after(self._last)
        if new is None:
            if self._last is not None:
                log.warning(
                    "The audit trail lacks entries that it had (a failover, a restored backup), or has too many new "
                    "ones; reloading everything"
                )
            self._last = None
            self._last = await self._end()
            self._read_at = began
            lost()
            return
        self._last, self._read_at = new[-1:] or self._last, began
        if new:
            heard(new)

    async def _after(self, last: Sequence[AuditEntry]) -> Sequence[AuditEntry] | None:
        """All later entries; None if the last one is not there any more, or too many are later: the trail was replaced
        by another one, or a standby has it that lacks the last rows."""
        query = select(audit).order_by(audit.c.id).limit(MAX_NEW + 1)
        if last:
            query = query.where(audit.c.id >= last[0].id)
        found = [entry_of(row) for row in await self._database.rows(query)]
        if len(found) > MAX_NEW or found[: len(last)] != last:
            return None
        return found[len(last) :]

    async def _end(self) -> Sequence[AuditEntry]:
        query = select(audit).order_by(audit.c.id.desc()).limit(1)
        return [entry_of(row) for row in await self._database.rows(query)]
