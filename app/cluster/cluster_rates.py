"""SharedRates: one rate per tenant, however many nodes its requests come to.

Each node spends from its own TokenBucket, without asking anybody. Every EVERY_S it tells Redis what it has spent, where
the true bucket is, and adopts the true level. What the nodes spend together above the rate in between makes the true
level negative, so over time the rate is exact; at once it is at most a burst per node.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from app.errors import GatewayError
from app.limits.bucket import TokenBucket
from app.limits.gates import TenantGates

EVERY_S = 0.05
LOT = 500  # tenants in one call of the script: it takes less than two milliseconds
KEY = "trunkline:rate:"

# For each key: rate, burst, spent. A bucket is "level time"; one that is gone is full, so it may go when it is. No
# debt is larger than a burst on each of 64 nodes: what stands there may be forged. (x == x: it is not nan.)
SCRIPT = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local levels = {}
for i, key in ipairs(KEYS) do
  local rate, burst, spent = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local level, at = string.match(redis.call('GET', key) or '', '^(%S+) (%S+)$')
  level, at = tonumber(level), tonumber(at)
  if level and at and level == level and at == at then
    level = math.min(burst, level + math.max(0, now - at) * rate)
  else
    level = burst
  end
  level = math.max(level, -64 * burst) - spent
  local full_in_ms = math.ceil((burst - level) / rate * 1000) + 1
  redis.call('SET', key, string.format('%.6f %.6f', level, now), 'PX', full_in_ms)
  levels[i] = string.format('%.6f', level)
end
return levels
"""

Run = Callable[[Sequence[Any], Sequence[Any]], Awaitable[Any]]
"""Runs the script with keys and arguments. Raises RoutesUnavailable."""

log = logging.getLogger(__name__)


class SharedRates:
    """Tells and adopts. `run` runs in a task of the node; while Redis is away each node's own limits go on."""

    def __init__(self, gates: TenantGates, run_script: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._gates, self._run_script, self._clock = gates, run_script, clock

    async def run(self) -> None:
        """Rounds until it is cancelled."""
        while True:
            await anyio.sleep(EVERY_S)
            try:
                await self.round()
            except Exception:
                log.exception("rates could not be shared")

    async def round(self) -> None:
        """One round: a call for all tenants that have spent anything. Never raises for a Redis that is away."""
        spenders = [(name, gate.bucket) for name, gate in self._gates if gate.bucket is not None and gate.bucket.spent]
        for start in range(0, len(spenders), LOT):
            lot = spenders[start : start + LOT]
            try:
                await self._share(lot)
            except GatewayError:
                # What was not told is left at that: to make the tenants pay for the outage would be another one.
                for _, bucket in spenders[start:]:
                    bucket.tell()
                return
        self._gates.prune(self._clock())

    async def _share(self, lot: Sequence[tuple[str, TokenBucket]]) -> None:
        arguments: list[float] = []
        for _, bucket in lot:
            arguments += (bucket.rate, bucket.burst, bucket.tell())
        levels = await self._run_script([KEY + name for name, _ in lot], arguments)
        now = self._clock()
        for (_, bucket), level in zip(lot, levels, strict=True):
            bucket.adopt(float(level), now)
