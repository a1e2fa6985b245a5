"""Other nodes, as far as their sockets go: a real one, a process that never answers, or a script of raw bytes."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any
from urllib.parse import urlsplit

import anyio
import uvicorn

from app.domain import Principal
from app.http.uvicorn_protocol import HttpProtocol
from app.routing.frames import Frame, RawHeaders, RecordReader, RecordWriter, RequestHead
from app.routing.node_proof import LinkKeys, NodeProof
from app.routing.peers import PeerClient, PeerResponse
from app.routing.routes import NodeRecord
from app.transports.node_links import LinkedRequest, NodeLinks

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 10.0
STILL_S = 0.15  # what goes through two sockets does not pause for so long
SLOW = [sys.executable, "-m", "tests.servers.slow_http"]
KEY, TARGET = b"k" * 32, b"/t/acme/echo/mcp"
LIMIT = 8 << 20
ALICE = Principal("acme", "key", "alice", frozenset({"mcp:connect"}))
NOTHING = "<PeerClient [0 links, 0 requests]>"

Serve = Callable[[LinkedRequest], Awaitable[None]]
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


async def until(is_true: Callable[[], object]) -> None:
    """Waits for a condition that nothing tells of."""
    with anyio.fail_after(WITHIN_S):
        while not is_true():
            await anyio.sleep(0.005)


async def stands_still(count: Callable[[], int]) -> int:
    """Waits until a number grows no more; the number. Nothing tells of what does not happen."""
    last, since = -1, time.monotonic()
    with anyio.fail_after(WITHIN_S):
        while time.monotonic() - since < STILL_S:
            if count() != last:
                last, since = count(), time.monotonic()
            await anyio.sleep(0.005)
    return last


class PromptServer(uvicorn.Server):
    """uvicorn that stops when it is told to, instead of looking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_told.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._is_told.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(1):
            while self.server_state.connections or self.server_state.tasks:
                await anyio.sleep(0.002)
        for task in self.server_state.tasks:
            task.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def proof_of(node: str, key: bytes = KEY) -> NodeProof:
    return NodeProof(key, node)


def record(url: str, node: str = "node-b") -> NodeRecord:
    return NodeRecord(node, url, "1", datetime.now(UTC))


def head_of(method: str = "POST", target: bytes = TARGET, headers: RawHeaders = ()) -> RequestHead:
    return RequestHead(method, target, "http://127.0.0.1", ALICE, headers)


async def begin(client: PeerClient, url: str, body: bytes = b"hello") -> PeerResponse:
    return await client.begin(record(url), head_of(), body)


async def post(client: PeerClient, url: str, body: bytes = b"hello") -> bytes:
    """What the node answers."""
    response = await client.send(record(url), head_of(), body)
    assert response.status == 200
    return await response.body(LIMIT)


async def start(request: LinkedRequest, headers: RawHeaders = ()) -> None:
    """Sends the head of an answer, which goes out with the first part of the body, as little as that may be."""
    await request.send({"type": "http.response.start", "status": 200, "headers": headers})
    await request.send({"type": "http.response.body", "body": b"", "more_body": True})


async def say(request: LinkedRequest, body: bytes = b"", *, more: bool = False) -> None:
    """Sends a part of an answer's body; the last one unless there is more."""
    await request.send({"type": "http.response.body", "body": body, "more_body": more})


async def echo(request: LinkedRequest) -> None:
    """Answers with the body it was sent."""
    await start(request)
    await say(request, request.body)


async def until_left(request: LinkedRequest) -> None:
    """Serves a stream that says nothing for as long as there is somebody who reads it."""
    await start(request)
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass
class Node:
    """A real answering end. `served` is what has come over its links."""

    url: str
    links: NodeLinks
    server: PromptServer
    served: list[LinkedRequest] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way over any of its links, nor remembered of what was."""
        return "0 requests]" in repr(self.links) and not any(link._requests for link in self.links._links)


@asynccontextmanager
async def serving(serve: Serve, *, proof: NodeProof | None = None, **config: Any) -> AsyncIterator[Node]:
    """A node whose links are served by this, on the test's own loop."""
    node: Node

    async def noted(request: LinkedRequest) -> None:
        node.served.append(request)
        await serve(request)

    links = NodeLinks(proof or proof_of("node-b"), noted, max_body_bytes=LIMIT)
    http: Any = partial(HttpProtocol, links=links)
    options = {"lifespan": "off", "log_config": None, "ws": "none", "timeout_graceful_shutdown": 1, **config}
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        server = PromptServer(uvicorn.Config(nothing_there, http=http, **options))
        scheme = "https" if "ssl_certfile" in config else "http"
        node = Node(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", links, server)
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            yield node
        finally:
            links.close()
            server.stop()  # a failed test must not cancel it: it would leave its connections
            with anyio.CancelScope(shield=True):
                await asyncio.wait([running], timeout=WITHIN_S)


async def nothing_there(scope: Any, receive: Any, send: Any) -> None:
    """An application that is no node."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


@contextmanager
def process() -> Iterator[tuple[str, Popen[bytes]]]:
    """A node in a process of its own, "node-b": it takes requests over links and never answers."""
    with Popen(SLOW, stdin=DEVNULL, stdout=PIPE, cwd=ROOT) as running:
        try:
            assert running.stdout is not None
            yield f"http://127.0.0.1:{int(running.stdout.readline())}", running
        finally:
            running.kill()


@contextmanager
def full_listener() -> Iterator[str]:
    """The URL of what accepts no more connections, and does not refuse them."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        filling = [socket.socket() for _ in range(3)]  # the queue of what nobody accepts is full then
        for each in filling:
            each.setblocking(False)
            each.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
        for each in filling:
            each.close()


class Scripted:
    """What a scripted node has seen."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    """A node that does with its n-th connection what the script says."""
    seen = Scripted()
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        seen.open += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(reader, writer, seen.connections)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side has gone, or the test is over
        finally:
            seen.open -= 1
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request, body included."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length: "):
            return head + await reader.readexactly(int(line.split(b": ")[1]))
    return head


def answer(body: bytes = b"{}", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b" % (len(body), headers, body)


class Wire:
    """One end of a link by hand, as records."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sends: bytes, reads: bytes) -> None:
        self.reader, self.writer = reader, writer
        self.records, self._read = RecordWriter(sends), RecordReader(reads)
        self._frames: list[Frame] = []

    def send(self, *frames: bytes) -> None:
        """Sends one record."""
        self.writer.write(self.records.record(b"".join(frames)))

    async def frame(self) -> Frame:
        """The next frame. Raises ConnectionError where the other end has closed the link."""
        while not self._frames:
            data = await self.reader.read(1 << 20)
            if not data:
                raise ConnectionResetError
            self._frames += self._read.feed(data)
        return self._frames.pop(0)

    async def is_closed(self) -> bool:
        """Whether the other end closes the link, once it is told what was sent."""
        try:
            with anyio.fail_after(WITHIN_S):
                while True:
                    await self.frame()
        except ConnectionError:
            return True


async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str = "node-b") -> Wire:
    """For a script: the answering end of a link, once it is open."""
    proof, keys = proved(await read_request(reader), node)
    writer.write(switching(proof))
    return Wire(reader, writer, keys.answers, keys.requests)


def proved(request: bytes, node: str = "node-b") -> tuple[bytes, LinkKeys]:
    """A node's proof for a request that asks for a link."""
    result = proof_of(node).prove(request.split(b"trunkline-challenge: ")[1].split(b"\r\n")[0])
    assert result is not None
    return result


def switching(proof: bytes) -> bytes:
    """The answer that opens a link."""
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: trunkline-link\r\n"
        b"trunkline-node: %b\r\n\r\n" % proof
    )


def asks_for_link(challenge: bytes) -> bytes:
    """The request that opens a link."""
    return (
        b"GET /internal/link HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: trunkline-link\r\n"
        b"trunkline-challenge: %b\r\n\r\n" % challenge
    )


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.close()


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Wire]:
    """The asking end of a link, once it is open."""
    proof = proof_of("node-a")
    challenge = proof.challenge()
    async with connection_to(url) as (reader, writer):
        writer.write(asks_for_link(challenge))
        answer = await reader.readuntil(b"\r\n\r\n")
        checked = proof.check(challenge, answer.split(b"trunkline-node: ")[1].split(b"\r\n")[0])
        assert checked is not None
        node, keys = checked
        assert node == "node-b"
        yield Wire(reader, writer, keys.requests, keys.answers)
