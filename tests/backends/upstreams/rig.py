"""Upstream sessions with servers on this machine that answer byte by byte as a test wants."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from app.auth.outbound_proxy import NodeProxy
from app.auth.outbound_urls import Policy
from app.auth.sealing import Sealer
from app.backends.failures import FailureLog
from app.backends.upstreams._session import UpstreamSession
from app.backends.upstreams.connecting import Connector
from app.backends.upstreams.tls import TlsContexts
from app.backends.upstreams.upstream_secrets import SecretOpener, sealed
from app.backends.upstreams.upstreams import ApiOf, Parts, Upstreams
from app.concurrency.loop_share import UNLIMITED, Shares
from app.domain import BackendSpec
from app.errors import BackendUnavailable, GatewayError
from app.jail.egress.dialling import Dialler
from app.jail.egress.names import Names
from app.processes.endings import Exit
from app.protocol.openapi.serving import ApiServer
from app.telemetry.metrics import Metrics
from app.text.public_addresses import Network

LOOPBACK = ip_network("127.0.0.0/8")
SEALER = Sealer(b"u" * 32)
WAIT_S = 60.0
EVENTS = "Content-Type: text/event-stream\r\n"


def make_upstreams(
    metrics: Metrics | None = None,
    *,
    allow: Iterable[Network] = (LOOPBACK,),
    lookup: Callable[[str], Sequence[str]] | None = None,
    tls: ssl.SSLContext | None = None,
    proxy: NodeProxy | None = None,
    ca: str | None = None,
    limit_bytes: int = 1 << 20,
    shares: Shares = UNLIMITED,
    api_of: ApiOf | None = None,
) -> Upstreams:
    """To be used as `async with`."""
    policy = Policy(allow, "TRUNKLINE_UPSTREAM_ALLOW")
    dialler = Dialler(Names(lookup) if lookup else Names(), policy.allow)
    connector = Connector(dialler, policy, TlsContexts(tls, ca), proxy)
    parts = Parts(connector, dialler, SecretOpener(SEALER), api_of or _none, FailureLog("n1"), limit_bytes, shares)
    return Upstreams(parts, metrics or Metrics("test"))


async def _none(spec: BackendSpec) -> ApiServer:
    raise BackendUnavailable("no document")


def spec_at(url: str, headers: dict[str, str] | None = None, **fields: Any) -> BackendSpec:
    """A backend of the tenant acme with this URL."""
    fields.setdefault("transport", "streamable-http")
    return sealed(SEALER, BackendSpec("acme", "far", "", url=url, headers=headers or {}, **fields))


class Heard:
    """What a session hears. Fulfils CallListener."""

    def __init__(self) -> None:
        self.lines = list[Any]()
        self.failed = list[tuple[bytes, GatewayError]]()
        self.exits = list[Exit]()
        self._changed = asyncio.Event()

    def backend_sent(self, line: bytes) -> None:
        assert b"\n" not in line
        self.lines.append(json.loads(line))
        self._changed.set()

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        raise AssertionError("an upstream session fails the call instead")

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        self.failed.append((call, error))
        self._changed.set()

    def backend_exited(self, exit: Exit) -> None:
        self.exits.append(exit)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def answer(self, request_id: int) -> Any:
        """The answer to this request."""
        await self.until(lambda: any(line.get("id") == request_id for line in self.lines))
        return next(line for line in self.lines if line.get("id") == request_id)

    async def failure(self, request_id: int) -> GatewayError:
        """How this request has failed."""
        await self.until(lambda: any(call == b"%d" % request_id for call, _ in self.failed))
        return next(error for call, error in self.failed if call == b"%d" % request_id)

    async def end(self) -> Exit:
        await self.until(lambda: self.exits)
        (exit,) = self.exits
        return exit


@dataclass
class Asked:
    """One request that a server got, and its connection."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    number: int

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    async def send(self, data: bytes | str) -> None:
        if self.writer.is_closing():
            raise ConnectionResetError
        self.writer.write(data.encode() if isinstance(data, str) else data)
        with suppress(OSError):
            await self.writer.drain()

    async def whole(
        self, body: bytes | str, status: int = 200, headers: str = "", kind: str = "application/json"
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        await self.send(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode()
            + data
        )

    async def accept(self) -> None:
        await self.send("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")

    async def result(self, result: Any, headers: str = "") -> None:
        await self.whole(json.dumps({"jsonrpc": "2.0", "id": self.message["id"], "result": result}), headers=headers)

    async def events(self, headers: str = "") -> None:
        """The head of a stream, which is written in chunks."""
        await self.send(f"HTTP/1.1 200 OK\r\n{EVENTS}Transfer-Encoding: chunked\r\n{headers}\r\n")

    async def chunk(self, data: str | bytes) -> None:
        raw = data.encode() if isinstance(data, str) else data
        await self.send(b"%x\r\n%b\r\n" % (len(raw), raw))

    async def event(self, message: Any, event_id: str = "") -> None:
        named = f"id: {event_id}\n" if event_id else ""
        await self.chunk(f"{named}data: {json.dumps(message)}\n\n")

    async def end(self) -> None:
        """The end of a chunked body."""
        await self.send(b"0\r\n\r\n")

    def cut(self) -> None:
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Returns when the client has closed the connection."""
        async with asyncio.timeout(WAIT_S):
            while not self.writer.is_closing():
                await asyncio.sleep(0.01)


Answer = Callable[[Asked], Awaitable[None]]


@dataclass
class Server:
    """A server whose every request a test answers."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    ever_connected: int = 0

    def of(self, method: str) -> list[Asked]:
        return [each for each in self.asked if each.method == method]

    async def until_quiet(self) -> None:
        """Returns when no connection is open."""
        async with asyncio.timeout(WAIT_S):
            while self.connections:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.ever_connected += 1
        try:
            while (asked := await _request(reader, writer, len(server.asked))) is not None:
                server.asked.append(asked)
                watch = asyncio.create_task(_watch(reader, writer))
                try:
                    await answer(asked)
                finally:
                    watch.cancel()
                    with suppress(asyncio.CancelledError):
                        await watch
                if writer.is_closing():
                    break
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            server.connections -= 1
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/mcp"
    try:
        yield server
    finally:
        listener.close()
        for asked in server.asked:
            asked.cut()


async def _watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes the writer when the client goes away while it is answered."""
    while not reader.at_eof():
        await asyncio.sleep(0.01)
    writer.close()


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, target, headers, body, writer, number)


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "far", "version": "1"}}


def line(request_id: int | None, method: str, **params: Any) -> bytes:
    """A request, or a notification."""
    named = {} if request_id is None else {"id": request_id}
    return json.dumps({"jsonrpc": "2.0", **named, "method": method, "params": params}).encode()


async def good(asked: Asked) -> None:
    """Answers whatever it is asked."""
    await asked.result({})


def polite(answer: Answer) -> Answer:
    """A server with a handshake; `answer` gets calls, and GETs after a moment of the handshake's."""

    async def whole(asked: Asked) -> None:
        if asked.method == "DELETE":
            await asked.whole("{}")
        elif asked.method == "GET":
            await (answer(asked) if "last-event-id" in asked.headers else asked.whole("", 405))
        elif "id" not in asked.message or "method" not in asked.message:
            await asked.accept()
        elif asked.message["method"] == "initialize":
            await asked.result(HELLO, "Mcp-Session-Id: s-1\r\n")
        else:
            await answer(asked)

    return whole


async def opened(upstreams: Upstreams, spec: BackendSpec) -> tuple[UpstreamSession, Heard]:
    """A session whose handshake is over."""
    link, heard = await upstreams.lease(spec), Heard()
    link.attach(heard)
    link.send(line(1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={}))
    assert "result" in await heard.answer(1)
    link.handshake_succeeded()
    link.send(line(None, "notifications/initialized"))
    return link, heard


def unused_port() -> int:
    """A port of loopback where nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
