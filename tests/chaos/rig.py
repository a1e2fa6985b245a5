"""Three nodes, a Redis and a PostgreSQL, with a line between any two of them and to the clients."""

import json
import random
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import psutil

from tests.backend_defaults import announced, count_samples
from tests.chaos.history import Node, Writer
from tests.chaos.proxies import Address, Line
from tests.integration.gateway import Gateway, is_alive, marked
from tests.redis_servers import RedisServer

LINES = ("redis-line", "database-line", "peer-line", "client-line")
START_AGAIN_S = 0.2
ADMIN_S = 5.0  # for one attempt at one node


def standing_at(place: int) -> type[Gateway]:
    """A node whose backends can tell where it stands."""

    class Standing(Gateway):
        FIRST = f"import os; os.environ['PATH'] += ':/place-{place}'"

    return Standing


class Place:
    """Where a node stands: its lines stay, the nodes come and go."""

    def __init__(self, number: int, redis: Address, database: Address) -> None:
        self.number = number
        self.node: Gateway | None = None
        self.lines = {
            "redis-line": Line(lambda: redis),
            "database-line": Line(lambda: database),
            "peer-line": Line(self._address),
            "client-line": Line(self._address),
        }

    def _address(self) -> Address | None:
        if self.node is None:
            return None
        host, _, port = self.node.host.partition(":")
        return host, int(port)

    @property
    def url(self) -> str:
        """Where clients find whatever node stands here."""
        return f"http://127.0.0.1:{self.lines['client-line'].port}"


class _Transport(httpx2.AsyncHTTPTransport):
    """What anyio raises when a connection is reset in the moment in which it was made is an error of transport too."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            if "getpeername" not in str(error):
                raise
            raise httpx2.ConnectError("reset at once", request=request) from error


class Rig:
    """Starts, stops and asks nodes. Blocking work is done in threads: the lines go on."""

    def __init__(self, directory: Path, database_url: str, redis: RedisServer, history: Writer) -> None:
        self.redis, self.history = redis, history
        self._directory, self._serial = directory, 0
        self._database = urlsplit(database_url)
        database = (self._database.hostname or "", self._database.port or 0)
        self.places = [Place(number, ("127.0.0.1", redis.port), database) for number in range(3)]
        self._all: list[Gateway] = []
        self._secret = secrets.token_hex(32)
        self.admin_key: str | None = None
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self.http = httpx2.AsyncClient(timeout=None, transport=_Transport(limits=limits))

    async def open(self) -> None:
        for place in self.places:
            for line in place.lines.values():
                await line.open()
        await self.start(self.places[0])
        async with anyio.create_task_group() as tasks:
            for place in self.places[1:]:
                tasks.start_soon(self.start, place)

    async def start(self, place: Place) -> None:
        """Starts a node there; one that finds no database ends again, and then another is started."""
        while True:
            try:
                node = await anyio.to_thread.run_sync(self._start, place)
                break
            except AssertionError as error:
                print(f"node {place.number} did not start: {str(error)[:300]}", flush=True)
            await anyio.sleep(START_AGAIN_S)
        self._all.append(node)
        self.admin_key = node.admin_key
        place.node = node
        self.history.add(Node(place.number, node.pid, time.monotonic()))

    def _start(self, place: Place) -> Gateway:
        self._serial += 1
        line = {name: each.port for name, each in place.lines.items()}
        database = self._database._replace(netloc=f"postgres@127.0.0.1:{line['database-line']}")
        return standing_at(place.number)(
            self._directory / f"node-{place.number}-{self._serial}",
            admin_key=self.admin_key,
            DATABASE_URL=database.geturl(),
            REDIS_URL=f"redis://127.0.0.1:{line['redis-line']}/0",
            NODE_URL=f"http://127.0.0.1:{line['peer-line']}",
            SECRET_KEY=self._secret,
            MAX_PROCESSES="500",
            KEEPALIVE_S="2",
            STREAM_AFTER_S="1",
            DRAIN_S="3",
        )

    @property
    def running(self) -> list[Gateway]:
        return [place.node for place in self.places if place.node is not None]

    async def end(self, place: Place, number: signal.Signals) -> None:
        """Sends the node a signal that ends it, and waits until it has."""
        node = place.node
        assert node is not None
        node.process.send_signal(number)
        await anyio.to_thread.run_sync(node.process.wait)
        place.node = None

    # --- administration

    async def admin(self, method: str, path: str, body: Any = None, *, chance: random.Random) -> tuple[int, Any]:
        """A REST request to nodes drawn by lot, repeated until one has done it; the place of that one, the answer."""
        while True:
            place = chance.choice(self.places)
            with suppress(httpx2.TransportError, TimeoutError), anyio.fail_after(ADMIN_S):
                response = await self.http.request(
                    method,
                    f"{place.url}/api/v1{path}",
                    json=body,
                    headers={"Authorization": f"Bearer {self.admin_key}"},
                )
                if response.is_success or response.status_code == 404:
                    return place.number, response.json() if response.content else None
            await anyio.sleep(START_AGAIN_S)

    # --- the end

    def tracebacks(self) -> list[str]:
        """What nodes did not expect: the end of each exception in their logs."""
        found = set()
        for log in sorted(self._directory.glob("node-*.log")):
            for line in log.read_text(errors="replace").splitlines():
                with suppress(ValueError):  # a line that is no JSON is an end before the log began
                    record = json.loads(line)
                    if "exception" in record:
                        last = record["exception"].strip().splitlines()[-1]
                        found.add(
                            f"{log.name} {record['time']} {record['logger']}: {record['message'].strip()}: {last}"
                        )
        return sorted(found)

    def backends(self) -> list[psutil.Process]:
        """Living processes of backends, whichever node has started them."""
        return marked(self._all[0].mark)

    async def stop(self) -> str:
        """Stops every node; what is wrong with how they ended, if anything."""
        ending = self.running
        family = {each for node in ending for each in node.family()}
        for node in ending if announced().fields else ():
            count_samples(await anyio.to_thread.run_sync(node.metrics))
        for place in self.places:
            if place.node is not None:
                place.node.process.send_signal(signal.SIGTERM)
        statuses = [await anyio.to_thread.run_sync(node.process.wait, 30) for node in ending]
        left = [each for each in {*family, *self.backends()} if is_alive(each)]
        return f"left behind: {left}" if left else f"exit codes {statuses}" if any(statuses) else ""

    async def aclose(self) -> None:
        for node in self._all:
            await anyio.to_thread.run_sync(node.close)
        for place in self.places:
            for line in place.lines.values():
                await line.aclose()
        await self.http.aclose()


@asynccontextmanager
async def running_rig(directory: Path, database_url: str, history: Writer) -> AsyncIterator[Rig]:
    with RedisServer() as redis:
        rig = Rig(directory, database_url, redis, history)
        try:
            await rig.open()
            yield rig
        finally:
            with anyio.CancelScope(shield=True):
                await rig.aclose()
