"""Clients that send every request to another node, drawn by lot."""

import random
from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx2
from mcp_clients import HttpConnection, SseSession, StreamableSession, open_http

from tests.integration.gateway import Endpoint
from tests.integration.wire import Wire


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
