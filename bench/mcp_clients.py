"""Low-overhead MCP clients for load generation: Streamable HTTP, HTTP+SSE and stdio.

Written on asyncio protocols and httptools, without an HTTP client library: one call
costs about 40 us of CPU here, an order less than with httpx and the SDK's client.
Every session numbers its requests 1, 2, 3 ..., so all sessions of a run use the same
JSON-RPC ids: a gateway that mixes sessions up is found out by the answers.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

PROTOCOL_VERSION = "2025-06-18"
CLIENT_INFO = {"name": "bench", "version": "1"}
CONNECT_TIMEOUT = 10.0

Message = dict[str, Any]


class CallFailed(Exception):
    """A request that got no JSON-RPC result; `kind` groups failures in reports, `error` is that of an answer."""

    def __init__(self, kind: str, detail: str = "", error: Message | None = None) -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.error = kind, error


class HttpConnection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection, one request at a time.

    A response of type text/event-stream is parsed as it arrives, and each of its
    JSON messages goes to `on_message`; another body is kept whole in `body`.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.on_message: Callable[[Message], None] | None = None
        self.on_event: Callable[[bytes, bytes], None] | None = None  # non-message events
        self.head_arrived: asyncio.Future[None] | None = None
        self.finished: asyncio.Future[None] | None = None
        self.closed = False
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.is_events = False
        self._scan_from = 0
        self.parser = httptools.HttpResponseParser(self)

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(CallFailed("bad-http", repr(error)))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(CallFailed("connection-lost", repr(exc) if exc else ""))

    def _fail(self, error: CallFailed) -> None:
        for future in (self.head_arrived, self.finished):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # mark as looked at: a waiter may be gone

    # httptools callbacks
    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.is_events = self.headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if self.head_arrived is not None and not self.head_arrived.done():
            self.head_arrived.set_result(None)

    def on_body(self, data: bytes) -> None:
        self.body += data
        if self.is_events:
            self._parse_events()

    def on_message_complete(self) -> None:
        if self.finished is not None and not self.finished.done():
            self.finished.set_result(None)

    def _parse_events(self) -> None:
        while True:
            start = max(0, self._scan_from - 3)
            ends = [end for end in (self.body.find(b"\n\n", start), self.body.find(b"\n\r\n", start)) if end >= 0]
            if not ends:
                self._scan_from = len(self.body)
                return
            end = min(ends)
            block = bytes(self.body[:end])
            del self.body[: end + (2 if self.body[end + 1] == 0x0A else 3)]
            self._scan_from = 0
            name, data = b"message", b""
            for line in block.split(b"\n"):
                field, _, value = line.rstrip(b"\r").partition(b":")
                value = value.removeprefix(b" ")
                if field == b"data":
                    data = data + b"\n" + value if data else value
                elif field == b"event":
                    name = value
            if name == b"message" and data:
                if self.on_message is not None:
                    self.on_message(msgspec.json.decode(data))
            elif data and self.on_event is not None:
                self.on_event(name, data)

    def send(self, method: str, path: str, headers: bytes, body: bytes = b"") -> None:
        """Sends a request; `head_arrived` and `finished` then tell of the response."""
        assert self.transport is not None
        loop = asyncio.get_running_loop()
        self._reset()
        self.head_arrived = loop.create_future()
        self.finished = loop.create_future()
        if self.closed:
            self._fail(CallFailed("connection-lost"))
            return
        length = b"Content-Length: %d\r\n" % len(body) if body or method == "POST" else b""
        self.transport.write(b"%s %s HTTP/1.1\r\n%s%s\r\n%s" % (method.encode(), path.encode(), headers, length, body))

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


async def open_http(host: str, port: int) -> HttpConnection:
    loop = asyncio.get_running_loop()
    _, connection = await asyncio.wait_for(loop.create_connection(HttpConnection, host, port), CONNECT_TIMEOUT)
    return connection


class Session:
    """What the three transports share: request numbering and the MCP handshake."""

    session_id: str | None = None

    def __init__(self) -> None:
        self.last_id = 0
        self.pending: dict[int, asyncio.Future[Message]] = {}
        self.strays: list[Message] = []  # messages that answer no request of ours

    def _next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def _receive(self, message: Message) -> None:
        if "method" not in message and ("result" in message or "error" in message):
            future = self.pending.pop(message.get("id"), None)  # type: ignore[arg-type]
            if future is not None and not future.done():
                future.set_result(message)
                return
        self.strays.append(message)

    async def request(self, method: str, params: Message | None = None, timeout: float = 30.0) -> Message:
        raise NotImplementedError

    async def notify(self, method: str) -> None:
        raise NotImplementedError

    async def open(self) -> None:
        """Connects and performs the MCP handshake."""
        raise NotImplementedError

    async def listen(self) -> int:
        """Opens the stream for server messages where the transport has one; its HTTP status."""
        return 0

    async def close(self) -> None:
        """Ends the session in the transport's polite way."""
        raise NotImplementedError

    def abort(self) -> None:
        """Drops the connection, as a client that crashes does."""
        raise NotImplementedError

    async def _handshake(self) -> None:
        await self.request(
            "initialize", {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": CLIENT_INFO}
        )
        await self.notify("notifications/initialized")

    async def call_tool(self, name: str, arguments: Message, timeout: float = 30.0, meta: Message | None = None) -> str:
        """Calls a tool and returns the text of its answer."""
        params: Message = {"name": name, "arguments": arguments}
        if meta:
            params["_meta"] = meta
        result = await self.request("tools/call", params, timeout)
        text = result["content"][0]["text"]
        if result.get("isError"):
            raise CallFailed("tool-error", text[:200])
        return text

    @staticmethod
    def _unwrap(message: Message) -> Message:
        if "error" in message:
            error = message["error"]
            raise CallFailed("rpc-error", f"{error.get('code')} {error.get('message')}"[:200], error)
        return message["result"]


def _encode(request_id: int | None, method: str, params: Message | None) -> bytes:
    message: Message = {"jsonrpc": "2.0", "method": method}
    if request_id is not None:
        message["id"] = request_id
    if params is not None:
        message["params"] = params
    return msgspec.json.encode(message)


class StreamableSession(Session):
    """A Streamable HTTP session on one keep-alive connection (plus one for `listen`)."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        super().__init__()
        parts = urlsplit(url)
        self.host, self.port, self.path = parts.hostname or "127.0.0.1", parts.port or 80, parts.path
        self.extra = headers or {}
        self.connection: HttpConnection | None = None
        self.listener: HttpConnection | None = None
        self._build_head()

    def _build_head(self) -> None:
        lines = {
            "Host": f"{self.host}:{self.port}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **self.extra,
        }
        if self.session_id is not None:
            lines["Mcp-Session-Id"] = self.session_id
        if self.last_id > 0:
            lines["Mcp-Protocol-Version"] = PROTOCOL_VERSION
        self.head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()

    async def open(self) -> None:
        await self._handshake()

    async def _ready_connection(self) -> HttpConnection:
        """The connection, once its last response has ended; a new one if it did not."""
        connection = self.connection
        if connection is not None and connection.finished is not None and not connection.finished.done():
            try:
                await asyncio.wait_for(asyncio.shield(connection.finished), 1.0)
            except (TimeoutError, CallFailed):
                connection.close()
                connection = None
        if connection is None or connection.closed:
            connection = self.connection = await open_http(self.host, self.port)
        return connection

    async def request(self, method: str, params: Message | None = None, timeout: float = 30.0) -> Message:
        request_id = self._next_id()
        body = _encode(request_id, method, params)
        connection = await self._ready_connection()
        answer = self.pending[request_id] = asyncio.get_running_loop().create_future()
        connection.on_message = self._receive
        connection.send("POST", self.path, self.head, body)
        finished = connection.finished
        assert finished is not None
        finished.add_done_callback(lambda _: self._response_over(connection, request_id))
        timer = asyncio.get_running_loop().call_later(timeout, self._time_out, connection, request_id)
        try:
            message = await answer
        finally:
            timer.cancel()
            self.pending.pop(request_id, None)
        if method == "initialize":
            session_id = connection.headers.get(b"mcp-session-id")
            self.session_id = session_id.decode() if session_id else None
            self._build_head()
        return self._unwrap(message)

    def _time_out(self, connection: HttpConnection, request_id: int) -> None:
        future = self.pending.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(CallFailed("timeout"))
        connection.close()

    def _response_over(self, connection: HttpConnection, request_id: int) -> None:
        """The HTTP response ended: takes a JSON body, or fails an unanswered request."""
        future = self.pending.get(request_id)
        if future is None or future.done():
            return
        finished = connection.finished
        if finished is not None and finished.done() and finished.exception() is not None:
            error: Exception = finished.exception()  # type: ignore[assignment]
        elif connection.status >= 400:
            error = CallFailed(f"http-{connection.status}", bytes(connection.body[:200]).decode(errors="replace"))
        elif not connection.is_events and connection.body:
            try:
                message = msgspec.json.decode(connection.body)
            except msgspec.DecodeError:
                error = CallFailed("bad-json", bytes(connection.body[:100]).decode(errors="replace"))
            else:
                self._receive(message)
                if future.done():
                    return
                error = CallFailed("wrong-answer", str(message)[:200])
        else:
            error = CallFailed("empty-response", f"status {connection.status}")
        self.pending.pop(request_id, None)
        future.set_exception(error)

    async def notify(self, method: str) -> None:
        connection = await self._ready_connection()
        connection.send("POST", self.path, self.head, _encode(None, method, None))
        await asyncio.wait_for(asyncio.shield(connection.finished), 10)  # type: ignore[arg-type]
        if connection.status >= 400:
            raise CallFailed(f"http-{connection.status}", bytes(connection.body[:200]).decode(errors="replace"))

    async def listen(self) -> int:
        """Opens the GET stream for server messages (they go to `strays`); its status."""
        self.listener = await open_http(self.host, self.port)
        self.listener.on_message = self._receive
        self.listener.send("GET", self.path, self.head)
        try:
            await asyncio.wait_for(asyncio.shield(self.listener.head_arrived), 2)  # type: ignore[arg-type]
        except TimeoutError:
            return 0
        return self.listener.status

    async def close(self) -> None:
        if self.session_id is not None:
            try:
                connection = await self._ready_connection()
                connection.send("DELETE", self.path, self.head)
                await asyncio.wait_for(asyncio.shield(connection.finished), 10)  # type: ignore[arg-type]
            except (CallFailed, OSError, TimeoutError):
                pass
        self.abort()

    def abort(self) -> None:
        for connection in (self.connection, self.listener):
            if connection is not None:
                connection.close()
        self.connection = self.listener = None


class SseSession(Session):
    """A session of the 2024-11-05 HTTP+SSE transport: a GET stream and POSTs beside it."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        super().__init__()
        parts = urlsplit(url)
        self.host, self.port, self.path = parts.hostname or "127.0.0.1", parts.port or 80, parts.path
        lines = {"Host": f"{self.host}:{self.port}", **(headers or {})}
        common = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.get_head = (common + "Accept: text/event-stream\r\n").encode()
        self.post_head = (common + "Content-Type: application/json\r\n").encode()
        self.post_path: str | None = None
        self.stream: HttpConnection | None = None
        self.poster: HttpConnection | None = None

    async def open(self) -> None:
        endpoint: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_event(name: bytes, data: bytes) -> None:
            if name == b"endpoint" and not endpoint.done():
                endpoint.set_result(data)

        self.stream = await open_http(self.host, self.port)
        self.stream.on_message = self._receive
        self.stream.on_event = on_event
        self.stream.send("GET", self.path, self.get_head)
        self.stream.finished.add_done_callback(self._stream_over)  # type: ignore[union-attr]
        self.stream.finished.add_done_callback(  # type: ignore[union-attr]
            lambda _: endpoint.done() or endpoint.set_exception(self._refused())  # type: ignore[func-returns-value]
        )
        address = urlsplit((await asyncio.wait_for(endpoint, 30)).decode())
        self.post_path = address.path + (f"?{address.query}" if address.query else "")
        self.session_id = address.query
        await self._handshake()

    def _refused(self) -> CallFailed:
        stream = self.stream
        if stream is None or stream.status < 400:
            return CallFailed("stream-lost")
        return CallFailed(f"http-{stream.status}", bytes(stream.body[:200]).decode(errors="replace"))

    def _stream_over(self, finished: asyncio.Future[None]) -> None:
        for future in self.pending.values():
            if not future.done():
                future.set_exception(CallFailed("stream-lost"))
        self.pending.clear()

    async def _post(self, body: bytes) -> HttpConnection:
        poster = self.poster
        if poster is None or poster.closed:
            poster = self.poster = await open_http(self.host, self.port)
        assert self.post_path is not None
        poster.send("POST", self.post_path, self.post_head, body)
        await poster.finished  # type: ignore[misc]
        if poster.status >= 400:
            raise CallFailed(f"http-{poster.status}", bytes(poster.body[:200]).decode(errors="replace"))
        return poster

    async def request(self, method: str, params: Message | None = None, timeout: float = 30.0) -> Message:
        request_id = self._next_id()
        answer = self.pending[request_id] = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(timeout, self._time_out, request_id)
        try:
            if self.stream is None or self.stream.closed:
                raise CallFailed("stream-lost")
            await self._post(_encode(request_id, method, params))
            return self._unwrap(await answer)
        finally:
            timer.cancel()
            self.pending.pop(request_id, None)
            if answer.done() and not answer.cancelled():
                answer.exception()

    def _time_out(self, request_id: int) -> None:
        future = self.pending.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(CallFailed("timeout"))
        if self.poster is not None and self.poster.finished is not None and not self.poster.finished.done():
            self.poster.close()

    async def notify(self, method: str) -> None:
        await self._post(_encode(None, method, None))

    async def listen(self) -> int:
        return self.stream.status if self.stream is not None else 0

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        for connection in (self.stream, self.poster):
            if connection is not None:
                connection.close()
        self.stream = self.poster = None


class _PipeReader(asyncio.Protocol):
    def __init__(self, on_line: Callable[[bytes | bytearray], None]) -> None:
        self.on_line = on_line
        self.pending = bytearray()

    def data_received(self, data: bytes) -> None:
        self.pending += data
        if data.endswith(b"\n"):
            lines, self.pending = self.pending, bytearray()
        else:
            cut = self.pending.rfind(b"\n", len(self.pending) - len(data)) + 1
            if not cut:
                return
            lines = self.pending[:cut]
            del self.pending[:cut]
        for line in lines.splitlines():
            self.on_line(line)


class StdioSession(Session):
    """A session straight on the pipes of its own backend process: no gateway at all."""

    def __init__(self, command: list[str]) -> None:
        super().__init__()
        self.command = command
        self.process: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        child_in, self.to_child = os.pipe()
        self.from_child, child_out = os.pipe()
        self.process = await asyncio.create_subprocess_exec(*self.command, stdin=child_in, stdout=child_out)
        os.close(child_in)
        os.close(child_out)
        self.writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(self.to_child, "wb", 0))
        self.reader, _ = await loop.connect_read_pipe(
            lambda: _PipeReader(lambda line: self._receive(msgspec.json.decode(line))),
            os.fdopen(self.from_child, "rb", 0),
        )
        await self._handshake()

    async def request(self, method: str, params: Message | None = None, timeout: float = 30.0) -> Message:
        request_id = self._next_id()
        answer = self.pending[request_id] = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(
            timeout,
            lambda: answer.done() or answer.set_exception(CallFailed("timeout")),  # type: ignore[func-returns-value]
        )
        self.writer.write(_encode(request_id, method, params) + b"\n")
        try:
            return self._unwrap(await answer)
        finally:
            timer.cancel()
            self.pending.pop(request_id, None)

    async def notify(self, method: str) -> None:
        self.writer.write(_encode(None, method, None) + b"\n")

    async def close(self) -> None:
        self.writer.close()
        self.reader.close()
        if self.process is not None:
            await asyncio.wait_for(self.process.wait(), 10)

    def abort(self) -> None:
        self.writer.abort()


class StaticSession(StreamableSession):
    """A client of a fixed responder: the same HTTP work, but any answer will do."""

    async def open(self) -> None:
        await self._handshake()

    def _receive(self, message: Message) -> None:
        for request_id in list(self.pending):
            future = self.pending.pop(request_id)
            if not future.done():
                future.set_result(message)


SessionFactory = Callable[[], Session]
Waiter = Callable[[], Awaitable[None]]


def make_factory(transport: str, target: str, headers: dict[str, str]) -> SessionFactory:
    """A function that makes sessions: target is a URL, or for stdio a command."""
    if transport == "stdio":
        return lambda: StdioSession(target.split())
    kinds: dict[str, type] = {"streamable": StreamableSession, "sse": SseSession, "static": StaticSession}
    return lambda: kinds[transport](target, headers)
