"""JournalStore: where nodes write down what another one needs to go on with a durable session. Opaque bytes here:
what they mean, and their seal, is the business of who writes them.

A journal is a head, which each write replaces, and a list of entries, to which it appends. It belongs to whoever has
the largest token, in the journal or in the route of its session: the others neither write nor delete it. So whoever
takes a session over finds what was written, however late he reads it. A journal that is written anew in several writes
is gathered aside, so that what was there can be read until all of it has come.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from app.errors import RoutesUnavailable
from app.redis.connection import Script

KEPT_S = 600.0  # after the last write or touch; a client that comes back later starts anew
PAGE = 64  # entries that are read at once
REPLACES = -1  # as `JournalWrite.length`


class Target(Enum):
    """Where a write goes."""

    JOURNAL = b"journal"
    ASIDE = b"aside"  # to what is to replace the journal once it is whole; the head does not matter yet
    INSTEAD = b"instead"  # the same, and now it is whole and replaces the journal


class JournalWrite(NamedTuple):
    """One write to one journal. `number` is one more than that of the write before, so that one that arrives late,
    after its sender has given it up, does nothing. There must be `length` entries in its target already, or REPLACES:
    then none matter, and only the numbers must grow. Afterwards the first `trim` entries go.
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
    """What has become of a write."""

    WRITTEN = b"written"
    GAP = b"gap"  # nothing was written: the store has not what was expected
    FENCED = b"fenced"  # nothing was written: the journal is another node's now


class Journaled(NamedTuple):
    """A journal as its last owner left it; `token` is the one that it was written under."""

    token: int
    head: bytes
    entries: Sequence[bytes]


class JournalStore(Protocol):
    """Every method raises RoutesUnavailable, after a bounded time."""

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
        """Carries the writes out, each whole or not at all; keys stand in it once."""

    async def take(self, key: str, token: int) -> Journaled | None:
        """Reads a journal; from now on nobody with a smaller token writes to it. None where there is none.

        Raises RoutesUnavailable also where the session has been taken over under a later token: whose it is is to be
        looked up again.
        """

    async def touch(self, journals: Sequence[tuple[str, int]]) -> list[str]:
        """Keeps these journals (key and token) for another KEPT_S; returns the keys that are not there any more."""

    async def delete(self, journals: Sequence[tuple[str, int]]) -> None:
        """Forgets these journals, unless they are another node's by now."""


# Whether the route of this head's session is somebody's with a later token. A route that is not there, or of another
# type, says nothing.
_PRELUDE = """
local function is_taken(head, token)
  local route = redis.pcall('HGET', 'trunkline:route:' .. string.sub(head, 16), 't')
  return type(route) == 'string' and (tonumber(route) or 0) > tonumber(token)
end
"""

# Of a head, `w` is the token that `v` and the list were written under, `p` and `n` the token and number of the last
# write, which may have gone aside.
_WRITE = Script(
    _PRELUDE
    + """
local at, outcomes = 2, {}
for i = 1, #KEYS, 3 do
  local head, list, aside = KEYS[i], KEYS[i + 1], KEYS[i + 2]
  local token, number, sealed = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local length, trim, target = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5]
  local first, last = at + 7, at + 6 + tonumber(ARGV[at + 6])
  local goes_to = target == 'journal' and list or aside
  local known = redis.call('HMGET', head, 't', 'p', 'n')
  local before = -1
  if known[2] == token then before = tonumber(known[3]) end
  if is_taken(head, token) or known[1] and tonumber(known[1]) > tonumber(token) then
    outcomes[#outcomes + 1] = 'fenced'
  elseif before >= number or length >= 0 and (before ~= number - 1 or redis.call('LLEN', goes_to) ~= length) then
    outcomes[#outcomes + 1] = 'gap'
  else
    if length < 0 then redis.call('DEL', aside, goes_to) end
    for j = first, last do redis.call('RPUSH', goes_to, ARGV[j]) end
    if trim > 0 then redis.call('LTRIM', goes_to, trim, -1) end
    redis.call('HSET', head, 't', token, 'p', token, 'n', number)
    if target == 'instead' then
      redis.call('DEL', list)
      if redis.call('EXISTS', aside) == 1 then redis.call('RENAME', aside, list) end
    end
    if target ~= 'aside' then redis.call('HSET', head, 'w', token, 'v', sealed) end
    for j = i, i + 2 do redis.call('PEXPIRE', KEYS[j], ARGV[1]) end
    outcomes[#outcomes + 1] = 'written'
  end
  at = last + 1
end
return outcomes
"""
)

# A head without `v` is a fence only.
_TAKE = Script(
    _PRELUDE
    + """
if is_taken(KEYS[1], ARGV[1]) then return {} end
local known = redis.call('HMGET', KEYS[1], 't', 'w', 'v')
if not known[3] or tonumber(known[1]) > tonumber(ARGV[1]) then return false end
redis.call('HSET', KEYS[1], 't', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {known[2], known[3], redis.call('LLEN', KEYS[2])}
"""
)

_TOUCH = Script("""
local missing = {}
for i = 1, #KEYS, 3 do
  local index = (i + 2) / 3
  if redis.call('HGET', KEYS[i], 'p') ~= ARGV[1 + index] then missing[#missing + 1] = index end
  for j = i, i + 2 do redis.call('PEXPIRE', KEYS[j], ARGV[1]) end
end
return missing
""")

_DELETE = Script(
    _PRELUDE
    + """
for i = 1, #KEYS, 3 do
  local known, token = redis.call('HGET', KEYS[i], 't'), ARGV[(i + 2) / 3]
  if known and tonumber(known) <= tonumber(token) and not is_taken(KEYS[i], token) then
    redis.call('DEL', KEYS[i], KEYS[i + 1], KEYS[i + 2])
  end
end
"""
)


def head_key(key: str) -> str:
    """Where the head is."""
    return f"trunkline:head:{key}"


def log_key(key: str) -> str:
    """Where the entries are."""
    return f"trunkline:log:{key}"


def aside_key(key: str) -> str:
    """Where the entries are that are to replace these."""
    return f"trunkline:aside:{key}"


class Connection(Protocol):
    """Redis, as this file needs it (`redis_connection.RedisConnection`)."""

    async def execute(self, *command: Any) -> Any:
        """One command within the deadline. Raises RoutesUnavailable."""

    async def run(self, script: Script, keys: Sequence[Any], arguments: Sequence[Any] = ()) -> Any:
        """A script, likewise."""


@contextmanager
def _understood() -> Iterator[None]:
    """An answer of another shape than our scripts give was spoilt on its way: as good as none.

    Raises:
        RoutesUnavailable: it was.
    """
    try:
        yield
    except (ValueError, TypeError, IndexError, KeyError):
        raise RoutesUnavailable from None


class RedisJournalStore:
    """Journals in Redis (6.2 or later). Its connection is one of its own: large writes hold nobody else up."""

    def __init__(self, connection: Connection, kept_s: float = KEPT_S) -> None:
        self._connection, self._kept_ms = connection, round(kept_s * 1000)

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
        """See JournalStore."""
        arguments: list[Any] = [self._kept_ms]
        for write in writes:
            arguments += (write.token, write.number, write.head, write.length, write.trim, write.target.value)
            arguments += (len(write.entries), *write.entries)
        keys = _keys(write.key for write in writes)
        replies = await self._connection.run(_WRITE, keys, arguments)
        with _understood():
            outcomes = [Outcome(bytes(reply)) for reply in replies]
            if len(outcomes) != len(writes):
                raise ValueError
            return outcomes

    async def take(self, key: str, token: int) -> Journaled | None:
        """See JournalStore. Read in pages: nobody else writes any more."""
        found = await self._connection.run(_TAKE, _keys([key]), [token, self._kept_ms])
        if found is None:
            return None
        with _understood():  # also where it is empty: taken over by somebody else
            written_under, head, length = int(found[0]), bytes(found[1]), int(found[2])
        entries: list[bytes] = []
        while len(entries) < length:
            page = await self._connection.execute("LRANGE", log_key(key), len(entries), len(entries) + PAGE - 1)
            if not page:
                break
            with _understood():
                entries += [memoryview(entry).tobytes() for entry in page]
        return Journaled(written_under, head, entries)

    async def touch(self, journals: Sequence[tuple[str, int]]) -> list[str]:
        """See JournalStore."""
        arguments = [self._kept_ms, *(token for _, token in journals)]
        missing = await self._connection.run(_TOUCH, _keys(key for key, _ in journals), arguments)
        with _understood():
            return [journals[index - 1][0] for index in missing]

    async def delete(self, journals: Sequence[tuple[str, int]]) -> None:
        """See JournalStore."""
        await self._connection.run(_DELETE, _keys(key for key, _ in journals), [token for _, token in journals])


@dataclass(slots=True)
class _Kept:
    token: int  # nobody with a smaller one writes
    last: tuple[int, int] = (0, -1)  # token and number of the last write
    written_under: int = 0  # no token: there is nothing to be read
    head: bytes = b""
    entries: list[bytes] = field(default_factory=list)
    aside: list[bytes] = field(default_factory=list)


class MemoryJournalStore:
    """Journals in memory: for tests, where several nodes share one. Nothing in it expires."""

    def __init__(self) -> None:
        self._journals: dict[str, _Kept] = {}

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
        """See JournalStore."""
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
        kept.token, kept.last = write.token, (write.token, write.number)
        if write.target is Target.ASIDE:
            kept.aside = entries
        else:
            kept.written_under, kept.head, kept.entries, kept.aside = write.token, write.head, entries, []
        self._journals[write.key] = kept
        return Outcome.WRITTEN

    async def take(self, key: str, token: int) -> Journaled | None:
        """See JournalStore."""
        kept = self._journals.get(key)
        if kept is None or not kept.written_under or kept.token > token:
            return None
        kept.token = token
        return Journaled(kept.written_under, kept.head, list(kept.entries))

    async def touch(self, journals: Sequence[tuple[str, int]]) -> list[str]:
        """See JournalStore."""
        return [key for key, token in journals if key not in self._journals or self._journals[key].last[0] != token]

    async def delete(self, journals: Sequence[tuple[str, int]]) -> None:
        """See JournalStore."""
        for key, token in journals:
            if key in self._journals and self._journals[key].token <= token:
                del self._journals[key]

    def __len__(self) -> int:
        return len(self._journals)


def _keys(keys: Iterable[str]) -> list[str]:
    return [name for key in keys for name in (head_key(key), log_key(key), aside_key(key))]
