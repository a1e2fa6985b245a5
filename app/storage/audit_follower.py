"""AuditFollower: reads new acts of all processes from the audit trail, each act once.

Ids are assigned when a row is written and become visible when it is committed: on PostgreSQL a smaller one may
appear after a larger one. So each look starts a little further back, and skips what was seen.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import anyio
from sqlalchemy import select

from app.errors import GatewayError
from app.storage._tables import audit
from app.storage.audit import AuditEntry, entry_of
from app.storage.engine import ANSWER_S, WAIT_S, Database

POLL_S = 2.0
SETTLED_S = ANSWER_S + 2 * WAIT_S  # a transaction that wrote its row so long ago is committed or rolled back
FIRST_LOOK = 500  # rows read at the start: smaller ids among them may appear later
PAGE = 500
MAX_PAGES = 10  # in one look; a node that is further behind reloads everything

log = logging.getLogger(__name__)


class Window:
    """Which ids are new. Pure: the clock is passed in.

    No id below `floor` can appear any more. Rows are read again from `floor` on. If one that was seen is missing, or
    another act has its id, the trail was replaced by another one, or a standby has it that lacks the last rows.
    """

    def __init__(self, acts: Mapping[int, datetime], now: float) -> None:
        """`acts`: the ids of rows and their times. They are not new; the smallest is the floor."""
        self._seen, self.floor = dict(acts), min(acts, default=0)
        self._marks = deque([(now, max(acts, default=0))])

    def new(self, acts: Mapping[int, datetime]) -> list[int]:
        """The ids that were not seen before, in order."""
        fresh = sorted(acts.keys() - self._seen.keys())
        self._seen.update((each, acts[each]) for each in fresh)
        return fresh

    def is_whole_in(self, acts: Mapping[int, datetime]) -> bool:
        """Whether all that was seen is among these, which are all from the floor on."""
        return self._seen.items() <= acts.items()

    def settle(self, began: float, now: float) -> None:
        """Moves the floor to the largest id that was seen SETTLED_S before the look that `began` then."""
        self._marks.append((now, max(self._seen, default=0)))
        while self._marks[0][0] <= began - SETTLED_S:
            self.floor = max(self.floor, self._marks.popleft()[1])
        self._seen = {each: at for each, at in self._seen.items() if each >= self.floor}


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
            log.warning(
                "The audit trail lacks entries that it had (a failover, a restored backup), or has too many new ones; "
                "reloading everything"
            )
        self._window = None
        self._window = await self._start()
        self._read_at = began
        lost()

    async def _go_on(self, window: Window, heard: Callable[[Sequence[AuditEntry]], None]) -> bool:
        """Passes on what is new; returns whether all of it could be read."""
        began, position, read = self._clock(), window.floor, dict[int, datetime]()
        for _ in range(MAX_PAGES):
            page = await self._read(position)
            if position and (not page or page[0].id != position):
                return False
            by_id = {entry.id: entry for entry in page}
            read.update(times := {entry.id: entry.act.at for entry in page})
            if fresh := window.new(times):
                heard([by_id[each] for each in fresh])
            if len(page) < PAGE:
                if not window.is_whole_in(read):
                    return False
                window.settle(began, self._clock())
                return True
            position = page[-1].id
        return False

    async def _start(self) -> Window:
        last = select(audit).order_by(audit.c.id.desc()).limit(FIRST_LOOK)
        acts = [entry_of(row) for row in await self._database.rows(last)]
        return Window({each.id: each.act.at for each in acts}, self._clock())

    async def _read(self, floor: int) -> list[AuditEntry]:
        query = select(audit).where(audit.c.id >= floor).order_by(audit.c.id).limit(PAGE)
        return [entry_of(row) for row in await self._database.rows(query)]
