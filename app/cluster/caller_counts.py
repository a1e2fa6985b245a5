"""CallerCounts: what callers have used of their limits over all nodes, in Redis."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.cluster.redis.connection import RedisConnection

KEY = "trunkline:calls:"
PAUSE_S = 0.01


class CallerCounts:
    """Fulfils `limits.caller_limits.CountStore`."""

    pause_s = PAUSE_S

    def __init__(self, redis: "RedisConnection") -> None:
        self._redis = redis

    async def add(self, counted: Sequence[tuple[str, int, int]]) -> Sequence[int]:
        """Raises RoutesUnavailable."""
        commands = list[Sequence[Any]]()
        for name, number, ends_at in counted:
            commands += [("INCRBY", KEY + name, number), ("EXPIREAT", KEY + name, ends_at)]
        return [int(each) for each in (await self._redis.pipeline(commands))[::2]]
