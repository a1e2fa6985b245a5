"""Journals in Redis. What they hold: sessions/streams/journal_store.py."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from app.cluster.redis.connection import RedisConnection, Script
from app.errors import RoutesUnavailable
from app.sessions.streams.journal_store import Journaled, JournalWrite, Outcome

KEPT_S = 600.0  # after the last write or touch; a client that returns later needs a new session
PAGE = 64  # entries per read

# `is_taken`: the route of this session has a later token. `read`: fields of a head. A key of another type, which was
# not written by us, counts as absent; a head is then deleted, so that the other journals of a batch are written.
_PRELUDE = """
local function read(head, ...)
  local known = redis.pcall('HMGET', head, ...)
  if known.err then redis.call('DEL', head) return {} end
  return known
end
local function is_taken(head, token)
  local route = redis.pcall('HGET', 'trunkline:route:' .. string.sub(head, 16), 't')
  return type(route) == 'string' and (tonumber(route) or 0) > tonumber(token)
end
"""


def _script(text: str) -> Script:
    return Script(_PRELUDE + text)


# In a head, `w` is the token under which `v` and the list were written; `p` and `n` are the token and number of the
# last write, which may have gone aside.
_WRITE = _script("""
local at, outcomes = 2, {}
for i = 1, #KEYS, 3 do
  local head, list, aside = KEYS[i], KEYS[i + 1], KEYS[i + 2]
  local token, number, sealed = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local length, trim, target = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5]
  local first, last = at + 7, at + 6 + tonumber(ARGV[at + 6])
  local goes_to = target == 'journal' and list or aside
  local known = read(head, 't', 'p', 'n')
  local before = -1
  if known[2] == token then before = tonumber(known[3]) end
  if is_taken(head, token) or known[1] and tonumber(known[1]) > tonumber(token) then
    outcomes[#outcomes + 1] = 'fenced'
  elseif before >= number or length >= 0 and (before ~= number - 1 or redis.pcall('LLEN', goes_to) ~= length) then
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
""")

# A head without `v` only locks out earlier owners.
_TAKE = _script("""
if is_taken(KEYS[1], ARGV[1]) then return {} end
local known, length = read(KEYS[1], 't', 'w', 'v'), redis.pcall('LLEN', KEYS[2])
if not known[3] or type(length) == 'table' or tonumber(known[1]) > tonumber(ARGV[1]) then return false end
redis.call('HSET', KEYS[1], 't', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {known[2], known[3], length}
""")

_TOUCH = _script("""
local missing = {}
for i = 1, #KEYS, 3 do
  local index = (i + 2) / 3
  if read(KEYS[i], 'p')[1] ~= ARGV[1 + index] then missing[#missing + 1] = index end
  for j = i, i + 2 do redis.call('PEXPIRE', KEYS[j], ARGV[1]) end
end
return missing
""")

_DELETE = _script("""
for i = 1, #KEYS, 3 do
  local known, token = read(KEYS[i], 't')[1], ARGV[(i + 2) / 3]
  if known and tonumber(known) <= tonumber(token) and not is_taken(KEYS[i], token) then
    redis.call('DEL', KEYS[i], KEYS[i + 1], KEYS[i + 2])
  end
end
""")


@contextmanager
def _understood() -> Iterator[None]:
    """Raises RoutesUnavailable for a reply that none of our scripts gives: it was damaged on the way."""
    try:
        yield
    except (ValueError, TypeError, IndexError, KeyError):
        raise RoutesUnavailable from None


class RedisJournalStore:
    """Journals in Redis (6.2 or later). Needs a connection of its own, so that large writes delay nothing else."""

    def __init__(self, connection: RedisConnection, kept_s: float = KEPT_S) -> None:
        self._connection, self._kept_ms = connection, round(kept_s * 1000)

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
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
        # Pages are consistent with each other, because other writers are locked out.
        found = await self._connection.run(_TAKE, _keys([key]), [token, self._kept_ms])
        if found is None:
            return None
        with _understood():  # an empty reply means that another node has taken over the session
            written_under, head, length = int(found[0]), bytes(found[1]), int(found[2])
        entries: list[bytes] = []
        while len(entries) < length:
            page = await self._connection.execute("LRANGE", _keys([key])[1], len(entries), len(entries) + PAGE - 1)
            if not page:
                break
            with _understood():
                entries += [memoryview(entry).tobytes() for entry in page]
        return Journaled(written_under, head, entries)

    async def touch(self, journals: Sequence[tuple[str, int]]) -> list[str]:
        arguments = [self._kept_ms, *(token for _, token in journals)]
        missing = await self._connection.run(_TOUCH, _keys(key for key, _ in journals), arguments)
        with _understood():
            return [journals[index - 1][0] for index in missing]

    async def delete(self, journals: Sequence[tuple[str, int]]) -> None:
        await self._connection.run(_DELETE, _keys(key for key, _ in journals), [token for _, token in journals])


def _keys(keys: Iterable[str]) -> list[str]:
    """The Redis keys of each journal: its head, its entries, and the replacement being collected."""
    return [f"trunkline:{part}:{key}" for key in keys for part in ("head", "log", "aside")]
