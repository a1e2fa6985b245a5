"""MCP by hand: raw bytes over HTTP, for what a client library would not send or not show."""

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import httpx2

from tests.integration.gateway import Endpoint

LATEST = "2025-11-25"
ACCEPT = "application/json, text/event-stream"

REFUSED_WITHIN_S = 10.0  # no refusal waits for anything; the rest is a machine that is busy or stands still


@dataclass(frozen=True)
class Event:
    """One server-sent event; `data` is empty for a priming event."""

    name: str
    data: str
    id: str | None

    @property
    def message(self) -> Any:
        return json.loads(self.data)


async def events(response: httpx2.Response) -> AsyncIterator[Event]:
    """The events of a stream, until it ends. Comments are left out."""
    name, event_id, seen = "message", None, False
    data: list[str] = []
    async for line in response.aiter_lines():
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if seen:
                yield Event(name, "\n".join(data), event_id)
            name, data, event_id, seen = "message", [], None, False
        elif field == "data":
            data.append(value)
            seen = True
        elif field == "event":
            name = value
        elif field == "id":
            event_id = value


class RpcError(Exception):
    """The answer was a JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.code = error["code"]
        self.data = error.get("data") or {}
        self.reason = self.data.get("reason")


class Wire:
    """One Streamable HTTP session, message by message."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint, *, key: str | None = None) -> None:
        self.http, self.url = http, endpoint.mcp
        self.headers = {
            "Authorization": f"Bearer {key or endpoint.key}",
            "Accept": ACCEPT,
            "Content-Type": "application/json",
        }
        self.ids = itertools.count(1)
        self.session_id = ""

    async def open(self, version: str = LATEST, capabilities: dict[str, Any] | None = None) -> dict[str, Any]:
        """The handshake; returns the backend's answer to `initialize`."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "wire", "version": "1"},
        }
        response = await self.post({"jsonrpc": "2.0", "id": next(self.ids), "method": "initialize", "params": params})
        result = answer(response)
        self.session_id = response.headers["mcp-session-id"]
        self.headers["Mcp-Session-Id"] = self.session_id
        self.headers["MCP-Protocol-Version"] = version
        response = await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert response.status_code == 202, response.text
        return result

    async def post(self, body: Any, **headers: str) -> httpx2.Response:
        """Posts bytes as they are, or anything else as JSON; the whole answer, stream or not."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(self.url, content=content, headers={**self.headers, **_spell(headers)})

    async def request(self, method: str, params: Any = None) -> Any:
        """One request; its result, or RpcError."""
        message = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params or {}}
        return answer(await self.post(message))

    async def call(self, tool: str, **arguments: Any) -> str:
        """Calls a tool; the text of its answer."""
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        return str(result["content"][0]["text"])

    async def ask(self, tool: str, **arguments: Any) -> RpcError:
        """Calls a tool that must fail with a JSON-RPC error; that error."""
        try:
            text = await self.call(tool, **arguments)
        except RpcError as error:
            return error
        raise AssertionError(f"answered with {text!r}")

    @asynccontextmanager
    async def stream(self, method: str, body: Any = None, **headers: str) -> AsyncIterator[httpx2.Response]:
        """A request whose answer is read as it comes."""
        content = None if body is None else json.dumps(body).encode()
        sent = {**self.headers, **_spell(headers)}
        async with self.http.stream(method, self.url, content=content, headers=sent) as response:
            yield response

    async def close(self, **headers: str) -> httpx2.Response:
        return await self.http.delete(self.url, headers={**self.headers, **_spell(headers)})


def answer(response: httpx2.Response) -> Any:
    """The result in the answer to one request, as JSON or as the last message of a stream."""
    message = last_message(response)
    if "error" in message:
        raise RpcError(message["error"])
    return message["result"]


def last_message(response: httpx2.Response) -> Any:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        found = [line.removeprefix("data:").strip() for line in response.text.splitlines() if line.startswith("data:")]
        return json.loads(next(each for each in reversed(found) if each))
    return response.json()


def error_of(response: httpx2.Response) -> RpcError:
    """The JSON-RPC error in an answer."""
    message = last_message(response)
    assert "error" in message, message
    return RpcError(message["error"])


def _spell(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def wire(endpoint: Endpoint, **options: Any) -> AsyncIterator[Wire]:
    """An open session with a connection pool of its own, closed at the end."""
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, endpoint)
        await session.open(**options)
        try:
            yield session
        finally:
            # The gateway may be gone by now.
            with anyio.move_on_after(10, shield=True), suppress(httpx2.TransportError):
                await session.close()


@asynccontextmanager
async def listening(session: Wire) -> AsyncIterator[list[Any]]:
    """What comes on the session's GET stream, as it comes."""
    heard: list[Any] = []

    async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with session.stream("GET") as response:
            task_status.started()
            async for event in events(response):
                heard.extend([event.message] if event.data else [])

    async with anyio.create_task_group() as tasks:
        await tasks.start(listen)
        yield heard
        tasks.cancel_scope.cancel()


@contextmanager
def in_time() -> Iterator[None]:
    with anyio.fail_after(REFUSED_WITHIN_S):
        yield


def rpc(method: str, request_id: Any = 1, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}


def initialize(version: str = "2025-11-25") -> dict[str, Any]:
    client = {"name": "t", "version": "1"}
    return rpc("initialize", params={"protocolVersion": version, "capabilities": {}, "clientInfo": client})
