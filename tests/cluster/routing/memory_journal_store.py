"""MemoryJournalStore: a JournalStore without Redis, which several nodes of a test share."""

from collections.abc import Sequence
from typing import NamedTuple

from app.sessions.streams.journal_store import REPLACES, Journaled, JournalWrite, Outcome, Target


class _Kept(NamedTuple):
    token: int  # writers with a smaller one are locked out
    last: tuple[int, int] = (0, -1)  # token and number of the last write
    written_under: int = 0  # a token; 0 if there is nothing to read
    head: bytes = b""
    entries: Sequence[bytes] = ()
    aside: Sequence[bytes] = ()


class MemoryJournalStore:
    """Journals in memory. Nothing expires."""

    def __init__(self) -> None:
        self._journals: dict[str, _Kept] = {}

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
        return [self._write(write) for write in writes]

    def _write(self, write: JournalWrite) -> Outcome:
        kept = self._journals.get(write.key) or _Kept(write.token)
        if kept.token > write.token:
            return Outcome.FENCED
        before = kept.last[1] if kept.last[0] == write.token else -1
        there = kept.entries if write.target is Target.JOURNAL else kept.aside
        if before >= write.number:
            return Outcome.GAP
        if write.length != REPLACES and (before != write.number - 1 or len(there) != write.length):
            return Outcome.GAP
        entries = [*([] if write.length == REPLACES else there), *write.entries][write.trim :]
        last = write.token, write.number
        if write.target is Target.ASIDE:
            self._journals[write.key] = kept._replace(token=write.token, last=last, aside=entries)
        else:
            self._journals[write.key] = _Kept(write.token, last, write.token, write.head, entries)
        return Outcome.WRITTEN

    async def take(self, key: str, token: int) -> Journaled | None:
        kept = self._journals.get(key)
        if kept is None or not kept.written_under or kept.token > token:
            return None
        self._journals[key] = kept._replace(token=token)
        return Journaled(kept.written_under, kept.head, list(kept.entries))

    async def touch(self, journals: Sequence[tuple[str, int]]) -> list[str]:
        return [key for key, token in journals if key not in self._journals or self._journals[key].last[0] != token]

    async def delete(self, journals: Sequence[tuple[str, int]]) -> None:
        for key, token in journals:
            if key in self._journals and self._journals[key].token <= token:
                del self._journals[key]

    def __len__(self) -> int:
        return len(self._journals)
