"""A master that sentinels know, and a failover from it, with real servers."""

from pathlib import Path

import anyio
import pytest
import redis

from app.cluster.routing.redis_store import RedisStore
from app.errors import RoutesUnavailable
from app.sessions.routes import Quota
from tests.cluster.routing.rig import NODES, open_store, record, route
from tests.redis_servers import RedisServer

A, _, _ = NODES
FAILOVER_S = 60.0


def sentinel_of(master: RedisServer, directory: Path) -> RedisServer:
    config = directory / "sentinel.conf"
    lines = [f"sentinel monitor mymaster 127.0.0.1 {master.port} 1", "sentinel down-after-milliseconds mymaster 1000"]
    config.write_text("\n".join([*lines, "sentinel failover-timeout mymaster 5000", ""]))
    return RedisServer("--sentinel", config=str(config))


async def test_the_master_is_found_though_the_first_sentinel_is_gone(tmp_path: Path):
    with RedisServer() as master, sentinel_of(master, tmp_path) as sentinel:
        async with open_store(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mymaster/0") as store:
            await _until_reached(store)
            await store.claim(route("k"), Quota())
            with master.client() as client:
                assert client.exists("trunkline:route:k")


@pytest.mark.long
async def test_the_master_is_followed_through_a_failover(tmp_path: Path):
    with (
        RedisServer() as master,
        RedisServer("--replicaof", f"127.0.0.1 {master.port}") as replica,
        sentinel_of(master, tmp_path) as sentinel,
    ):
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mymaster/0"
        async with open_store(url) as store:
            await _until_reached(store)
            await store.claim(route("k"), Quota())
            await _fail_over(sentinel)
            with anyio.fail_after(FAILOVER_S):
                while not await _is_forgotten(store):
                    await anyio.sleep(0.05)
            assert await store.refresh([route("k")]) == []
            assert (await store.find("k")).route == route("k")
            with replica.client() as client:
                assert client.exists("trunkline:route:k")
                assert client.role()[0] in (b"master", "master")


async def _until_reached(store: RedisStore) -> None:
    with anyio.fail_after(FAILOVER_S):
        while not await _is_forgotten(store):
            await anyio.sleep(0.05)


async def _is_forgotten(store: RedisStore) -> bool:
    """Whether another server answers than the last time."""
    try:
        return not await store.beat(record(A))
    except RoutesUnavailable:
        return False


async def _fail_over(sentinel: RedisServer) -> None:
    """Sentinels look for replicas every few seconds, and refuse until they have seen one in health."""
    with sentinel.client() as client, anyio.fail_after(FAILOVER_S):
        while True:
            try:
                client.execute_command("SENTINEL", "FAILOVER", "mymaster")
                return
            except redis.ResponseError:
                await anyio.sleep(0.1)
