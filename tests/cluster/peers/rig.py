"""Other nodes, as far as their sockets go: a real one, a process that never answers, or a script of raw bytes."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import anyio
import uvicorn

from app.cluster.peers.client import (
    CHALLENGE,
    GREETING_PATH,
    OTHER_KEY,
    PROOF,
    Deadlines,
    PeerClient,
    PeerRequest,
    PeerResponse,
)
from app.cluster.peers.credentials import NodeCredentials, Word
from app.domain import Principal
from app.http.edge.http_protocol import HttpProtocol
from app.sessions.routes import NodeRecord

ROOT = Path(__file__).resolve().parents[3]
WITHIN_S = 30.0
STILL_S = 0.15  # what goes through two sockets does not pause for so long
TURN_S = 0.05
SLOW = [sys.executable, "-m", "tests.servers.slow_http"]
PATIENT = Deadlines(connect_s=30.0, greet_s=30.0)  # the other node may have to wait for a processor
KEY, TARGET = b"k" * 32, b"/t/acme/echo/mcp"
LIMIT = 8 << 20
ALICE = Principal("acme", "key", "alice", frozenset({"mcp:connect"}))
NOTHING = "<PeerClient [0 nodes, 0 open, 0 idle]>"

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


async def turned_for(work: Awaitable[Any]) -> float:
    """The seconds until this is done, of which only those count in which the event loop could turn: deadlines count no
    others."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        turns += 1
        await asyncio.wait([task], timeout=TURN_S)
    return turns * TURN_S


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


def credentials(node: str = "node-a", key: bytes = KEY) -> NodeCredentials:
    return NodeCredentials(key, node, time.time)


def record(url: str, node: str = "node-b", *, draining: bool = False) -> NodeRecord:
    return NodeRecord(node, url, "1", datetime.now(UTC), draining=draining)


def request_of(
    method: str = "POST", target: bytes = TARGET, headers: Sequence[tuple[bytes, bytes]] = ((b"x-a", b"b"),)
) -> PeerRequest:
    return PeerRequest(method, target, headers, Word(ALICE, "http://127.0.0.1"))


async def begin(client: PeerClient, url: str, body: bytes = b"hello") -> PeerResponse:
    return await client.begin(record(url), request_of(), body)


async def post(client: PeerClient, url: str, body: bytes = b"hello") -> bytes:
    """What the node answers."""
    response = await client.send(record(url), request_of(), body)
    assert response.status == 200
    return await response.body(LIMIT)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body it was sent."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [(b"x-method", scope["method"].encode()), (b"X-Path", scope["raw_path"] + b"?" + scope["query_string"])]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def node_app(app: Any, node: NodeCredentials) -> Any:
    """The same as a node: it says which one it is."""

    async def greets(scope: Any, receive: Any, send: Any) -> None:
        challenge = dict(scope["headers"]).get(CHALLENGE)
        if scope["path"].encode() != GREETING_PATH or challenge is None:
            await app(scope, receive, send)
            return
        proof = node.prove(challenge) or OTHER_KEY
        status = 403 if proof == OTHER_KEY else 204
        await send({"type": "http.response.start", "status": status, "headers": [(PROOF, proof)]})
        await send({"type": "http.response.body", "body": b""})

    return greets


@asynccontextmanager
async def serving(app: Any, *, node: NodeCredentials | None = None, **config: Any) -> AsyncIterator[str]:
    """The URL of a node that answers with this, on the test's own loop."""
    options = {"lifespan": "off", "log_config": None, "ws": "none", "timeout_graceful_shutdown": 1, **config}
    http: Any = HttpProtocol
    app = node_app(app, node or credentials("node-b"))
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        server = PromptServer(uvicorn.Config(app, http=http, **options))
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            scheme = "https" if "ssl_certfile" in config else "http"
            yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()  # a failed test must not cancel it: it would leave its connections
            with anyio.CancelScope(shield=True):
                await asyncio.wait([running], timeout=WITHIN_S)


async def nothing_there(scope: Any, receive: Any, send: Any) -> None:
    """An application that is no node."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


@contextmanager
def process() -> Iterator[tuple[str, Popen[bytes]]]:
    """A node in a process of its own, "node-b": it says which one it is, takes requests and never answers."""
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


def greeting(request: bytes, node: str = "node-b") -> bytes:
    """The answer of this node to a request that asks which one it is."""
    proof = credentials(node).prove(request.split(b"trunkline-challenge: ")[1].split(b"\r\n")[0])
    return b"HTTP/1.1 204 No Content\r\n%b: %b\r\n\r\n" % (PROOF, proof or b"")


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str = "node-b") -> None:
    """For a script: says which node it is, as on every new connection."""
    writer.write(greeting(await read_request(reader), node))


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """For a script: the first request on a new connection."""
    await greet(reader, writer)
    return await read_request(reader)
