"""Notices over a real Redis, which is flushed, frozen, killed and tampered with."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from app.auth.sealing import Sealer
from app.cluster.redis._waiting_commands import USUAL_DEADLINES, Deadlines
from app.cluster.redis.connection import RedisConnection
from app.cluster.routing import notices
from app.cluster.routing.notices import STREAM, Notices
from tests.cluster.routing.rig import PATIENT, connected, errors
from tests.redis_servers import RedisServer, client_of

SEALS = Sealer(b"s" * 32)


class Node:
    """What one node says and hears."""

    def __init__(self, name: str, connection: RedisConnection) -> None:
        self.name, self.notices = name, Notices(connection, SEALS, name)
        self.looks, self.left = 0, list[str]()

    def look(self) -> None:
        self.looks += 1

    async def has_looked(self, times: int) -> None:
        await until(lambda: self.looks >= times)

    async def hears_again(self, say: Callable[[], None]) -> None:
        """Waits until it hears what another one says again and again: one may get lost."""
        looks = self.looks
        with anyio.fail_after(30):
            while self.looks == looks:
                say()
                await anyio.sleep(0.01)


@asynccontextmanager
async def nodes(url: str, count: int = 2, deadlines: Deadlines = PATIENT) -> AsyncIterator[list[Node]]:
    """Nodes that hear each other."""
    counter = errors()
    async with connected(url, counter, deadlines) as connection, anyio.create_task_group() as tasks:
        made = [Node(f"node-{number}", connection) for number in range(count)]
        for node in made:
            tasks.start_soon(node.notices.run, node.look, node.left.append)
        with client_of(url) as client:
            await until(lambda: client.info("clients")["blocked_clients"] == count)
        yield made
        tasks.cancel_scope.cancel()


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not is_so():
            await anyio.sleep(0.002)


async def test_every_other_node_hears_what_one_says_and_it_does_not_hear_itself(empty_redis):
    async with nodes(empty_redis, 3) as (one, two, three):
        one.notices.say_look()
        await until(lambda: two.looks == three.looks == 1)
        await one.notices.say_leaving()
        await until(lambda: two.left == three.left == ["node-0"])
        assert (one.looks, one.left) == (0, [])


async def test_what_is_said_at_once_is_heard_at_least_once_more(empty_redis):
    async with nodes(empty_redis) as (one, two):
        for _ in range(1000):
            one.notices.say_look()
        await until(lambda: two.looks > 0)
        heard = two.looks
        one.notices.say_look()
        await until(lambda: two.looks > heard)
        assert two.looks < 10


async def test_a_departure_that_no_node_of_ours_has_written_is_left_out_and_counted(empty_redis, caplog):
    async with nodes(empty_redis) as (one, two):
        with client_of(empty_redis) as client:
            client.xadd(STREAM, {"leaves": b"forged"})
            client.xadd(STREAM, {"else": b"forged"})
            client.xadd(STREAM, {"leaves": Sealer(b"t" * 32).seal(b"node-0", STREAM)})
        one.notices.say_look()
        await until(lambda: two.looks == 1)
        poisoned = one.notices._connection._errors.labels("poisoned")._value
        await until(lambda: poisoned.get() == 4)  # two entries, each read by two nodes
        assert two.left == []
        assert "that no node of ours wrote" in caplog.text


async def test_a_stream_that_was_flushed_is_heard_on_and_stays_bounded(empty_redis, monkeypatch):
    monkeypatch.setattr(notices, "KEPT", 100)
    async with nodes(empty_redis) as (one, two):
        with client_of(empty_redis) as client:
            for _ in range(900):
                await one.notices._add("look", "node-9")
            assert client.xlen(STREAM) < 300  # ~: in whole blocks of a hundred
            client.flushall()
        await two.hears_again(one.notices.say_look)


async def test_a_redis_that_was_dead_or_frozen_holds_up_nobody_and_is_heard_again(caplog):
    with RedisServer() as server:
        async with nodes(server.url, deadlines=USUAL_DEADLINES) as (one, two):
            server.kill()
            one.notices.say_look()
            await until(lambda: "Cannot receive notices of other nodes from Redis, will retry" in caplog.text)
            server.start()
            await two.hears_again(one.notices.say_look)
            caplog.clear()
            server.freeze()
            began, worked = time.monotonic(), time.thread_time()
            one.notices.say_look()
            assert time.thread_time() - worked < 0.1
            assert time.monotonic() - began < 10  # for Redis it would wait until that is thawed
            await until(lambda: "from Redis, will retry: it does not answer" in caplog.text)
            server.thaw()
            await two.hears_again(one.notices.say_look)


async def test_cancelled_in_the_middle_nothing_stays_connected(empty_redis):
    async with nodes(empty_redis) as (one, _):
        one.notices.say_look()
    with client_of(empty_redis) as client:
        await until(lambda: not client.info("clients")["blocked_clients"])
