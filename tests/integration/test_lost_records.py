"""What stands in Redis is lost, spoilt or forged: no session is lost by it, nobody gains one, nothing happens twice."""

import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import redis

from app.sessions.session_ids import session_key
from tests.integration.gateway import ROOT, Endpoint, Gateway, for_backends
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.watched import WARM, Watch, watched
from tests.integration.wire import Wire, answer

COUNTING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/counting.py")]
SESSIONS = 10
POISONED = 'trunkline_route_store_errors_total{reason="poisoned"}'

pytestmark = pytest.mark.timeout(900)


@asynccontextmanager
async def under_watch(tmp_path: Path, database: str) -> AsyncIterator[tuple[Nodes, Watch]]:
    """Two nodes, and sessions on both that could go on at the other."""
    trace = for_backends(tmp_path) / "trace"
    with running_nodes(tmp_path, database, 2) as nodes:
        await nodes.all_know_each_other()
        endpoint = nodes.all[0].endpoint([*COUNTING, str(trace)], recovery="respawn", warm=WARM)
        async with watched(nodes, endpoint, SESSIONS, tmp_path / "beats") as watch:
            yield nodes, watch
        watch.found.require_each_once(trace)


@pytest.mark.long
async def test_writes_of_the_last_second_are_lost(
    tmp_path: Path, postgres_database: str, request: pytest.FixtureRequest
) -> None:
    failovers, recovered = 50 if request.config.getoption("--long") else 5, list[float]()
    async with under_watch(tmp_path, postgres_database) as (nodes, watch):
        began_at = time.monotonic()
        with nodes.redis.client() as client:
            for _ in range(failovers):
                copy = everything(client)
                await anyio.sleep(1.0)
                fail_over(client, copy)
                recovered.append(await watch.has_recovered(time.monotonic()))
        watch.require_service(f"{failovers} failovers", began_at, time.monotonic(), recovered)


@pytest.mark.long
async def test_a_take_over_that_redis_forgets_does_not_make_two_owners(tmp_path: Path, postgres_database: str) -> None:
    trace = for_backends(tmp_path) / "trace"
    with running_nodes(tmp_path, postgres_database, 3) as nodes:
        await nodes.all_know_each_other()
        first, second, third = nodes.all
        endpoint = first.endpoint([*COUNTING, str(trace)], recovery="respawn")
        urls = nodes.urls(endpoint)
        async with httpx2.AsyncClient(timeout=30) as http:
            sessions = [Wire(http, endpoint) for _ in range(SESSIONS)]
            for session in sessions:
                session.url = urls[0]
                await session.open()
                await mark(session, urls[0], "before")
            with nodes.redis.client() as client:
                copy = everything(client)
                first.kill()
                for session in sessions:
                    await mark(session, urls[1], "taken over")
                fail_over(client, copy)
            async with anyio.create_task_group() as tasks:  # the record says again that the first node has it
                for session in sessions:
                    for url in urls[1:]:
                        tasks.start_soon(mark, session, url, "after")
            for session in sessions:
                await mark(session, random.choice(urls[1:]), "later")
        await nodes.have_only(SESSIONS, endpoint)
        require_one_owner_each((second, third), endpoint, SESSIONS)
        runs = Counter(line.split("/")[0] for line in trace.read_text().split())
        expected = {"before": 1, "taken over": 1, "after": 2, "later": 1}
        assert runs == Counter({name.replace(" ", "-"): SESSIONS * times for name, times in expected.items()}), runs


Poison = Callable[[redis.Redis, bytes, bytes], Any]


def write_garbage(client: redis.Redis, name: bytes, other: bytes) -> None:
    client.delete(name)
    client.set(name, b"\x00garbage")


def claim_a_later_token(client: redis.Redis, name: bytes, other: bytes) -> None:
    if client.type(name) == b"hash":
        client.hset(name, mapping={"t": 999, "n": "feedfacefeedface"})


def spoil_the_sealed_part(client: redis.Redis, name: bytes, other: bytes) -> None:
    if client.type(name) == b"hash":
        client.hset(name, "v", b"\x01" * 100)


def put_the_record_of_another(client: redis.Redis, name: bytes, other: bytes) -> None:
    dumped = client.dump(other)
    if dumped is not None:
        client.restore(name, 60_000, dumped, replace=True)


POISONS: list[Poison] = [write_garbage, claim_a_later_token, spoil_the_sealed_part, put_the_record_of_another]


async def test_records_that_others_have_written_give_nobody_anything(
    tmp_path: Path, postgres_database: str, request: pytest.FixtureRequest
) -> None:
    poisonings = 1000 if request.config.getoption("--long") else 100
    async with under_watch(tmp_path, postgres_database) as (nodes, watch):
        before = [node.metrics().get(POISONED, 0) for node in nodes.all]
        keys = [f"trunkline:route:{session_key(visitor.wire.session_id)}".encode() for visitor in watch.visitors]
        began_at = time.monotonic()
        with nodes.redis.client() as client:
            for _ in range(poisonings):
                victim, other = random.sample(keys, 2)
                random.choice(POISONS)(client, victim, other)
                await anyio.sleep(0.05)
            leases = dict[bytes, bytes]()
            with anyio.fail_after(30):  # on a busy machine one may have lapsed
                while len(leases) < 2:
                    leases = {key: value for key in client.keys("trunkline:node:*") if (value := client.get(key))}
                    await anyio.sleep(0.02)
            one, other = leases
            client.set(one, leases[other], px=5000)
            client.set("trunkline:node:feedfacefeedface", leases[other], px=5000)
        recovered = await watch.has_recovered(time.monotonic())
        watch.require_service(f"{poisonings} records forged", began_at, time.monotonic(), [recovered])
        noticed = [node.metrics()[POISONED] - count for node, count in zip(nodes.all, before, strict=True)]
        print(f"noticed {noticed} times")
        assert all(noticed)


def require_one_owner_each(nodes: Iterable[Gateway], endpoint: Endpoint, sessions: int) -> None:
    """Every node counts the sessions that it has itself; together as many as there are."""
    counts = [sum(v for n, v in node.metrics().items() if n.startswith("trunkline_sessions{")) for node in nodes]
    assert sum(counts) == sessions, counts


def everything(client: redis.Redis) -> dict[bytes, tuple[bytes, int]]:
    """All that Redis holds, and how long each lasts."""
    copy: dict[bytes, tuple[bytes, int]] = {}
    for key in client.scan_iter("*"):
        value, ttl = client.pipeline().dump(key).pttl(key).execute()
        if value is not None:
            copy[bytes(key)] = value, max(0, ttl)
    return copy


def fail_over(client: redis.Redis, copy: dict[bytes, tuple[bytes, int]]) -> None:
    """Redis holds what it held then, and every connection to it breaks; what was written meanwhile is lost."""
    batch = client.pipeline()
    batch.flushall()
    for key, (value, ttl) in copy.items():
        batch.restore(key, ttl, value)
    batch.execute()
    client.client_kill_filter(_type="normal", skipme=True)


async def mark(session: Wire, url: str, word: str) -> None:
    """One call, answered in the end."""
    token = f"{word.replace(' ', '-')}/{random.getrandbits(64):x}"
    response = await final(session, url, token)
    assert response.status_code == 200, response.text
    assert answer(response)["content"][0]["text"] == token


async def final(session: Wire, url: str, token: str, within_s: float = 30.0) -> httpx2.Response:
    """The answer to one call after as many 503 as it takes: those have not been carried out."""
    params = {"name": "mark", "arguments": {"token": token}}
    message = {"jsonrpc": "2.0", "id": next(session.ids), "method": "tools/call", "params": params}
    deadline = time.monotonic() + within_s
    while True:
        response = await session.http.post(url, json=message, headers=session.headers)
        if response.status_code != 503 or time.monotonic() > deadline:
            return response
        await anyio.sleep(0.05)
