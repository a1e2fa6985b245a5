"""Latency: Redis is slow when several answers in a row were."""

from app.cluster.redis.latency import LOOKS, SLOW_S, Latency
from app.errors import RoutesUnavailable


async def test_only_several_slow_answers_in_a_row_count():
    now, takes = [0.0], [SLOW_S * 2]

    async def ask() -> None:
        now[0] += takes[0]

    latency = Latency(ask, lambda: now[0])
    for _ in range(LOOKS):
        assert latency.slow_s is None
        await latency.look()
    assert latency.slow_s is not None
    takes[0] = 0.001
    await latency.look()
    assert latency.slow_s is None


async def test_a_redis_that_is_away_is_not_slow():
    async def ask() -> None:
        raise RoutesUnavailable

    latency = Latency(ask)
    for _ in range(LOOKS):
        await latency.look()
    assert latency.slow_s is None
