"""JournalWriter: writes the journals of a node's durable sessions to where the other nodes find them."""

import logging
import time
from collections.abc import Callable, Sequence

import anyio

from app.auth.sealing import SealBroken, Sealer
from app.errors import RoutesUnavailable
from app.routing.journal_store import REPLACES, JournalStore, JournalWrite, Outcome
from app.streams import journal
from app.streams.event_form import Event
from app.streams.journal import WRITE_BYTES, Head, Journal, JournalBroken, NotDurable

COLLECT_S = 0.005  # how long news waits for more; with the write itself an event is safe within 20 ms
MAX_WRITES = 64  # sessions in one write to the store
RETRY_S = 0.25  # after a write that failed; nothing gathers meanwhile that the sessions do not keep anyway
TOUCH_S = 60.0  # how often all journals are kept from expiring, and missed where the store has lost them
TOUCHED_AT_ONCE = 250
MAX_STORED_BYTES = 256 << 20  # of a node's events; above it the session with the most is not durable any more
MAX_DELETIONS = 10_000  # that wait for a store that is away; what is not deleted expires
MAX_PARTS = 32  # of one journal in one `flush`: twice what its log may hold

log = logging.getLogger(__name__)


class JournalWriter:
    """One per node. `run` is its task: what news there is goes out together, COLLECT_S after the first."""

    def __init__(
        self,
        store: JournalStore,
        sealer: Sealer,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        max_stored_bytes: int = MAX_STORED_BYTES,
        on_fenced: Callable[[str], None] = lambda key: None,
    ) -> None:
        """`on_fenced` hears the route key of a session whose journal is another node's, as the store says."""
        self._on_fenced = on_fenced
        self._store, self._sealer, self._clock, self._wall_clock = store, sealer, clock, wall_clock
        self._max_stored_bytes = max_stored_bytes
        self._journals: dict[str, Journal] = {}  # by route key
        self._dirty: dict[Journal, None] = {}
        self._deletions: dict[str, int] = {}  # key -> token
        self._wake = anyio.Event()
        self._writing = anyio.Lock()
        self._is_away = self._has_complained = False
        self.stored_bytes = 0

    def open(self, key: str, token: int) -> Journal:
        """The journal of a session that is ours, under this route key; `Journal.end` or `hand_over` closes it."""
        opened = self._journals[key] = Journal(key, token, self)
        self._deletions.pop(key, None)
        return opened

    async def run(self) -> None:
        """Writes until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_for_ever)
            tasks.start_soon(self._touch_for_ever)

    async def flush(self, journal: Journal) -> None:
        """Returns when everything of this session is in the store.

        Raises:
            NotDurable: it is not durable, or not any more.
            RoutesUnavailable: the store is away.
        """
        for _ in range(MAX_PARTS):
            async with self._writing:
                if journal.is_over or not (journal.number or journal.is_dirty):
                    raise NotDurable
                if not journal.is_dirty:
                    return
                await self._write([journal])
        raise RoutesUnavailable

    async def hand_over(self, journal: Journal) -> None:
        """The same for a session that has ended here and goes on elsewhere; closes the journal, and deletes nothing.

        Raises:
            NotDurable, RoutesUnavailable: as `flush`; the journal is closed all the same.
        """
        try:
            await self.flush(journal)
        finally:
            journal.let_go()

    async def take(self, key: str, token: int) -> tuple[Head, list[Event], int] | None:
        """What the last owner that wrote has written, and its token; from now on it writes no more. None where that is
        nothing, or not to be trusted.

        Raises:
            RoutesUnavailable: the store is away.
        """
        found = await self._store.take(key, token)
        if found is None:
            return None
        try:
            head, events = journal.read(found.head, found.entries, self._sealer.within(_part(key, found.token)).open)
        except (SealBroken, JournalBroken) as problem:
            log.error("Could not read a session's journal; treating it as missing: %s", problem)
            return None
        return head, events, found.token

    def rewrite_all(self) -> None:
        """The store has lost what it had."""
        for each in list(self._journals.values()):
            each.lost()

    # --- JournalOwner

    def has_news(self, journal: Journal) -> None:
        """See JournalOwner."""
        self._dirty[journal] = None
        self._wake.set()

    def has_ended(self, journal: Journal) -> None:
        """See JournalOwner."""
        if not journal.number:
            return
        if len(self._deletions) >= MAX_DELETIONS:
            del self._deletions[next(iter(self._deletions))]
        self._deletions[journal.key] = journal.token
        self._wake.set()

    def has_let_go(self, journal: Journal) -> None:
        """See JournalOwner."""
        self._dirty.pop(journal, None)
        self.stored_bytes -= journal.accounted
        journal.accounted = 0
        if self._journals.get(journal.key) is journal:
            del self._journals[journal.key]

    # --- writing

    async def _write_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            await anyio.sleep(COLLECT_S)
            try:
                while self._dirty or self._deletions:
                    async with self._writing:
                        await self._write(list(self._dirty)[:MAX_WRITES])
                        await self._delete()
            except RoutesUnavailable:
                self._say_away()
                await anyio.sleep(RETRY_S)
                continue
            except Exception:
                log.exception("Could not write session journals")
                await anyio.sleep(RETRY_S)
                continue
            self._wake = anyio.Event()

    async def _write(self, journals: Sequence[Journal]) -> None:
        """Writes what these have to say, as much as fits; the rest stays dirty."""
        writes = self._next_writes(journals)
        if not writes:
            return
        try:
            outcomes = await self._store.write([write for _, write in writes])
        except BaseException:
            for written, _ in writes:
                written.lost()
            raise
        if self._is_away:
            log.info("sessions are durable again")
        self._is_away = False
        for (written, write), outcome in zip(writes, outcomes, strict=True):
            self._is_done(written, write, outcome)

    def _next_writes(self, journals: Sequence[Journal]) -> list[tuple[Journal, JournalWrite]]:
        writes: list[tuple[Journal, JournalWrite]] = []
        size, offset_s = 0, self._wall_clock() - self._clock()
        for each in journals:
            if size >= WRITE_BYTES:
                break
            self._dirty.pop(each, None)
            write = each.next_write(self._sealer.within(_part(each.key, each.token)).seal, offset_s)
            if write is not None:
                writes.append((each, write))
                size += len(write.head) + sum(map(len, write.entries))
        return writes

    def _is_done(self, journal: Journal, write: JournalWrite, outcome: Outcome) -> None:
        if outcome is Outcome.WRITTEN:
            journal.written(write)
            self._account(journal)
        elif outcome is Outcome.FENCED:
            log.warning("a session is another node's by now: its journal is left to that node")
            journal.let_go()
            self._on_fenced(journal.key)
        elif write.length == REPLACES:
            log.error("a journal cannot be written: somebody else writes it under the same token; it is given up")
            journal.end()
        else:
            journal.lost()

    async def _delete(self) -> None:
        batch = list(self._deletions.items())[:TOUCHED_AT_ONCE]
        if batch:
            await self._store.delete(batch)
            for key, token in batch:
                if self._deletions.get(key) == token:
                    del self._deletions[key]

    def _account(self, journal: Journal) -> None:
        """Counts what the journal holds; where that is too much for the store, the largest one goes."""
        if journal.is_over or journal.log is None:
            return
        self.stored_bytes += journal.log.bytes - journal.accounted
        journal.accounted = journal.log.bytes
        while self.stored_bytes > self._max_stored_bytes:
            largest = max(self._journals.values(), key=lambda each: each.accounted)
            if not self._has_complained:
                log.warning("sessions have more to be kept than a node may: the largest are not durable any more")
            self._has_complained = True
            largest.end()

    def _say_away(self) -> None:
        if not self._is_away:
            log.warning("sessions are not durable: what they do cannot be written down")
        self._is_away = True

    async def _touch_for_ever(self) -> None:
        while True:
            await anyio.sleep(TOUCH_S)
            try:
                await self.touch()
            except RoutesUnavailable:
                self._say_away()
            except Exception:
                log.exception("journals could not be kept from expiring")

    async def touch(self) -> None:
        """Keeps every journal from expiring, and writes those again that the store has lost.

        Raises:
            RoutesUnavailable: the store is away.
        """
        written = [(each.key, each.token) for each in self._journals.values() if each.number]
        for start in range(0, len(written), TOUCHED_AT_ONCE):
            for key in await self._store.touch(written[start : start + TOUCHED_AT_ONCE]):
                if key in self._journals:
                    self._journals[key].lost()

    def __repr__(self) -> str:
        return f"<JournalWriter [{len(self._journals)} journals, {len(self._dirty)} dirty, {self.stored_bytes} bytes]>"


def _part(key: str, token: int) -> str:
    """What a journal is sealed for: one session, one owner."""
    return f"trunkline:journal:{key}:{token}"
