"""The Lua scripts, each one atomic step in Redis. They use commands of Redis 6.2 only.

A route is a hash: `n` its node ("" after a hand-over, or an end under a later owner), `t` its token, `v` the sealed
record. Scripts make names of further keys themselves, which is why Redis Cluster is not supported.
"""

from app.cluster.redis import key_check
from app.cluster.redis.connection import Script

# A key of another type was not written by us: it counts as absent, and is deleted.
_PRELUDE = """
local prefix = 'trunkline:'
local function read(name)
  local record = redis.pcall('HMGET', name, 'n', 't', 'v')
  if record.err then redis.call('DEL', name) return nil end
  if not (record[1] and record[2] and record[3]) then return nil end
  return record
end
local function write(name, node, token, value, ttl)
  redis.call('HSET', name, 'n', node, 't', token, 'v', value)
  redis.call('PEXPIRE', name, ttl)
end
local function lives(node)
  return node ~= '' and redis.call('EXISTS', prefix .. 'node:' .. node) == 1
end
local function count(name, node, by, ttl)
  local now = redis.pcall('HINCRBY', name, node, by)
  if type(now) == 'table' then redis.call('DEL', name) now = redis.call('HINCRBY', name, node, by) end
  if now <= 0 then redis.call('HDEL', name, node) end
  redis.call('PEXPIRE', name, ttl)
end
"""


def _of_routes(text: str) -> Script:
    return Script(_PRELUDE + text)


# keys: route -> {node, token, value, owner lives, is settling}
FIND = _of_routes("""
local settling = redis.call('EXISTS', prefix .. 'epoch') == 0 or redis.call('EXISTS', prefix .. 'settling') == 1
local record = read(KEYS[1])
if not record then return {'', '', '', 0, settling and 1 or 0} end
return {record[1], record[2], record[3], lives(record[1]) and 1 or 0, settling and 1 or 0}
""")

# keys: route[, sessions of the tenant, of the principal]; arguments: node, token, value, ttl[, limit, limit] (-1: none)
# -> {'won'} | {'owned' | 'stale', node, token, value} | {'full', which of the keys, how many}
CLAIM = _of_routes("""
local node, token, value, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local record = read(KEYS[1])
if record then
  if record[1] == node or lives(record[1]) then return {'owned', record[1], record[2], record[3]} end
  if tonumber(record[2]) ~= token - 1 then return {'stale', record[1], record[2], record[3]} end
end
for which = 2, #KEYS do
  local limit, sum = tonumber(ARGV[3 + which]), 0
  if limit >= 0 then
    local counts = redis.pcall('HGETALL', KEYS[which])
    if counts.err then redis.call('DEL', KEYS[which]) counts = {} end
    for i = 1, #counts, 2 do
      if counts[i] == node or lives(counts[i]) then sum = sum + (tonumber(counts[i + 1]) or 0)
      else redis.call('HDEL', KEYS[which], counts[i]) end
    end
    if sum >= limit then return {'full', which, sum} end
  end
end
write(KEYS[1], node, token, value, ttl)
for which = 2, #KEYS do count(KEYS[which], node, 1, ttl) end
return {'won'}
""")

# keys: route[, sessions of the tenant, of the principal]; arguments: node, token as found; new node, value, ttl
# -> 1 where it is the new node's, with the next token
TAKE_OVER = _of_routes("""
local node, token, taker, value, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local record = read(KEYS[1])
if not record then return 0 end
-- A repetition: the first answer got lost.
if record[1] == taker and tonumber(record[2]) == token + 1 then return 1 end
if record[1] ~= node or tonumber(record[2]) ~= token or lives(node) then return 0 end
write(KEYS[1], taker, token + 1, value, ttl)
for which = 2, #KEYS do
  -- Sessions of a node without a lease do not count; if it returns, it writes its counts again.
  if node ~= '' and redis.call('TYPE', KEYS[which]).ok == 'hash' then redis.call('HDEL', KEYS[which], node) end
  count(KEYS[which], taker, 1, ttl)
end
return 1
""")

# keys: routes; arguments: node, ttl, then token and value for each; without a value nothing is written
# -> for each 0: ours; 1: send it with its value; {node, token, value}: another's
REFRESH = _of_routes("""
local node, ttl, answers = ARGV[1], ARGV[2], {}
for i, name in ipairs(KEYS) do
  local token, value, record = tonumber(ARGV[1 + 2 * i]), ARGV[2 + 2 * i], read(KEYS[i])
  local theirs = record and tonumber(record[2]) or -1
  if theirs > token or (theirs == token and record[1] ~= node) then
    answers[i] = {record[1], record[2], record[3]}
  elseif value ~= '' then
    write(name, node, token, value, ttl)
    answers[i] = 0
  elseif theirs == token then
    redis.call('PEXPIRE', name, ttl)
    answers[i] = 0
  else
    answers[i] = 1
  end
end
return answers
""")

# keys: route[, sessions of the tenant, of the principal]; arguments: node, token, ttl[, value of what stays of it]
RELEASE = _of_routes("""
local node, token, ttl, value = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local record = read(KEYS[1])
if not record or record[1] ~= node or tonumber(record[2]) ~= token then return 0 end
if value then write(KEYS[1], '', token, value, ttl) else redis.call('DEL', KEYS[1]) end
for which = 2, #KEYS do count(KEYS[which], node, -1, ttl) end
return 1
""")

# keys: route; arguments: node, token and value that do not open, and the check value of our secret key, or ''. Deletes
# the route only if it still has this value, which may have been damaged on the way, and if this Redis is ours.
DROP = _of_routes("""
if ARGV[4] ~= '' and redis.pcall('GET', prefix .. 'key') ~= ARGV[4] then return 0 end
local record = read(KEYS[1])
for i = 1, 3 do
  if not record or record[i] ~= ARGV[i] then return 0 end
end
redis.call('DEL', KEYS[1])
return 0
""")

# The list of nodes has a version: the epoch, and the number of changes since.
_NODES_PRELUDE = """
local function changed()
  if type(redis.pcall('INCR', prefix .. 'changes')) == 'table' then redis.call('DEL', prefix .. 'changes') end
end
local function version()
  return tostring(redis.pcall('GET', prefix .. 'epoch')) .. ':' .. tostring(redis.pcall('GET', prefix .. 'changes'))
end
"""


def _of_nodes(text: str) -> Script:
    return _of_routes(_NODES_PRELUDE + text)


# arguments: node, value, lease, a name for a new epoch, how long a new one settles, the value of the last beat, 1 if
# other nodes should read this one soon, the check value of our secret key or '', how long it is kept
# -> {1 if Redis holds what the last beat wrote, version of the list}; {-1} if nodes with another key use this Redis
BEAT = _of_nodes(
    key_check.FITS
    + """
if ARGV[8] ~= '' and not fits(ARGV[8], ARGV[9]) then return {-1} end
local lease = prefix .. 'node:' .. ARGV[1]
local known = redis.pcall('GET', lease) == ARGV[6] and 1 or 0
redis.call('SET', lease, ARGV[2], 'PX', ARGV[3])
local new = redis.pcall('SADD', prefix .. 'nodes', ARGV[1])
if type(new) == 'table' then
  redis.call('DEL', prefix .. 'nodes')
  new = redis.call('SADD', prefix .. 'nodes', ARGV[1])
end
if redis.call('SET', prefix .. 'epoch', ARGV[4], 'NX') then
  redis.call('SET', prefix .. 'settling', ARGV[4], 'PX', ARGV[5])
end
if new == 1 or ARGV[7] == '1' then changed() end
return {known, version()}
"""
)

# arguments: node
LEAVE = _of_nodes("""
redis.call('DEL', prefix .. 'node:' .. ARGV[1])
if redis.pcall('SREM', prefix .. 'nodes', ARGV[1]) == 1 then changed() end
return 0
""")

# -> version of the list; node, value, ... of those with a lease
NODES = _of_nodes("""
local found, ids, gone = {''}, redis.pcall('SMEMBERS', prefix .. 'nodes'), false
for _, id in ipairs(ids) do
  local value = redis.pcall('GET', prefix .. 'node:' .. id)
  if type(value) == 'string' then
    found[#found + 1] = id
    found[#found + 1] = value
  else
    redis.call('SREM', prefix .. 'nodes', id)
    gone = true
  end
end
if gone then changed() end
found[1] = version()
return found
""")

# keys: counts; arguments: node, ttl, then for each how many sessions the node has
RECOUNT = _of_routes("""
local node, ttl = ARGV[1], ARGV[2]
for i, name in ipairs(KEYS) do
  local sessions = tonumber(ARGV[2 + i])
  if redis.call('TYPE', name).ok ~= 'hash' then redis.call('DEL', name) end
  if sessions > 0 then
    redis.call('HSET', name, node, sessions)
    redis.call('PEXPIRE', name, ttl)
  else redis.call('HDEL', name, node) end
end
return 0
""")
