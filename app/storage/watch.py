"""DatabaseWatch: asks the database every second, so that /readyz knows at once though the database may hang."""

import logging
import time

import anyio

from app.errors import StorageReadOnly, StorageUnavailable
from app.storage.engine import Database

EVERY_S = 1.0
LATE_S = 1.0  # an answer that takes longer is none

log = logging.getLogger(__name__)


class DatabaseWatch:
    """Knows whether the database answered last, and takes changes. `run` runs in a task of the node."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._problem: StorageUnavailable | None = None
        self._asked_at: float | None = None

    @property
    def problem(self) -> str | None:
        """Why nothing can be stored now, or None."""
        if self._is_late():
            return "the database does not answer"
        return None if self._problem is None else str(self._problem)

    def is_away(self) -> bool:
        """Whether it does not even answer questions."""
        return self._is_late() or (self._problem is not None and not isinstance(self._problem, StorageReadOnly))

    def _is_now(self, problem: StorageUnavailable | None) -> None:
        if str(problem) != str(self._problem):
            if problem is None:
                log.info("The database can be used again")
            else:
                log.warning("%s: %s", problem, problem.__cause__ or "asked just now")
        self._problem = problem

    def _is_late(self) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at > LATE_S

    async def run(self) -> None:
        """Asks for ever."""
        while True:
            self._asked_at = time.monotonic()
            try:
                await self._database.check()
                self._is_now(None)
            except StorageUnavailable as error:
                self._is_now(error)
            self._asked_at = None
            await anyio.sleep(EVERY_S)
