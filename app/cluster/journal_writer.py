"""JournalWriter: writes the journals of a node's durable sessions to the store that all nodes share."""

import logging
import time
from collections.abc import Callable, Sequence

import anyio

from app.auth.sealing import SealBroken, Sealer
from app.cluster._periodic import repeat
from app.errors import RoutesUnavailable
from app.sessions.streams import journal
from app.sessions.streams.journal import WRITE_BYTES, Head, Journal, JournalBroken, NotDurable
from app.sessions.streams.journal_record import Event
from app.sessions.streams.journal_store import REPLACES, JournalStore, JournalWrite, Outcome

COLLECT_S = 0.005  # how long changes are collected; with the write itself an event is safe within 20 ms
MAX_WRITES = 64  # sessions in one write to the store
RETRY_S = 0.25  # after a failed write; meanwhile no more is kept than sessions keep anyway
TOUCH_S = 60.0  # how often all journals are kept from expiring, and lost ones written again
TOUCHED_AT_ONCE = 250
MAX_STORED_BYTES = 256 << 20  # of a node's events; above it the session with the most is no longer durable
MAX_DELETIONS = 10_000  # waiting while the store is away; journals that are not deleted expire
MAX_PARTS = 32  # of one journal in one `flush`: twice what its log may hold

log = logging.getLogger(__name__)


class JournalWriter:
    """One per node; `run` is its task. Changes are written together, COLLECT_S after the first."""

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
        """`on_fenced` is called with a session's route key when another node turns out to own its journal."""
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
        """A journal for the session with this route key. `Journal.end` or `hand_over` closes it."""
        opened = self._journals[key] = Journal(key, token, self)
        self._deletions.pop(key, None)
        return opened

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_for_ever)
            tasks.start_soon(repeat, self._touch, TOUCH_S, "Could not keep session journals from expiring; will retry")

    async def flush(self, journal: Journal) -> None:
        """Waits until the whole journal is stored. Raises NotDurable, or RoutesUnavailable if the store is away."""
        for _ in range(MAX_PARTS):
            async with self._writing:
                if journal.is_over or not (journal.number or journal.is_dirty):
                    raise NotDurable
                if not journal.is_dirty:
                    return
                await self._write([journal])
        raise RoutesUnavailable

    async def hand_over(self, journal: Journal) -> None:
        """Flushes and closes the journal without deleting it. Raises as `flush` does; it is closed even then."""
        try:
            await self.flush(journal)
        finally:
            journal.let_go()

    async def take(self, key: str, token: int) -> tuple[Head, list[Event], int] | None:
        """The head, the events and the token of the last owner, which is locked out; None without a valid journal.
        Raises RoutesUnavailable if the store is away."""
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
        """For a store that has lost its data."""
        for each in list(self._journals.values()):
            each.lost()

    # --- JournalOwner

    def has_news(self, journal: Journal) -> None:
        self._dirty[journal] = None
        self._wake.set()

    def has_ended(self, journal: Journal) -> None:
        if not journal.number:
            return
        if len(self._deletions) >= MAX_DELETIONS:
            del self._deletions[next(iter(self._deletions))]
        self._deletions[journal.key] = journal.token
        self._wake.set()

    def has_let_go(self, journal: Journal) -> None:
        self._dirty.pop(journal, None)
        self.stored_bytes += journal.grown()
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
                log.exception("Could not write session journals; will retry")
                await anyio.sleep(RETRY_S)
                continue
            self._wake = anyio.Event()

    async def _write(self, journals: Sequence[Journal]) -> None:
        """Writes changes of these journals, as many as fit; the rest stay dirty."""
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
            log.info("Session journals can be written again: durable sessions survive this node")
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
            log.warning("Another node has taken over a session; this node stops writing its journal")
            journal.let_go()
            self._on_fenced(journal.key)
        elif write.length == REPLACES:
            log.error("A session is no longer durable: another writer uses the token of its journal")
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
        """Counts the stored bytes; above the limit the largest journals are given up."""
        self.stored_bytes += journal.grown()
        while self.stored_bytes > self._max_stored_bytes:
            largest = max(self._journals.values(), key=lambda each: each.counted_bytes)
            if not self._has_complained:
                log.warning("Session journals exceed %d bytes: giving up the largest", self._max_stored_bytes)
            self._has_complained = True
            largest.end()

    def _say_away(self) -> None:
        if not self._is_away:
            log.warning("Cannot write session journals: until Redis answers, durable sessions end with this node")
        self._is_away = True

    async def _touch(self) -> None:
        """Keeps every journal from expiring, and marks those that the store has lost for writing."""
        written = [(each.key, each.token) for each in self._journals.values() if each.number]
        try:
            for start in range(0, len(written), TOUCHED_AT_ONCE):
                for key in await self._store.touch(written[start : start + TOUCHED_AT_ONCE]):
                    if key in self._journals:
                        self._journals[key].lost()
        except RoutesUnavailable:
            self._say_away()

    def __repr__(self) -> str:
        return f"<JournalWriter [{len(self._journals)} journals, {len(self._dirty)} dirty, {self.stored_bytes} bytes]>"


def _part(key: str, token: int) -> str:
    """The key for sealing is derived from this: one per session and owner."""
    return f"trunkline:journal:{key}:{token}"
