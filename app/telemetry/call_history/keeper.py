"""CallKeeper: brings the calls of this node into the database, and removes old ones there.

A task of its own reads what the history has noted since it looked last: a call itself costs no more than before. What
the history had to forget before that, because a tenant made so many calls within a second, is counted as dropped; so is
what waits for a database that does not answer, beyond MAX_WAITING.
"""

import logging
import time
from collections import deque
from collections.abc import Callable

import anyio

from app.errors import Conflict, NotFound, StorageUnavailable
from app.telemetry.call_history.history import CallHistory
from app.telemetry.call_history.kept import CallShelf, KeptCall

LOOK_EVERY_S = 1.0
MAX_WAITING = 20_000  # about 15 MB; beyond it the oldest are dropped
BATCH = 500  # calls in one transaction
TIDY_EVERY_S = 60.0
PORTION = 1_000  # calls that one transaction removes
PORTIONS = 50  # at a time; what is left is removed a minute later
BETWEEN_PORTIONS_S = 0.1  # for others who write
LAST_WORDS_S = 2.0  # for what has not been written when the node stops

Count = Callable[[str, int], None]  # "written" or "dropped", and how many

log = logging.getLogger(__name__)


class CallKeeper:
    """`run` is its task. Keeps calls for `kept_s`, and of each tenant the last `per_tenant`."""

    def __init__(  # noqa: PLR0913 - once, of parts
        self,
        history: CallHistory,
        shelf: CallShelf,
        node: str,
        *,
        kept_s: float,
        per_tenant: int,
        count: Count = lambda result, calls: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._history, self._shelf, self._node, self._count, self._clock = history, shelf, node, count, clock
        self._kept_s, self._per_tenant = kept_s, per_tenant
        self._seen = history.number
        self._waiting = deque[KeptCall]()
        self._batches = deque[list[KeptCall]]()  # being written, or to be written again as they are
        self._written: set[str] = set()  # tenants with new calls since the last trim
        self._dropped = 0  # and not logged yet
        self._said_that_they_wait = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting) + sum(map(len, self._batches))

    async def run(self) -> None:
        """Until cancelled; then what waits is written, if the database answers soon."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_for_ever)
                tasks.start_soon(self._tidy_for_ever)
        finally:
            with anyio.move_on_after(LAST_WORDS_S, shield=True):
                self.collect()
                await self.write()

    async def _write_for_ever(self) -> None:
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            self.collect()
            await self.write()

    def collect(self) -> None:
        """Takes over what was noted since the last time."""
        last, self._seen = self._seen, self._history.number
        if last == self._seen:
            return
        found = [KeptCall.of(call, self._node) for call in self._history.since(last)]
        self._waiting.extend(found)
        surplus = max(0, len(self) - MAX_WAITING)
        for _ in range(min(surplus, len(self._waiting))):
            self._waiting.popleft()
        if dropped := self._seen - last - len(found) + surplus:
            self._drop(dropped)

    async def write(self) -> None:
        """Writes what waits, batch by batch; stops where the database does not answer."""
        while self._batches or self._waiting:
            if not self._batches:
                self._batches.append([self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))])
            batch = self._batches[0]
            try:
                await self._shelf.add(batch)
                is_written = True
            except StorageUnavailable as problem:
                if not self._said_that_they_wait:
                    log.warning(
                        "Calls cannot be kept now; the last %d wait, earlier ones are dropped: %s", MAX_WAITING, problem
                    )
                self._said_that_they_wait = True
                return
            except Conflict:  # an earlier attempt, of which we had no answer, has succeeded
                is_written = True
            except NotFound:  # with a tenant its calls are gone
                is_written = False
                self._split(batch)
            except Exception:
                log.exception("Could not keep %d calls in the database; they are dropped", len(batch))
                is_written = False
                self._drop(len(batch))
            self._batches.popleft()
            if self._said_that_they_wait:
                log.info("Calls are kept again")
                self._said_that_they_wait = False
            if is_written:
                self._written.update(call.tenant for call in batch)
                self._count("written", len(batch))

    def _split(self, batch: list[KeptCall]) -> None:
        """Of these a tenant is gone: those of the others are written next, each tenant's by themselves."""
        tenants = {call.tenant for call in batch}
        if len(tenants) > 1:
            self._batches.extend([call for call in batch if call.tenant == tenant] for tenant in sorted(tenants))

    def _drop(self, calls: int) -> None:
        self._count("dropped", calls)
        self._dropped += calls

    async def _tidy_for_ever(self) -> None:
        while True:
            try:
                await self.tidy()
            except StorageUnavailable:
                pass  # a minute later
            except Exception:
                log.exception("Could not remove old calls from the database; will retry")
            await anyio.sleep(TIDY_EVERY_S)

    async def tidy(self) -> None:
        """Removes what is too old, and what tenants have too many of."""
        if self._dropped:
            log.warning("Dropped %d calls: they came faster than the database took them", self._dropped)
            self._dropped = 0
        await remove_older(self._shelf, round((self._clock() - self._kept_s) * 1_000_000), PORTIONS)
        for tenant in list(self._written):
            self._written.discard(tenant)  # more may be written meanwhile
            try:
                is_done = await self._has_trimmed(tenant)
            except StorageUnavailable:
                self._written.add(tenant)
                raise
            if not is_done:
                self._written.add(tenant)

    async def _has_trimmed(self, tenant: str) -> bool:
        """Whether nothing is left to be removed of this tenant."""
        for _ in range(PORTIONS):
            if await self._shelf.trim(tenant, self._per_tenant, PORTION) < PORTION:
                return True
            await anyio.sleep(BETWEEN_PORTIONS_S)
        return False


async def remove_older(shelf: CallShelf, than_us: int, portions: int) -> bool:
    """Removes so many portions of calls from before; returns whether there may be more. Raises StorageUnavailable."""
    for _ in range(portions):
        if await shelf.remove_older(than_us, PORTION) < PORTION:
            return False
        await anyio.sleep(BETWEEN_PORTIONS_S)
    return True


async def remove_all(shelf: CallShelf, clock: Callable[[], float] = time.time) -> None:
    """Calls are not kept any more: removes those that were, once."""
    is_done = False
    while not is_done:
        try:
            is_done = not await remove_older(shelf, round(clock() * 1_000_000), PORTIONS)
        except StorageUnavailable:
            await anyio.sleep(TIDY_EVERY_S)
        except Exception:
            log.exception("Could not remove calls from the database that are not to be kept any more")
            return
