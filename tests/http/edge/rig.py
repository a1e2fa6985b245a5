"""The edge before an application of the test's own, and clients that write and read by hand."""

import asyncio
import math
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from app.http.client_address import TrustedProxies
from app.http.edge.connections import ConnectionLimits, Connections
from app.http.edge.handshake import Handshake
from app.http.scope import AT_ONCE, BY_KEY, LEFT, LET_IN
from tests.http.edge.serving import serving

GET = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST /asks HTTP/1.1\r\nhost: a\r\n"
WITHIN_S = 30


class App:
    """Answers `/…` with `ok`, `/t/…` too; `…/waits` once it may; `/asks` with the length of the body, `/echo` with the
    body. `seen` are the requests that it was asked, `left` those whose client went away first."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.left: list[str] = []
        self.goes_the_long_way = True
        self.knows_it = False  # whoever asks for what goes out
        self.may_answer = asyncio.Event()
        self.was_asked = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        self.was_asked.set()
        path, body = scope["path"], b"ok"
        if path.endswith("/waits"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, path, receive, tasks.cancel_scope)
                await self.may_answer.wait()
                tasks.cancel_scope.cancel()
            if self.left:
                self.knows_it = LEFT in scope
                return
        elif path == "/asks":
            body = b"%d" % len(await read_body(receive))
        elif path == "/echo":
            body = await read_body(receive)
        elif path == "/long":
            body = bytes(64 << 20)
        if b"let-in" in scope["query_string"]:
            scope[LET_IN] = BY_KEY
        if not self.goes_the_long_way and scope[AT_ONCE](scope, body):
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def _watch(self, path: str, receive: Any, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.append(path)
        scope.cancel()


async def read_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


class Client:
    """A connection that is written and read by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """The next response's status and body."""
        with anyio.fail_after(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def head(self) -> bytes:
        """That of the next response, whose body is `ok`."""
        with anyio.fail_after(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            assert await self.reader.readexactly(2) == b"ok"
            return head

    async def show_a_credential(self) -> None:
        """And is let in."""
        self.send(b"GET /?let-in HTTP/1.1\r\nhost: a\r\n\r\n")
        await self.answer()

    async def is_closed(self) -> bool:
        """Waits for the end, and returns whether nothing came before it."""
        with anyio.fail_after(WITHIN_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


class Edge:
    """A served application, its connections, and a clock that only the test moves."""

    def __init__(self, limits: ConnectionLimits, proxies: TrustedProxies | None) -> None:
        self.trust: ssl.SSLContext | None = None  # what clients know of the certificate
        self.app, self.refused, self.time = App(), list[str](), 0.0
        self.connections = Connections(
            limits, proxies, on_refused=lambda reason, *_: self.refused.append(reason), clock=lambda: self.time
        )
        self.host = ""

    def pass_time(self, seconds: float) -> None:
        """As a node does it: a sweep each second."""
        for _ in range(math.ceil(seconds)):
            self.time += 1
            self.connections.sweep()

    async def spend_time(self, seconds: int) -> None:
        """The same, and the event loop runs in it."""
        for _ in range(seconds):
            self.pass_time(1)
            await asyncio.sleep(0.001)

    @property
    def protocols(self) -> list[Any]:
        return list(self.connections._open)

    @asynccontextmanager
    async def client(self, *, plain: bool = False) -> AsyncIterator[Client]:
        """Over TLS where that is served, unless it is `plain`."""
        host, port = self.host.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=None if plain else self.trust)
        try:
            if self.trust is not None and not plain:  # TLS 1.3: the client is ready before the server is
                await until(lambda: not any(isinstance(each, Handshake) for each in self.protocols))
            yield Client(reader, writer)
        finally:
            writer.transport.abort()


@asynccontextmanager
async def open_edge(
    proxies: TrustedProxies | None = None, *, tls: Callable[[], ssl.SSLContext] | None = None, **limits: Any
) -> AsyncIterator[Edge]:
    edge = Edge(ConnectionLimits(**limits), proxies)
    async with serving(edge.app, tls=tls, connections=edge.connections) as edge.host:
        yield edge


async def until(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.005)
