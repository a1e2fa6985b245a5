"""RedisConnection: deadlines, the breaker, and answers that reach only who has asked, over a real Redis."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from redis.asyncio import Connection

from app.cluster.redis._waiting_commands import DEADLINE_S, USUAL_DEADLINES, Deadlines
from app.cluster.redis.connection import OPENS_AFTER, RedisConnection, Script
from app.errors import RoutesUnavailable
from tests.cluster.redis.faulty_line import faulty_line
from tests.cluster.routing.rig import connected, counted, errors, refused_after
from tests.redis_servers import RedisServer

SOON_S = 5.0  # promised: recovered within it
LOOK_S = 0.005
LATE = Deadlines(command_s=0.25, silence_s=60)  # Redis is late, and not taken for dead
ANSWER = Script("return 'done'")


@pytest.fixture
async def redis(empty_redis: str) -> AsyncIterator[RedisConnection]:
    """Of a node that has patience."""
    async with connected(empty_redis) as redis:
        yield redis


@pytest.fixture
async def strict(empty_redis: str) -> AsyncIterator[RedisConnection]:
    """With the deadlines that nodes have."""
    async with connected(empty_redis, deadlines=USUAL_DEADLINES) as redis:
        yield redis


async def until(condition: Callable[[], bool], within_s: float = SOON_S) -> None:
    """Of the seconds only those count in which the event loop could turn."""
    for _ in range(round(within_s / LOOK_S)):
        if condition():
            return
        await anyio.sleep(LOOK_S)
    raise TimeoutError


async def test_commands_and_pipelines_are_answered(redis: RedisConnection):
    assert await redis.execute("SET", "a", 1) == b"OK"
    assert await redis.pipeline([("GET", "a"), ("INCR", "a"), ("GET", b"none")]) == [b"1", 2, None]
    assert await redis.pipeline([]) == []
    assert redis.is_up
    assert redis.problem is None


async def test_a_script_runs_whether_redis_knows_it_or_not(redis: RedisConnection):
    script = Script("return {KEYS[1], ARGV[1], #KEYS}")
    for _ in range(2):
        assert await redis.run(script, ["key"], ["value"]) == [b"key", b"value", 1]
    await redis.execute("SCRIPT", "FLUSH")
    assert await redis.run(script, ["key"], [b"\xff"]) == [b"key", b"\xff", 1]


async def test_an_error_answer_is_routes_unavailable_and_harms_no_other(
    empty_redis: str, caplog: pytest.LogCaptureFixture
):
    counter = errors()
    async with connected(empty_redis, counter) as redis:
        with caplog.at_level(logging.ERROR):
            for _ in range(20):  # more than open a breaker
                with pytest.raises(RoutesUnavailable):
                    await redis.pipeline([("PING",), ("NO-SUCH-COMMAND",), ("PING",)])
        assert await redis.run(ANSWER, [], patience_s=60) == b"done"
        assert counted(counter) == {"refused": 20}
        assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "said",
    [
        "READONLY You can't write against a read only replica. script: 5e1, on @user_script:5.",
        "ERR Error running script (f_5): @user_script:5: -READONLY You can't write against a read only replica.",
        "MASTERDOWN Connection with MASTER is down and replica-serve-stale-data is set to 'no'.",
    ],
    ids=["Redis 7", "Redis 6.2", "without its master"],
)
async def test_a_script_that_a_replica_refuses_has_the_master_looked_for(redis: RedisConnection, said: str):
    generation = redis.generation
    with pytest.raises(RoutesUnavailable):
        await redis.run(Script("return redis.error_reply(ARGV[1])"), [], [said])
    await until(lambda: redis.is_up and redis.generation > generation)


async def test_a_connection_that_was_lost_in_the_same_turn_is_no_error_of_ours(
    redis: RedisConnection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    async def closed(connection: Connection, *args: Any, **options: Any) -> None:
        """What uvloop says between the end of the connection and the turn in which its reader hears of it."""
        connection._writer.transport.abort()
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    await redis.execute("PING")
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send_packed_command", closed)
        with pytest.raises(RoutesUnavailable):
            await redis.execute("PING")
    await until(lambda: redis.is_up)
    assert await redis.run(ANSWER, [], patience_s=60) == b"done"
    assert not [record for record in caplog.records if record.exc_info], caplog.text


async def test_a_thousand_callers_at_once_get_their_own_answers(redis: RedisConnection):
    answers = await asyncio.gather(*(redis.execute("ECHO", number) for number in range(1000)))
    assert answers == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_cancelled_commands_never_give_another_its_value(redis: RedisConnection, count: int):
    chance = random.Random(1)
    wrong = done = cancelled = 0

    async def ask(number: int) -> None:
        nonlocal wrong, done, cancelled
        with anyio.move_on_after(chance.choice([0, 0.0001, 0.0005, 0.002, 60])):
            answers = await redis.pipeline([("ECHO", f"{number}-{part}") for part in range(number % 3 + 1)])
            wrong += answers != [b"%d-%d" % (number, part) for part in range(number % 3 + 1)]
            done += 1
            return
        cancelled += 1

    for start in range(0, count, 100):
        async with anyio.create_task_group() as tasks:
            for number in range(start, start + 100):
                tasks.start_soon(ask, number)
    assert wrong == 0
    assert done + cancelled == count
    assert min(done, cancelled) > count / 10
    assert redis.generation == 1  # nobody's cancel has cost the others their connection


async def test_tasks_cancelled_from_outside_take_nothing_with_them(redis: RedisConnection):
    for number in range(300):
        asked = asyncio.ensure_future(redis.execute("ECHO", number))
        await asyncio.sleep(0)
        asked.cancel()
        assert await redis.execute("ECHO", f"next {number}") == f"next {number}".encode()


async def test_a_frozen_redis_is_refused_in_time_and_is_back_after_it(redis_server: RedisServer):
    counter = errors()
    async with connected(redis_server.url, counter, USUAL_DEADLINES) as redis:
        redis_server.freeze()
        waits = [await refused_after(redis.execute("PING")) for _ in range(OPENS_AFTER)]
        assert max(waits) < 2 * DEADLINE_S
        assert max([await refused_after(redis.execute("PING")) for _ in range(50)]) < 0.05
        assert redis.problem is not None
        assert counted(counter)["breaker"] >= 50
        redis_server.thaw()
        await until(lambda: redis.is_up)
        assert await redis.run(ANSWER, [], patience_s=60) == b"done"
        assert redis.problem is None


async def test_many_who_wait_for_a_frozen_redis_all_hear_within_a_second(redis_server: RedisServer):
    async with connected(redis_server.url, errors(), USUAL_DEADLINES) as redis:
        redis_server.freeze()
        asked = [asyncio.ensure_future(redis.execute("PING")) for _ in range(2000)]
        assert await refused_after(asyncio.gather(*asked)) < 1.0
        assert await refused_after(asked[-1]) < 1.0
        assert {type(each.exception()) for each in asked} == {RoutesUnavailable}
        redis_server.thaw()
        await until(lambda: redis.is_up)


async def test_the_event_loop_stays_free_while_redis_is_frozen(redis_server: RedisServer):
    async with connected(redis_server.url, errors(), USUAL_DEADLINES) as redis:
        redis_server.freeze()
        longest, last = 0.0, time.thread_time()  # what a turn works, not what it waits for the processor
        asked = asyncio.gather(*(redis.execute("PING") for _ in range(200)), return_exceptions=True)
        while not asked.done():
            await asyncio.sleep(0.001)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()
        assert longest < 0.2


async def test_who_asks_for_another_connection_gets_one_though_the_old_one_seems_well(redis_server: RedisServer):
    async with faulty_line(redis_server.url) as line, connected(line.url, deadlines=USUAL_DEADLINES) as redis:
        line.die()
        assert redis.is_up
        waiting = asyncio.ensure_future(redis.execute("PING"))
        await asyncio.sleep(0)
        await redis.reconnect(60)
        assert (redis.generation, await redis.execute("PING")) == (2, b"PONG")
        with pytest.raises(RoutesUnavailable):
            await waiting


async def test_who_asks_for_another_connection_is_told_that_there_is_none_in_time(redis_server: RedisServer):
    async with connected(redis_server.url, errors(), USUAL_DEADLINES) as redis:
        redis_server.freeze()
        began = time.monotonic()
        assert await refused_after(redis.reconnect(0.3)) < SOON_S
        assert time.monotonic() - began > 0.1  # the clock of the event loop is a turn old
        redis_server.thaw()
        await until(lambda: redis.is_up)


async def test_a_node_that_stood_still_itself_gets_its_answers(strict: RedisConnection):
    redis = strict
    await redis.execute("PING")
    for number in range(OPENS_AFTER):
        asked = [asyncio.ensure_future(redis.execute("ECHO", number)) for _ in range(20)]
        await asyncio.sleep(0)
        time.sleep(2 * DEADLINE_S)  # calm: the whole event loop stands still
        assert await asyncio.gather(*asked) == [b"%d" % number] * 20
    assert redis.generation == 1


async def test_answers_are_seen_however_slowly_the_event_loop_turns(strict: RedisConnection):
    redis = strict

    async def dawdle() -> None:
        while True:
            time.sleep(DEADLINE_S)  # somebody else has the processor, again and again
            await asyncio.sleep(0)

    dawdling = asyncio.ensure_future(dawdle())
    try:
        assert await redis.execute("ECHO", "late") == b"late"
    finally:
        dawdling.cancel()
    assert redis.generation == 1


async def test_a_slow_answer_costs_neither_the_connection_nor_who_asks_later(redis_server: RedisServer):
    counter = errors()
    async with connected(redis_server.url, counter, LATE) as redis:
        redis_server.freeze()
        patient = asyncio.ensure_future(redis.run(ANSWER, [], patience_s=60))
        assert await refused_after(redis.execute("ECHO", "too late")) < 0.7
        redis_server.thaw()
        assert await patient == b"done"
        assert await redis.run(ANSWER, [], patience_s=60) == b"done"
        assert await redis.execute("ECHO", "later") == b"later"
        assert redis.generation == 1
        assert redis.is_up
        assert counted(counter) == {"timeout": 1}


async def test_who_has_patience_hears_as_soon_as_everybody_that_redis_is_frozen(redis_server: RedisServer):
    async with connected(redis_server.url, errors(), USUAL_DEADLINES) as redis:
        redis_server.freeze()
        assert await refused_after(redis.run(ANSWER, [], patience_s=60)) < 1.0
        assert await refused_after(redis.run(ANSWER, [], patience_s=60)) < 0.05
        redis_server.thaw()
        await until(lambda: redis.is_up)


async def test_patience_has_an_end(redis_server: RedisServer):
    async with connected(redis_server.url, deadlines=LATE) as redis:
        redis_server.freeze()
        assert await refused_after(redis.run(ANSWER, [], patience_s=0.1)) < 0.5
        redis_server.thaw()
        assert await redis.run(ANSWER, [], patience_s=60) == b"done"
        assert redis.generation == 1


async def test_a_redis_that_is_killed_and_restarted_is_used_again(redis_server: RedisServer):
    async with RedisConnection(redis_server.url, errors()) as redis:
        for generation in range(1, 4):
            await until(lambda: redis.is_up)
            assert await redis.run(ANSWER, [], patience_s=60) == b"done"
            assert redis.generation == generation
            redis_server.kill()
            for _ in range(20):
                assert await refused_after(redis.execute("PING")) < 1.0
            redis_server.start()
        await until(lambda: redis.is_up)


async def test_a_redis_that_is_not_there_at_the_start_is_found_when_it_comes(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    redis_server.kill()
    async with RedisConnection(redis_server.url, errors()) as redis:
        assert await refused_after(redis.execute("PING")) < 1.0
        assert redis.problem is not None
        await until(lambda: "Redis is unavailable for routes, reconnecting: " in caplog.text)
        redis_server.start()
        await until(lambda: redis.is_up)
        assert await redis.run(ANSWER, [], patience_s=60) == b"done"


async def test_nothing_that_was_cancelled_before_it_was_sent_is_carried_out(redis_server: RedisServer):
    redis_server.kill()
    async with RedisConnection(redis_server.url, errors()) as redis:
        asked = asyncio.ensure_future(redis.execute("SET", "written", 1))
        await asyncio.sleep(0)
        asked.cancel()
        redis_server.start()
        await until(lambda: redis.is_up)
        assert await redis.execute("GET", "written") is None


async def test_an_eviction_policy_that_loses_routes_is_a_problem(caplog: pytest.LogCaptureFixture):
    with RedisServer("--maxmemory-policy", "allkeys-lru") as server:
        async with connected(server.url) as redis:
            assert redis.is_up
            assert "allkeys-lru" in str(redis.problem)
            assert "noeviction" in caplog.text


async def test_where_config_may_not_be_asked_nothing_is_said():
    with RedisServer("--rename-command", "CONFIG", "") as server:
        async with connected(server.url) as redis:
            assert redis.problem is None


async def test_a_password_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture):
    with RedisServer("--requirepass", "right") as server:
        url = server.url.replace("redis://", "redis://:{}@")
        async with connected(url.format("right")) as redis:
            assert await redis.run(ANSWER, [], patience_s=60) == b"done"
        async with RedisConnection(url.format("wrong-one"), errors()) as redis:
            await refused_after(redis.execute("PING"))
            assert "wrong-one" not in f"{redis.problem}{caplog.text}"


async def test_a_unix_socket_is_as_good(tmp_path):
    with RedisServer("--unixsocket", f"{tmp_path}/redis.sock") as server, server.client() as client:
        client.set("here", "yes")
        async with connected(f"unix://{tmp_path}/redis.sock?db=0") as redis:
            assert await redis.execute("GET", "here") == b"yes"


async def test_a_blocking_read_waits_as_long_as_it_was_told(redis: RedisConnection):
    client = redis.blocking_client()
    try:
        started = time.monotonic()
        assert not await client.xread({"stream": "$"}, block=400)
        assert 0.4 <= time.monotonic() - started < 30.0
    finally:
        await client.aclose()


async def test_closing_frees_who_waits_and_can_be_done_twice(redis_server: RedisServer):
    redis = RedisConnection(redis_server.url, errors())
    async with redis:
        await redis.execute("PING")
        redis_server.freeze()
        asked = asyncio.ensure_future(redis.execute("PING"))
        await asyncio.sleep(0)
        await redis.aclose()
        with pytest.raises(RoutesUnavailable):
            await asked
    await redis.aclose()
    assert await refused_after(redis.execute("PING")) < 0.05


async def test_an_owner_that_is_cancelled_leaves_no_connection(redis_server: RedisServer):
    with anyio.move_on_after(0.2):
        async with RedisConnection(redis_server.url, errors()) as redis:
            await redis.execute("PING")
            await anyio.sleep_forever()
    with redis_server.client() as client:
        await until(lambda: len(client.client_list()) == 1)
