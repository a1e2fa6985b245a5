"""ClusterRates: the rates of tenants (requests, starts of processes), each one over all nodes.

Each node spends from its own TokenBucket. Every EVERY_S it reports what it has spent to the shared bucket in Redis and
adopts that one's level. If the nodes together spend more than the rate, the shared level becomes negative: over time
the rate is exact; at any moment it is exceeded by at most a burst per node.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from app.cluster._periodic import repeat
from app.errors import GatewayError
from app.limits.bucket import TokenBucket

EVERY_S = 0.05
BATCH = 500  # tenants per call of the script: it takes less than 2 ms
KEY = "trunkline:rate:"

# For each key: rate, burst, spent. A bucket is stored as "level time". A missing one is full, so it expires when it is
# full. The debt is limited to 64 bursts, because the stored value may be forged. (x == x: it is not nan.)
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


class Rates(Protocol):
    """Has buckets that all nodes share (`limits.tenant_limits.TenantGates`, `limits.tenant_budgets.TenantBudgets`)."""

    def buckets(self) -> Iterable[tuple[str, TokenBucket]]:
        """By names that are the same on every node."""

    def prune(self, now: float) -> None:
        """Called in each round."""


class ClusterRates:
    """`run` is a task of the node. While Redis is away each node applies the limits by itself."""

    def __init__(self, rates: Sequence[Rates], run_script: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._rates, self._run_script, self._clock = rates, run_script, clock

    async def run(self) -> None:
        await repeat(self.round, EVERY_S, "Could not share the rates of tenants with other nodes; will retry")

    async def round(self) -> None:
        """Reports what tenants have spent. Does not raise if Redis is away."""
        spenders = [each for rates in self._rates for each in rates.buckets() if each[1].spent]
        for start in range(0, len(spenders), BATCH):
            try:
                await self._share(spenders[start : start + BATCH])
            except GatewayError:
                # Unreported spending is forgotten: tenants must not pay for the outage.
                for _, bucket in spenders[start:]:
                    bucket.tell()
                return
        for rates in self._rates:
            rates.prune(self._clock())

    async def _share(self, batch: Sequence[tuple[str, TokenBucket]]) -> None:
        arguments: list[float] = []
        for _, bucket in batch:
            arguments += (bucket.rate, bucket.burst, bucket.tell())
        levels = await self._run_script([KEY + name for name, _ in batch], arguments)
        now = self._clock()
        for (_, bucket), level in zip(batch, levels, strict=True):
            bucket.adopt(float(level), now)
