"""Overdue: which silence is one, and which only looks so."""

import time
from collections.abc import Callable

import anyio
import psutil
import pytest

from app.cluster.routing.heartbeat import HURRY_S, Heartbeat
from app.cluster.routing.redis_store import Overdue
from app.sessions.routes import BEAT_S, LEASE_S
from tests.cluster.routing.rig import NODES, open_store, record
from tests.integration.stopwatch import stopwatch_of
from tests.redis_servers import client_of

A, B = b"a", b"b"


def reads(overdue: Overdue, *, until_s: float, dies_at: float = 1e9, phase: float = 0.5):
    """B beats at `phase` past each second until it dies, and is read each second: when its end was expected."""
    expected = []
    for beat in range(int(until_s / BEAT_S)):
        now = beat * BEAT_S
        last_beat = min(now, dies_at) - (min(now, dies_at) - phase) % BEAT_S
        lives = now < last_beat + LEASE_S
        overdue.read({A: f"a{beat}".encode(), **({B: f"b{last_beat}".encode()} if lives else {})}, now)
        if overdue.is_any(now):
            expected.append(now)
    return expected


def test_nodes_that_beat_are_expected_to_go_on():
    assert reads(Overdue(), until_s=30) == []


@pytest.mark.parametrize("phase", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("dies_at", [10.0, 10.3, 10.999])
def test_the_end_of_a_lease_is_expected_in_the_beat_in_which_it_comes_and_not_long_before(dies_at, phase):
    last_beat = dies_at - (dies_at - phase) % BEAT_S
    expected = reads(Overdue(), until_s=30, dies_at=dies_at, phase=phase)
    assert any(at <= last_beat + LEASE_S <= at + BEAT_S for at in expected)
    assert expected[0] >= last_beat + LEASE_S - 2 * BEAT_S
    assert expected[-1] < last_beat + LEASE_S, "nobody waits for what is gone"


def test_after_a_time_without_reads_nobody_knows_who_has_beaten():
    overdue = Overdue()
    overdue.read({B: b"said"}, 0.0)
    assert not overdue.is_any(4.5)
    overdue.read({B: b"said"}, 4.5)
    assert not overdue.is_any(4.5)
    overdue.read({B: b"said"}, 5.5)
    assert not overdue.is_any(5.5)


def test_nothing_is_expected_before_anything_was_read():
    assert not Overdue().is_any(100.0)


async def test_the_end_of_a_lease_is_noticed_within_a_quarter_of_a_beat(empty_redis):
    """However the beats of the two nodes lie to each other."""
    node, other, _ = NODES
    async with open_store(empty_redis) as mine, open_store(empty_redis) as theirs:
        heart = Heartbeat(mine, lambda: record(node), list, lambda route: None, time.monotonic)
        redis = psutil.Process(redis_pid(empty_redis))
        async with stopwatch_of([redis]) as watch, anyio.create_task_group() as tasks:
            tasks.start_soon(heart.run)
            await until(lambda: heart.is_ok)
            began_at = time.monotonic()
            while time.monotonic() < began_at + 2.2 * BEAT_S:  # the last beat just after one of the first node's
                last_beat, last_beat_by_watch = time.monotonic(), watch.seconds
                await theirs.beat(record(other))
                await anyio.sleep(0.2)
            assert other in heart.peers
            await until(lambda: other not in heart.peers)
            assert time.monotonic() - last_beat >= LEASE_S
            late_s = watch.seconds - last_beat_by_watch - LEASE_S  # without what the machine was late
            tasks.cancel_scope.cancel()
    print(f"\nnoticed {late_s * 1000:.0f} ms after the end of its lease")
    assert late_s < HURRY_S + 0.1
    assert other in heart.departed


def redis_pid(url: str) -> int:
    with client_of(url) as client:
        return int(client.info("server")["process_id"])


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not is_so():
            await anyio.sleep(0.005)
