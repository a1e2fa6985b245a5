"""key_check: makes sure that all nodes of a Redis have the same secret key. A node with another one could not open what
the others have written, and would take it for forged.

A MAC of a constant under the key is stored beside the routes. The first node writes it; each heartbeat extends it for
as long as routes are kept, so the key can be changed once no node has run for that long.
"""

import hmac

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from app.cluster.redis.survey import ask, is_of_replica

NAME = "trunkline:key"
KEPT_MS = 600_000  # as long as routes: afterwards nothing sealed with the old key is left
_LABEL = b"trunkline key check 1"

# For scripts: stores the value if there is none, and compares it. A key of another type was not written by us.
FITS = """
local function fits(value, ttl)
  local name = 'trunkline:key'
  local known = redis.pcall('GET', name)
  if type(known) ~= 'string' then
    redis.call('SET', name, value, 'PX', ttl)
    return true
  end
  if known ~= value then return false end
  redis.call('PEXPIRE', name, ttl)
  return true
end
"""

_CLAIM = FITS + "return fits(ARGV[1], ARGV[2]) and 1 or 0"


class OtherKey(RedisError):
    """The nodes that use this Redis have another TRUNKLINE_SECRET_KEY."""


def check_value(secret_key: bytes) -> bytes:
    """The stored value; it does not reveal the key."""
    return hmac.digest(secret_key, _LABEL, "sha256").hex().encode()


async def claim(connection: AbstractConnection, value: bytes) -> None:
    """Writes the value, or raises OtherKey if there is another one. Errors of the script show at the next heartbeat."""
    try:
        fits = await ask(connection, "EVAL", _CLAIM, 0, value, KEPT_MS)
    except ResponseError as refusal:
        if is_of_replica(refusal):
            raise
        return
    if not fits:
        raise OtherKey("it is used by nodes with another TRUNKLINE_SECRET_KEY")
