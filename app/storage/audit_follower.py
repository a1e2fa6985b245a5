"""AuditFollower: reads new acts of all processes from the audit trail, each act once.

Ids are assigned when a row is written and become visible when it is committed: on PostgreSQL a smaller one may
appear after a larger one. So each look starts a little further back, and skips what was seen.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import anyio
from sqlalchemy import select

from app.errors import GatewayError
from app.storage.audit import AuditEntry, entry_of
from app.storage.engine import ANSWER_S, WAIT_S, Database
from app.storage.tables import audit

POLL_S = 2.0
SETTLED_S = ANSWER_S + 2 * WAIT_S  # a transaction that wrote its row so long ago is committed or rolled back
FIRST_LOOK = 500  # rows read at the start: smaller ids among them may appear later
PAGE = 500
MAX_PAGES = 10  # in one look; a node that is further behind reloads everything

log = logging.getLogger(__name__)


class Window:
    """Which ids are new. Pure: the clock is passed in.

    No id below `floor` can appear any more. The row `floor` itself is read again each time; if it is missing, the trail
    was replaced by another one.
    """

    def __init__(self, ids: Sequence[int], now: float) -> None:
        """`ids` are not new; the smallest is the floor."""
        self._seen, self.floor = set(ids), min(ids, default=0)
        self._marks = deque([(now, max(ids, default=0))])

    def new(self, ids: Sequence[int]) -> list[int]:
        """The ids that were not seen before, in order."""
        fresh = sorted(set(ids) - self._seen)
        self._seen.update(fresh)
        return fresh

    def settle(self, began: float, now: float) -> None:
        """Moves the floor to the largest id that was seen SETTLED_S before the look that `began` then."""
        self._marks.append((now, max(self._seen, default=0)))
        while self._marks[0][0] <= began - SETTLED_S:
            self.floor = max(self.floor, self._marks.popleft()[1])
        self._seen = {each for each in self._seen if each >= self.floor}


class AuditFollower:
    """Reads the trail every POLL_S."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._window: Window | None = None
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
                self._window = None  # it has entries that nobody was told of
            await anyio.sleep(POLL_S)

    async def look(self, heard: Callable[[Sequence[AuditEntry]], None], lost: Callable[[], None]) -> None:
        """Reads once. After StorageUnavailable nothing is lost: call it again."""
        began = self._clock()
        if self._window is not None and await self._go_on(self._window, heard):
            self._read_at = began
            return
        if self._window is not None:
            log.warning("Audit trail was replaced, or has too many new entries; reloading everything")
        self._window = None
        self._window = await self._start()
        self._read_at = began
        lost()

    async def _go_on(self, window: Window, heard: Callable[[Sequence[AuditEntry]], None]) -> bool:
        """Passes on what is new; returns whether all of it could be read."""
        began, position = self._clock(), window.floor
        for _ in range(MAX_PAGES):
            page = await self._read(position)
            if position and (not page or page[0].id != position):
                return False
            by_id = {entry.id: entry for entry in page}
            if fresh := window.new(list(by_id)):
                heard([by_id[each] for each in fresh])
            if len(page) < PAGE:
                window.settle(began, self._clock())
                return True
            position = page[-1].id
        return False

    async def _start(self) -> Window:
        last = select(audit.c.id).order_by(audit.c.id.desc()).limit(FIRST_LOOK)
        ids = [row.id for row in await self._database.rows(last)]
        return Window(ids, self._clock())

    async def _read(self, floor: int) -> list[AuditEntry]:
        query = select(audit).where(audit.c.id >= floor).order_by(audit.c.id).limit(PAGE)
        return [entry_of(row) for row in await self._database.rows(query)]
