"""survey: how a Redis is, asked once by whoever wants to know before a node uses it. Changes nothing there."""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import anyio
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from app.errors import RoutesUnavailable
from app.redis import address as redis_address

WITHIN_S = 3.0  # connecting (with sentinels), and a dozen short commands
PINGS = 5


@dataclass(frozen=True, slots=True)
class Survey:
    """`policy` is None where Redis does not tell. `ahead_s`: of this machine's clock, give or take the latency."""

    version: tuple[int, ...]
    policy: str | None
    ahead_s: float
    latency_s: float


async def survey(url: str) -> Survey:
    """Asks the Redis at this URL; with sentinels, the master.

    Raises:
        RoutesUnavailable: it does not answer, or not as Redis; the message says why, and holds no password.
        ValueError: the URL is of no known form.
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
        raise RoutesUnavailable(" ".join(str(error).split())[:200] or type(error).__name__) from None
    finally:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
            await pool.aclose()


async def _look(connection: AbstractConnection) -> Survey:
    await _ask(connection, "EVAL", "return 1", "0")  # routes are changed by scripts: they must be allowed
    facts = dict(
        line.split(":", 1) for line in (await _ask(connection, "INFO", "server")).decode().splitlines() if ":" in line
    )
    version = tuple(int(part) for part in facts["redis_version"].split(".")[:2])
    times = [await _timed(connection) for _ in range(PINGS)]
    return Survey(
        version=version,
        policy=await _policy(connection),
        ahead_s=median(ahead for _, ahead in times),
        latency_s=median(took for took, _ in times),
    )


async def _timed(connection: AbstractConnection) -> tuple[float, float]:
    """How long an answer takes, and how far Redis's clock is ahead of ours."""
    before, started = time.time(), time.perf_counter()
    seconds, microseconds = await _ask(connection, "TIME")
    took = time.perf_counter() - started
    return took, int(seconds) + int(microseconds) / 1e6 - (before + took / 2)


async def _policy(connection: AbstractConnection) -> str | None:
    try:
        answer = await _ask(connection, "CONFIG", "GET", "maxmemory-policy")
    except ResponseError:
        return None
    return bytes(answer[1]).decode() if len(answer) == 2 else None


async def _ask(connection: AbstractConnection, *command: str) -> Any:
    await connection.send_command(*command)
    return await connection.read_response()
