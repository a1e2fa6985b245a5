"""key_check: whether the nodes that share a Redis share their secret key. One that has another cannot open what the
others have written, and would take it for forged.

Beside the routes stands a MAC of a constant under the key. Whoever comes first writes it; every beat keeps it for as
long as routes are kept, so that a key can be changed once no node has beaten for that long.
"""

import hmac

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

NAME = "trunkline:key"
KEPT_MS = 600_000  # as routes: then nothing is left that the old key has sealed
_LABEL = b"trunkline key check 1"

# For scripts: whether the value is ours by now. One of another type was not written by us.
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
    """It is used by nodes with another TRUNKLINE_SECRET_KEY."""


def check_value(secret_key: bytes) -> bytes:
    """What stands there; says nothing about the key to whoever does not have it."""
    return hmac.digest(secret_key, _LABEL, "sha256").hex().encode()


async def claim(connection: AbstractConnection, value: bytes) -> None:
    """Writes the value, or compares it. A Redis that does not let us is found out by the next beat.

    Raises:
        OtherKey: it is another one.
    """
    await connection.send_command("EVAL", _CLAIM, 0, value, KEPT_MS)
    try:
        fits = await connection.read_response()
    except ReadOnlyError:
        raise
    except ResponseError:
        return
    if not fits:
        raise OtherKey("it is used by nodes with another TRUNKLINE_SECRET_KEY")
