"""Several real nodes on one Redis and one PostgreSQL."""

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import psutil

from tests.backend_defaults import announced, count_samples
from tests.integration.gateway import STOP_S, Endpoint, Gateway, is_alive, until
from tests.redis_servers import RedisServer

AGAIN_WITHIN_S = 6.5  # design: a lease of 5 s, a probe of 0.5 s, and the start of a process
BUSY_S = 6.0  # later on a machine that is busy with something else; the design's own figure is held to with --long


class Nodes:
    """The nodes by number; `start` adds one, `replace` starts another where one was stopped or killed."""

    def __init__(self, directory: Path, database_url: str, redis: RedisServer, settings: dict[str, str]) -> None:
        self.redis = redis
        self._directory, self._serial, self._stack = directory, itertools.count(1), ExitStack()
        self._settings = {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis.url,
            "SECRET_KEY": hashlib.sha256(database_url.encode()).hexdigest(),  # a database is made for one key
            "MAX_PROCESSES": "2000",
            **settings,
        }
        self.all: list[Gateway] = []
        self._admin_key: str | None = None

    def start(self, **settings: str) -> Gateway:
        number = next(self._serial)
        directory, named = self._directory / f"node-{number}", {"NODE_NAME": f"gateway-{number}"}
        node = Gateway(directory, admin_key=self._admin_key, **{**self._settings, **named, **settings})
        self._admin_key = node.admin_key  # they have one database
        node.siblings = self.living  # type: ignore[method-assign]
        self._stack.callback(node.close)
        self.all.append(node)
        return node

    def replace(self, node: Gateway) -> Gateway:
        """A new node in the place of one that has ended, and with its name."""
        index = self.all.index(node)
        fresh = self.start(NODE_NAME=node.environment["TRUNKLINE_NODE_NAME"])
        self.all.remove(fresh)
        self.all[index] = fresh
        return fresh

    async def roll(self, count: int) -> None:
        """So many restarts, of one node after the other, with half a second of peace around each."""
        for number in range(count):
            await anyio.sleep(0.5)
            victim = self.all[number % 2]
            victim.terminate()
            assert await anyio.to_thread.run_sync(victim.process.wait, 40) == 0, victim.log_tail()
            await anyio.to_thread.run_sync(self.replace, victim)
            await self.all_know_each_other()
        await anyio.sleep(0.5)

    def living(self) -> list[Gateway]:
        return [node for node in self.all if node.process.poll() is None]

    def stop(self) -> None:
        """Stops every node that still runs, all at once; each must drain, and nothing may be left of any."""
        living = self.living()
        started = {each for node in living for each in node.family()}
        for node in living if announced().fields else ():
            count_samples(node.metrics())
        for node in living:
            node.terminate()
        statuses = [node.process.wait(STOP_S) for node in living]
        left = [each for each in {*started, *self.backends()} if is_alive(each)]
        assert not left, f"left behind: {left}"
        assert not any(statuses), [node.log_tail() for node in living if node.process.returncode]

    def backends(self) -> set[psutil.Process]:
        """Every living process of a backend, whichever node has started it."""
        return {each for node in self.all for each in node.backends()}

    async def have_only(self, sessions: int, of: Endpoint, *, warm: int = 0, within_s: float = 15.0) -> None:
        """Waits until that tenant has so many sessions, and no backend has another process than theirs and the warm
        ones: a parked session has none."""

        def found() -> tuple[int, int]:
            living = self.living()[0].api("GET", f"/tenants/{of.tenant}/sessions?limit=200")["items"]
            return len(living), len(self.backends()) - sum(each["process"] is not None for each in living)

        await until(lambda: found() == (sessions, warm), within_s, found)

    def close(self) -> None:
        self._stack.close()

    async def all_know_each_other(self) -> None:
        """Waits until each node has heard of all others."""

        def known() -> list[int]:
            return [len(node.api("GET", "/nodes")["items"]) for node in self.living()]

        await until(lambda: set(known()) == {len(self.living())}, 30, known)

    def settle(self) -> None:
        """The store knows what every node has: that it knows no route means that there is none. Else it would take
        some seconds from its start to say so."""
        with self.redis.client() as client:
            client.delete("trunkline:settling")

    def urls(self, endpoint: Endpoint) -> list[str]:
        """The endpoint's MCP address on each node."""
        return [node.url + urlsplit(endpoint.mcp).path for node in self.living()]


async def said_of_all(node: Gateway, path: str) -> Any:
    """What a node answers once every node has told it its part: one that is busy for a second is left out."""
    with anyio.fail_after(30):
        while (answer := node.api("GET", path))["silent_nodes"]:
            await anyio.sleep(0.1)
    return answer


@contextmanager
def running_nodes(directory: Path, database_url: str, count: int, **settings: str) -> Iterator[Nodes]:
    """So many nodes, with a Redis of their own. At the end each that still runs must stop cleanly."""
    with RedisServer() as redis:
        nodes = Nodes(directory, database_url, redis, settings)
        try:
            for _ in range(count):
                nodes.start()
            yield nodes
            nodes.stop()
        finally:
            nodes.close()
