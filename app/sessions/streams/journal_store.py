"""JournalStore: stores what another node needs to go on with a durable session, as opaque sealed bytes.

A journal is a head, which each write replaces, and a list of entries, to which it appends. It belongs to the node with
the largest token, in the journal or in the route of its session; other nodes neither write nor delete it. So a node
that takes over a session finds its journal, however late it reads. A journal that is replaced in several writes is
collected aside first: the old one stays readable until the new one is complete.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

REPLACES = -1  # as `JournalWrite.length`


class Target(Enum):
    JOURNAL = b"journal"
    ASIDE = b"aside"  # part of a replacement that is not complete yet; its head is ignored
    INSTEAD = b"instead"  # the last part of a replacement, which then replaces the journal


class JournalWrite(NamedTuple):
    """One write to one journal. `number` is one more than that of the write before: a write that arrives late, after
    its sender gave it up, has no effect. Its target must hold `length` entries; with REPLACES existing entries are
    dropped, and `number` only has to grow. After the write the first `trim` entries are removed.
    """

    key: str
    token: int
    number: int
    head: bytes
    entries: Sequence[bytes]
    length: int
    trim: int
    target: Target = Target.JOURNAL


class Outcome(Enum):
    WRITTEN = b"written"
    GAP = b"gap"  # nothing was written: the stored journal is not what the writer expected
    FENCED = b"fenced"  # nothing was written: another node owns the journal now


class Journaled(NamedTuple):
    """A journal as its last owner left it; `token` is that owner's."""

    token: int
    head: bytes
    entries: Sequence[bytes]


class JournalStore(Protocol):
    """Every method raises RoutesUnavailable after a bounded time."""

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
        """Applies each write completely or not at all. No two may have the same key."""

    async def take(self, key: str, token: int) -> Journaled | None:
        """Reads a journal and locks out writers with smaller tokens. None if there is none. Raises RoutesUnavailable
        also if the session was taken over under a later token: look up its owner again."""

    async def touch(self, journals: Sequence[tuple[str, int]]) -> list[str]:
        """Keeps these journals (key and token) for another its store's `kept_s`; returns the keys of missing ones."""

    async def delete(self, journals: Sequence[tuple[str, int]]) -> None:
        """Deletes these journals (key and token), except those that another node owns by now."""
