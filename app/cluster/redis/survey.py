"""survey: checks a Redis before a node uses it. Changes nothing there."""

import re
import time
from statistics import median
from typing import Any, NamedTuple

import anyio
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import MasterDownError, ReadOnlyError, RedisError, ResponseError

from app.cluster.redis import _address as redis_address
from app.errors import RoutesUnavailable

# Redis 7 says behind an error where in a script it was, Redis 6 in front.
_IN_SCRIPT = re.compile(
    r" script: [0-9a-f]{40}, on @user_script:\d+\.?$"
    r"|^(ERR )?Error running script .*?: -(?=[A-Z]+ )"
)
WITHIN_S = 3.0  # for connecting (with sentinels) and a dozen short commands
PINGS = 5


class Survey(NamedTuple):
    """`policy` is None if Redis does not tell it. `ahead_s`: of this machine's clock, plus or minus the latency."""

    version: tuple[int, ...]
    policy: str | None
    ahead_s: float
    latency_s: float


async def survey(url: str) -> Survey:
    """Asks the Redis at this URL; with sentinels, the master.

    Raises:
        RoutesUnavailable: no answer, or not one of Redis; the message gives the cause, without the password.
        ValueError: unsupported URL.
    """
    pool = redis_address.parse(url).pool()
    connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        with anyio.fail_after(WITHIN_S):
            await connection.connect()  # type: ignore[no-untyped-call]
            return await _look(connection)
    except TimeoutError:
        raise RoutesUnavailable(f"no answer within {WITHIN_S:.0f} s") from None
    except (RedisError, OSError) as error:
        raise RoutesUnavailable(in_one_line(error)) from None
    finally:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
            await pool.aclose()


async def _look(connection: AbstractConnection) -> Survey:
    await ask(connection, "EVAL", "return 1", "0")  # routes are changed by scripts: they must be allowed
    facts = dict(
        line.split(":", 1) for line in (await ask(connection, "INFO", "server")).decode().splitlines() if ":" in line
    )
    version = tuple(int(part) for part in facts["redis_version"].split(".")[:2])
    times = [await _timed(connection) for _ in range(PINGS)]
    policy = await eviction_policy(connection)
    return Survey(version, policy, median(ahead for _, ahead in times), median(took for took, _ in times))


async def _timed(connection: AbstractConnection) -> tuple[float, float]:
    """How long an answer takes, and how far Redis's clock is ahead of ours, in seconds."""
    before, started = time.time(), time.perf_counter()
    seconds, microseconds = await ask(connection, "TIME")
    took = time.perf_counter() - started
    return took, int(seconds) + int(microseconds) / 1e6 - (before + took / 2)


async def eviction_policy(connection: AbstractConnection) -> str | None:
    """`maxmemory-policy`; None if Redis does not tell it."""
    try:
        answer = await ask(connection, "CONFIG", "GET", "maxmemory-policy")
    except ResponseError:
        return None
    return bytes(answer[1]).decode() if len(answer) == 2 else None


async def ask(connection: AbstractConnection, *command: str | bytes | int) -> Any:
    """The answer to one command. Raises RedisError or OSError."""
    await connection.send_command(*command)
    return await connection.read_response()


def is_of_replica(refusal: ResponseError) -> bool:
    """Whether this Redis is no longer the master. Redis 6 says it within the error of a script."""
    return isinstance(refusal, ReadOnlyError | MasterDownError) or ": -READONLY " in str(refusal)


def in_one_line(error: BaseException) -> str:
    """The text of an error of redis-py or of a timeout of ours, shortened; it may name a host, but never a password."""
    of_no_words = "it does not answer" if isinstance(error, TimeoutError) else type(error).__name__
    words = " ".join(str(error).split())
    if isinstance(error, ResponseError):  # each script has a number, and each line in it: one cause is one line
        words = _IN_SCRIPT.sub("", words)
    return words[:200] or of_no_words
