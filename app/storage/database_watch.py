"""DatabaseWatch: knows whether the database answers and takes changes."""

import logging
import math
import time

import anyio

from app.errors import StorageReadOnly, StorageUnavailable
from app.storage._database_errors import in_one_line, is_untold
from app.storage.engine import Database

WATCH_EVERY_S = 1.0
LATE_S = 1.0  # after that the watch counts the database as not answering
# After so many late answers in a row it counts as slow: one alone may be the fault of this node, which stood still.
LATE_ANSWERS = 2
SLOW_LATE_S = 5.0  # in place of LATE_S while it is slow: as long as a change may take
SLOW = "The database answers too slowly: it takes more than a second"
CALM_S = 60.0  # without a change that failed; then all changes count as working where one alone does not say so

log = logging.getLogger(__name__)


class DatabaseWatch:
    """Knows whether the database answers and accepts changes, without waiting for it: /readyz asks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._problem: StorageUnavailable | None = None
        self._refusal: StorageUnavailable | None = None
        self._refused_at = -math.inf
        self._asked_at: float | None = None
        self._late_answers = 0  # in a row

    @property
    def problem(self) -> str | None:
        """Why the database cannot be used now, or None."""
        if self._problem is not None:
            return str(self._problem)
        return "the database does not answer" if self._is_late() else None

    @property
    def slowness(self) -> str | None:
        """Why what needs the database takes long although it answers, or None."""
        return SLOW if self._is_slow() else None

    @property
    def refusal(self) -> str | None:
        """Why changes fail although the database can be read, or None: the last one was stored."""
        return None if self._refusal is None else str(self._refusal)

    def is_away(self) -> bool:
        """Whether it does not even answer reads."""
        return self._is_late() or (self._problem is not None and not isinstance(self._problem, StorageReadOnly))

    async def run(self) -> None:
        """Checks the database every WATCH_EVERY_S."""
        while True:
            self._asked_at = asked_at = time.monotonic()
            try:
                await self._database.check()
                self._is_now(None)
                self._took(time.monotonic() - asked_at)
            except StorageUnavailable as error:
                self._is_now(error)
                self._late_answers = 0
            self._asked_at = None
            if self._problem is None:
                await self._look_at_changes()
            await anyio.sleep(WATCH_EVERY_S)

    def _took(self, seconds: float) -> None:
        """Once it is slow it has to be twice as fast to count as well."""
        was_slow = self._is_slow()
        self._late_answers = self._late_answers + 1 if seconds > (LATE_S / 2 if was_slow else LATE_S) else 0
        if self._is_slow() and not was_slow:
            log.warning("%s", SLOW)
        elif was_slow and not self._is_slow():
            log.info("The database answers in time again")

    def _is_slow(self) -> bool:
        return self._late_answers >= LATE_ANSWERS

    def _is_now(self, problem: StorageUnavailable | None) -> None:
        if str(problem) != str(self._problem):
            if problem is None:
                log.info("The database can be used again")
                self._database.forget_refusal()  # of the outage; if changes still fail, the next one says so
            else:
                log.warning("%s", _told(problem))
        self._problem = problem

    async def _look_at_changes(self) -> None:
        """After a change has failed: one of nothing is tried until it succeeds."""
        refused = self._database.refused
        if refused is not self._refusal:
            self._refused_at = time.monotonic()
        elif refused is not None:
            try:
                if await self._database.try_change() and self._is_over(refused):
                    self._database.forget_refusal()
                    refused = None
            except StorageUnavailable as error:
                refused = error
        if str(refused) != str(self._refusal):
            if refused is None:
                log.info("The database takes changes again")
            else:
                log.warning("Changes fail: %s", _told(refused))
        self._refusal = refused

    def _is_over(self, refused: StorageUnavailable) -> bool:
        """After a change of nothing has succeeded: whether others will. A server that had not answered does so now."""
        tells_all = self._database.trial_tells_all or is_untold(refused.__cause__)
        return tells_all or time.monotonic() - self._refused_at >= CALM_S

    def _is_late(self) -> bool:
        late_s = SLOW_LATE_S if self._is_slow() else LATE_S
        return self._asked_at is not None and time.monotonic() - self._asked_at > late_s


def _told(problem: StorageUnavailable) -> str:
    return str(problem) if problem.__cause__ is None else f"{problem}: {in_one_line(problem.__cause__)}"
