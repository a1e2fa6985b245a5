"""Several real nodes on one Redis and one PostgreSQL, and clients that send every request to another one."""

import asyncio
import itertools
import random
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
from mcp_clients import CallFailed, HttpConnection, SseSession, StreamableSession, open_http

from tests.integration.gateway import STOP_S, Endpoint, Gateway, is_alive, until
from tests.integration.wire import Wire
from tests.redis import RedisServer


class Nodes:
    """The nodes by number; `start` adds one, `replace` starts another where one was stopped or killed."""

    def __init__(self, directory: Path, database_url: str, redis: RedisServer, settings: dict[str, str]) -> None:
        self.redis = redis
        self._directory, self._serial, self._stack = directory, itertools.count(1), ExitStack()
        self._settings = {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis.url,
            "SECRET_KEY": secrets.token_hex(32),
            "MAX_PROCESSES": "2000",
            **settings,
        }
        self.all: list[Gateway] = []

    def start(self) -> Gateway:
        node = Gateway(self._directory / f"node-{next(self._serial)}", **self._settings)
        self._stack.callback(node.close)
        self.all.append(node)
        return node

    def replace(self, node: Gateway) -> Gateway:
        """A new node in the place of one that has ended."""
        index = self.all.index(node)
        fresh = self.start()
        self.all.remove(fresh)
        self.all[index] = fresh
        return fresh

    def living(self) -> list[Gateway]:
        return [node for node in self.all if node.process.poll() is None]

    def stop(self) -> None:
        """Stops every node that still runs, all at once; each must drain, and nothing may be left of any."""
        living = self.living()
        started = {each for node in living for each in node.family()}
        for node in living:
            node.terminate()
        statuses = [node.process.wait(STOP_S) for node in living]
        left = [each for each in {*started, *self.backends()} if is_alive(each)]
        assert not left, f"left behind: {left}"
        assert not any(statuses), [node.log_tail() for node in living if node.process.returncode]

    def backends(self) -> set[psutil.Process]:
        """Every living process of a backend, whichever node has started it."""
        return {each for node in self.all for each in node.backends()}

    def close(self) -> None:
        self._stack.close()

    async def all_know_each_other(self) -> None:
        """Waits until each node has heard of all others."""

        def known() -> list[int]:
            return [len(node.api("GET", "/nodes")["items"]) for node in self.living()]

        await until(lambda: set(known()) == {len(self.living())}, 10, known)

    def urls(self, endpoint: Endpoint) -> list[str]:
        """The endpoint's MCP address on each node."""
        return [node.url + urlsplit(endpoint.mcp).path for node in self.living()]


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


class Roaming(StreamableSession):
    """A Streamable HTTP client that sends each request to a node drawn by lot, on a connection per node."""

    def __init__(self, urls: Sequence[str], headers: dict[str, str]) -> None:
        super().__init__(urls[0], headers)
        self.hosts = [(parts.hostname or "", parts.port or 80) for parts in map(urlsplit, urls)]
        self._kept: dict[tuple[str, int], HttpConnection] = {}
        self.last_event_id: str | None = None

    async def _ready_connection(self) -> HttpConnection:
        host = random.choice(self.hosts)
        connection = self._kept.get(host)
        if connection is not None and connection.finished is not None and not connection.finished.done():
            connection.close()
        if connection is None or connection.closed:
            connection = self._kept[host] = await open_http(*host)
        return connection

    async def listen(self) -> int:
        self.host, self.port = random.choice(self.hosts)
        return await super().listen()

    def abort(self) -> None:
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()
        super().abort()


class RoamingSse(SseSession):
    """An HTTP+SSE client whose POSTs go to nodes drawn by lot."""

    def __init__(self, urls: Sequence[str], headers: dict[str, str]) -> None:
        super().__init__(random.choice(urls).removesuffix("/mcp") + "/sse", headers)
        self.hosts = [(parts.hostname or "", parts.port or 80) for parts in map(urlsplit, urls)]

    async def _post(self, body: bytes) -> HttpConnection:
        if self.poster is not None:
            self.poster.close()
        self.poster = await open_http(*random.choice(self.hosts))
        return await super()._post(body)


class RoamingWire(Wire):
    """Wire, whose every request goes to a node drawn by lot."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint, urls: Sequence[str]) -> None:
        self.nodes = list(urls)
        super().__init__(http, endpoint)

    @property
    def url(self) -> str:
        return random.choice(self.nodes)

    @url.setter
    def url(self, value: str) -> None:
        """It has several."""


async def call_again(session: Roaming, tool: str, arguments: dict[str, Any], *, within_s: float) -> str:
    """Calls until it is answered; for clients that are told to come back (503), or whose connection broke."""
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            return await session.call_tool(
                tool, arguments, timeout=max(0.1, deadline - asyncio.get_running_loop().time())
            )
        except (CallFailed, OSError) as error:
            refused = isinstance(error, OSError) or error.kind in ("connection-lost", "http-503")
            if not refused or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.05)
