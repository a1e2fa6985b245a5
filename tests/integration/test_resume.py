"""Streams whose connection breaks in the middle of a call, over real sockets: nothing lost, nothing twice."""

import asyncio
import itertools
import json
import random
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, until
from tests.integration.servers import python_client, text_of
from tests.integration.wire import Event, Wire, error_of, wire

pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
TORRENT = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/torrent.py")]
EVENTS_ONLY = "text/event-stream"  # such a client's answer is a stream from the start
CLIENTS, CALLS = 50, 6


class Call:
    """One tools/call as a client lives it whose connections break: what it has seen, and where it goes on."""

    def __init__(self, session: Wire, request_id: str, tool: str, **arguments: Any) -> None:
        self.session = session
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": request_id}}
        self.body: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        self.seen: list[Any] = []
        self.place: str | None = None

    @property
    def answers(self) -> list[Any]:
        return [message for message in self.seen if "result" in message]

    async def post(self, cut_after: int) -> None:
        """Sends the call and breaks the connection after so many events."""
        sent = {**self.session.headers, "Accept": EVENTS_ONLY}
        await self._exchange("POST", sent, json.dumps(self.body).encode(), cut_after)

    async def resume(self, cut_after: int | None = None) -> None:
        assert self.place is not None
        await self._exchange("GET", {**self.session.headers, "Last-Event-ID": self.place}, b"", cut_after)

    async def _exchange(self, method: str, headers: dict[str, str], body: bytes, cut_after: int | None) -> None:
        url = httpx2.URL(self.session.url)
        head = [f"{method} {url.path} HTTP/1.1", f"Host: {url.host}:{url.port}", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        reader, writer = await asyncio.open_connection(url.host, url.port)
        try:
            writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
            status = await reader.readuntil(b"\r\n\r\n")
            assert status.startswith(b"HTTP/1.1 200"), status
            await self._read(reader, cut_after)
        finally:
            # Without lingering, closing is a reset: what a dead network looks like to the gateway, at best.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, cut_after: int | None) -> None:
        for count in itertools.count(1):
            event = await _chunked_event(reader)
            if event is None:
                return
            self.place = event.id or self.place
            if event.data:
                self.seen.append(event.message)
            if count == cut_after:
                return


async def _chunked_event(reader: asyncio.StreamReader) -> Event | None:
    """The next event; the gateway sends each as one chunk of its own. None at the end."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunk = (await reader.readexactly(size + 2)).decode()
        fields = dict(line.split(": ", 1) for line in chunk.splitlines() if line and not line.startswith(":"))
        if fields:
            return Event(fields.get("event", "message"), fields.get("data", ""), fields.get("id"))
    return None


class CuttingProxy:
    """Passes bytes between a client and the gateway, and breaks the first call that has become a stream."""

    def __init__(self, target: str, *, cuts: int) -> None:
        self.target = target
        self.may_cut = cuts
        self.cuts = 0
        self.resumed = 0
        self.answers: list[bytes] = []  # to what was resumed
        self.tasks: set[asyncio.Task[None] | None] = set()
        self.writers: set[asyncio.StreamWriter] = set()

    async def aclose(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.gather(*filter(None, self.tasks))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        host, port = self.target.split(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        self.writers |= {writer, up_writer}
        request = b""

        async def upstream() -> None:
            nonlocal request
            while chunk := await reader.read(1 << 16):
                request = chunk if chunk.startswith((b"POST", b"GET", b"DELETE")) else request + chunk
                self.resumed += b"last-event-id" in chunk.lower()
                up_writer.write(chunk)
            up_writer.close()

        async def downstream() -> None:
            while chunk := await up_reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()
                if b"last-event-id" in request.lower() and chunk.startswith(b"HTTP/1.1 "):
                    self.answers.append(chunk[9:12])
                # On a busy machine the answer to `initialize` becomes a stream, too, as its process starts.
                is_call = request.startswith(b"POST") and b"tools/call" in request
                if self.cuts < self.may_cut and is_call and b"data: \n\n" in chunk:
                    self.cuts += 1
                    up_writer.transport.abort()
                    break
            writer.close()  # in the middle of a chunked body: the client takes it for a broken connection

        await asyncio.gather(upstream(), downstream(), return_exceptions=True)


@asynccontextmanager
async def cutting(endpoint: Endpoint, cuts: int = 1) -> AsyncIterator[tuple[CuttingProxy, Endpoint]]:
    """A proxy in front of the endpoint, and the endpoint as seen through it."""
    proxy = CuttingProxy(endpoint.gateway.host, cuts=cuts)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    base = endpoint.base.replace(endpoint.gateway.host, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield proxy, Endpoint(endpoint.gateway, endpoint.tenant, endpoint.name, base, endpoint.key)
    finally:
        server.close()
        await proxy.aclose()


async def test_a_call_cut_in_the_middle_is_answered_on_resume_exactly_once(echo: Endpoint) -> None:
    """2025-11-25, basic/transports: disconnection is not cancellation, and resumption is always via GET."""
    async with wire(echo) as session:
        call = Call(session, "cut-1", "sleep", ms=200)
        await call.post(cut_after=1)
        assert (call.seen, call.place[-2:]) == ([], "-0")  # type: ignore[index]
        await call.resume()
        assert [answer["id"] for answer in call.answers] == ["cut-1"]
        again = await session.http.get(
            session.url, headers={**session.headers, "Last-Event-ID": call.place.rsplit("-", 1)[0] + "-0"}
        )
        assert again.text.count('"result"') == 1  # asked for the same place again, a client gets the same


async def test_an_older_client_resumes_from_an_event_it_has_seen(echo: Endpoint) -> None:
    async with wire(echo, version="2025-06-18") as session:
        call = Call(session, "cut-2", "progress", n=5)
        await call.post(cut_after=2)
        await call.resume()
        assert [message["params"]["progress"] for message in call.seen[:-1]] == [0, 1, 2, 3, 4]
        assert len(call.answers) == 1


async def test_a_resumed_stream_has_its_own_events_only_while_another_reads_the_listen_stream(echo: Endpoint) -> None:
    async with wire(echo) as session, session.stream("GET", Accept=EVENTS_ONLY) as listening:
        assert listening.status_code == 200
        calls = [Call(session, f"own-{number}", "sleep", ms=150) for number in range(4)]
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.post, 1)
        assert len({call.place for call in calls}) == 4
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.resume)
        assert [[message["id"] for message in call.seen] for call in calls] == [[f"own-{n}"] for n in range(4)]


async def test_another_principals_event_id_is_not_found(gateway: Gateway, echo: Endpoint) -> None:
    async with wire(echo) as session:
        call = Call(session, "mine", "sleep", ms=1)
        await call.post(cut_after=1)
        stranger = {"Authorization": f"Bearer {gateway.key(echo.tenant)}", "Last-Event-ID": call.place or ""}
        refused = await session.http.get(session.url, headers={**session.headers, **stranger})
        assert (refused.status_code, error_of(refused).reason) == (404, "session_not_found")
        async with wire(echo) as other:  # of the same principal: nothing of it there
            headers = {**other.headers, "Last-Event-ID": call.place or ""}
            refused = await other.http.get(other.url, headers=headers)
            assert (refused.status_code, error_of(refused).reason) == (400, "invalid_event_id")
            assert await other.call("echo", text="goes on") == "goes on"
        await call.resume()
        finished = await session.http.get(session.url, headers={**session.headers, "Last-Event-ID": call.place or ""})
        assert (finished.status_code, finished.content) == (204, b"")
        assert len(call.answers) == 1


async def test_fifty_clients_with_random_cuts_lose_nothing_and_get_nothing_twice(echo: Endpoint) -> None:
    dice = random.Random(25112025)
    calls: list[Call] = []

    async def one_call(session: Wire, call: Call) -> None:
        await call.post(cut_after=dice.randint(1, 4))
        while not call.answers:
            await call.resume(dice.choice([None, 1, 2, 3]))

    async def one_client(number: int) -> None:
        async with wire(echo) as session, anyio.create_task_group() as tasks:
            for serial in range(CALLS):
                request_id = f"{number}-{serial}"
                arguments: dict[str, dict[str, Any]] = {
                    "sleep": {"ms": dice.randint(0, 300)},
                    "progress": {"n": 6},
                    "echo": {"text": request_id},
                }
                tool = dice.choice(list(arguments))
                calls.append(Call(session, request_id, tool, **arguments[tool]))
                tasks.start_soon(one_call, session, calls[-1])

    with anyio.fail_after(200):
        async with anyio.create_task_group() as tasks:
            for number in range(CLIENTS):
                tasks.start_soon(one_client, number)
    assert len(calls) == CLIENTS * CALLS
    for call in calls:
        own = call.body["id"]
        assert [answer["id"] for answer in call.answers] == [own]
        steps = [message["params"] for message in call.seen[:-1]]
        expected = range(6 if call.body["params"]["name"] == "progress" else 0)
        assert [(step["progressToken"], step["progress"]) for step in steps] == [(own, step) for step in expected]
        if call.body["params"]["name"] == "echo":
            assert call.answers[0]["result"]["content"][0]["text"] == own


@pytest.fixture
def impatient(start_gateway: Callable[..., Gateway]) -> Endpoint:
    """The echo server behind a gateway that soon makes a stream of what is silent."""
    return start_gateway(STREAM_AFTER_S="0.5").endpoint(ECHO)


async def test_the_python_client_gets_its_answer_over_a_cut_connection(impatient: Endpoint) -> None:
    async with cutting(impatient) as (proxy, cut), python_client(cut, "streamable") as client:
        assert text_of(await client.call_tool("sleep", {"ms": 1500})) == "slept"
    assert (proxy.cuts, proxy.resumed) == (1, 1)


@pytest.mark.node
async def test_the_typescript_client_gets_its_answer_over_a_cut_connection(impatient: Endpoint) -> None:
    async with cutting(impatient) as (proxy, cut):
        steps = [["callTool", {"name": "sleep", "arguments": {"ms": 1500}}], ["ping"]]
        with anyio.fail_after(60):
            done = await anyio.run_process(
                ["node", str(ROOT / "tests/npm/client.mjs"), "streamable", cut.mcp, cut.key],
                input="".join(json.dumps(step) + "\n" for step in steps).encode(),
                stderr=subprocess.STDOUT,
            )
        slept, pong = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert (slept["result"]["content"][0]["text"], pong) == ("slept", {"result": {}})
    assert (proxy.cuts, proxy.resumed) == (1, 1)


@pytest.mark.node
async def test_the_typescript_client_keeps_its_listen_stream_after_a_call_that_failed(gateway: Gateway) -> None:
    """It asks for the rest of a stream that has ended with an error. An answer that is a stream, and ends, it would
    resume again, for ever; and as the listen stream that would be taken over from itself."""
    endpoint = gateway.endpoint(TORRENT)
    async with cutting(endpoint, cuts=0) as (proxy, seen):
        command = ["node", str(ROOT / "tests/npm/client.mjs"), "streamable", seen.mcp, seen.key]
        async with await anyio.open_process(command) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            said = BufferedByteReceiveStream(client.stdout)

            async def step(*words: Any) -> Any:
                await client.stdin.send(json.dumps(words).encode() + b"\n")  # type: ignore[union-attr]
                return json.loads(await said.receive_until(b"\n", 1 << 16))

            with anyio.fail_after(60):
                arguments = {"count": 1, "size": 1, "text": "no", "fails": True}
                assert "no" in (await step("progress", "x", arguments))["error"]["message"]
                await until(lambda: bool(proxy.answers), 30)
                await step("sendRootsListChanged")
                heard = await step("wait", "notifications/tools/list_changed")
            assert heard["result"]["method"] == "notifications/tools/list_changed"
            await client.stdin.aclose()
            await client.wait()
    assert proxy.answers == [b"204"]
