"""AuditFollower: reads in the audit trail what was done anywhere, by whatever process, each act once.

Ids are given out when a row is written and become visible when it is committed: on PostgreSQL a smaller one may
appear after a larger one. So the trail is read again from a little further back, and what was seen is left out.
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
SETTLED_S = ANSWER_S + 2 * WAIT_S  # a transaction that wrote its row so long ago is committed, or never will be
FIRST_LOOK = 500  # rows that are looked at in the beginning, for those among them that are not visible yet
PAGE = 500
MAX_PAGES = 10  # in one look; whoever is further behind believes nothing that it remembers

log = logging.getLogger(__name__)


class Window:
    """Which ids are new. Pure: the clock is passed in.

    `floor` is the largest id below which nothing can appear any more; the row itself is read again each time, and is
    missing only where the trail was replaced by another one.
    """

    def __init__(self) -> None:
        self.floor = 0
        self._seen: set[int] = set()
        self._marks: deque[tuple[float, int]] = deque()

    def start(self, ids: Sequence[int], now: float) -> None:
        """These are there already: none of them is new, the smallest is the floor."""
        self._seen, self.floor = set(ids), min(ids, default=0)
        self._marks = deque([(now, max(ids, default=0))])

    def new(self, ids: Sequence[int]) -> list[int]:
        """Those that were not seen before, in order."""
        fresh = sorted(set(ids) - self._seen)
        self._seen.update(fresh)
        return fresh

    def settle(self, began: float, now: float) -> None:
        """After a look that began then: moves the floor to what was the largest id SETTLED_S before."""
        self._marks.append((now, max(self._seen, default=0)))
        while self._marks[0][0] <= began - SETTLED_S:
            self.floor = max(self.floor, self._marks.popleft()[1])
        self._seen = {each for each in self._seen if each >= self.floor}


class AuditFollower:
    """Looks into the trail every POLL_S. `run` runs in a task of the node."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._window: Window | None = None
        self._read_at = -math.inf

    def age_s(self) -> float:
        """How long ago the last look began that saw everything."""
        return self._clock() - self._read_at

    async def run(self, heard: Callable[[Sequence[AuditEntry]], None], lost: Callable[[], None]) -> None:
        """Tells of new acts, and of moments at which some may have been missed: the start is the first."""
        while True:
            try:
                await self.look(heard, lost)
            except GatewayError:
                log.debug("the audit trail cannot be read now")
            except Exception:
                log.exception("following the audit trail failed")
            await anyio.sleep(POLL_S)

    async def look(self, heard: Callable[[Sequence[AuditEntry]], None], lost: Callable[[], None]) -> None:
        """One look.

        Raises:
            StorageUnavailable: nothing is lost, look again.
        """
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
        """Tells of what is new; whether all of it could be read."""
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
        async with self._database.read() as connection:
            ids = [row.id for row in await connection.execute(last)]
        window = Window()
        window.start(ids, self._clock())
        return window

    async def _read(self, floor: int) -> list[AuditEntry]:
        query = select(audit).where(audit.c.id >= floor).order_by(audit.c.id).limit(PAGE)
        async with self._database.read() as connection:
            return [entry_of(row) for row in await connection.execute(query)]
