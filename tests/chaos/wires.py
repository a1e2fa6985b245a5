"""How a client of each kind talks to the gateway, one exchange at a time, and what it makes of the answer."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2

from tests.integration.wire import ACCEPT, LATEST, Event, events

PATIENCE_S = (3.0, 6.0, 12.0)  # for one exchange: some clients wait longer than others
SILENCE_S = 6.0  # of an event stream, which has a comment each 2 s
STILL_S = 2.0  # for an answer on the stream to a request that broke off
RESUMED_AGAIN_S = 0.2
RESUMES = 20
META = "io.modelcontextprotocol/"
SESSIONLESS = "2026-07-28"


@dataclass
class Answer:
    """What became of one request; `message` is None where nothing came that answers it."""

    status: int = 0
    message: dict[str, Any] | None = None
    session_id: str = ""
    retry_after: float = 0.0
    text: str = ""

    @property
    def outcome(self) -> str:
        if self.status >= 400:
            return "refused"
        if self.message is None:
            return "unknown"
        return "answered" if "result" in self.message else "error"

    @property
    def reason(self) -> str:
        error = (self.message or {}).get("error") or {}
        return str((error.get("data") or {}).get("reason", error.get("code", "")))

    @property
    def said(self) -> dict[str, Any]:
        """What the tool has answered."""
        with suppress(KeyError, IndexError, TypeError, ValueError):
            found: dict[str, Any] = json.loads(self.message["result"]["content"][0]["text"])  # type: ignore[index]
            return found
        return {}


OnMessage = Callable[[Event, str], None]  # a message that is no answer, and on which stream it came


class Wire:
    """Requests with the headers of one client. `url` says where the next one goes."""

    def __init__(
        self, http: httpx2.AsyncClient, headers: dict[str, str], on_message: OnMessage, patience_s: float
    ) -> None:
        self.http, self.on_message, self.patience_s = http, on_message, patience_s
        self.headers = {**headers, "Accept": ACCEPT, "Content-Type": "application/json"}

    async def post(self, url: str, body: dict[str, Any], again: Callable[[], str] | None = None) -> Answer:
        """One message. A stream that breaks off is resumed where `again` says, if it has an event with an id."""
        answer, place = Answer(), ""
        with suppress(TimeoutError), anyio.fail_after(self.patience_s):
            place = await self._exchange(answer, "POST", url, body)
            for _ in range(RESUMES):
                if answer.status != 200 or answer.message is not None or not place or again is None:
                    break
                await anyio.sleep(RESUMED_AGAIN_S)
                place = await self._resume(answer, again(), body, place)
        return answer

    async def _resume(self, answer: Answer, url: str, body: dict[str, Any], place: str) -> str:
        """Goes on reading; empty where there is nothing to go on with."""
        resumed = Answer()
        then = await self._exchange(resumed, "GET", url, body, place)
        answer.message = resumed.message if resumed.status == 200 else None
        return "" if resumed.status == 404 else then or place

    async def _exchange(self, answer: Answer, method: str, url: str, body: dict[str, Any], after: str = "") -> str:
        """Fills the answer in as far as it comes; the id of the last event."""
        place = ""
        headers = {**self.headers, **({"Last-Event-ID": after} if after else {})}
        content = None if after else json.dumps(body).encode()
        with suppress(httpx2.TransportError):
            async with self.http.stream(method, url, content=content, headers=headers) as response:
                answer.status = response.status_code
                answer.session_id = response.headers.get("mcp-session-id", "")
                answer.retry_after = float(response.headers.get("retry-after", 0))
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    await response.aread()
                    answer.text = response.text[:300]
                    with suppress(ValueError):
                        answer.message = response.json()
                    return place
                async for event in events(response):
                    place = event.id or place
                    if event.data and _answers(event.message, body):
                        answer.message = event.message
                        break
                    if event.data:
                        self.on_message(event, str(body["id"]))
        return place

    @asynccontextmanager
    async def listen(self, url: str, after: str = "") -> AsyncIterator[tuple[int, AsyncIterator[Event]]]:
        """A GET stream: its status, and its events until it breaks or is silent for too long."""
        headers = {**self.headers, "Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        timeout = httpx2.Timeout(self.patience_s, read=SILENCE_S)
        async with self.http.stream("GET", url, headers=headers, timeout=timeout) as response:
            yield response.status_code, events(response)

    async def delete(self, url: str) -> int:
        with suppress(httpx2.TransportError, TimeoutError), anyio.fail_after(self.patience_s):
            return (await self.http.delete(url, headers=self.headers)).status_code
        return 0


def _answers(message: Any, body: dict[str, Any]) -> bool:
    return isinstance(message, dict) and "method" not in message and message.get("id") == body.get("id")


def initialize(name: str) -> dict[str, Any]:
    """The first message of a session; the name is what the backend will call itself the backend of."""
    client = {"name": name, "version": "1"}
    params = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": "open", "method": "initialize", "params": params}


def tool_call(name: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """A call that is its own id everywhere: in JSON-RPC, in the arguments, in the backend's journal."""
    params = {"name": tool, "arguments": {"call": name, **arguments}}
    return {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params}


def sessionless(body: dict[str, Any], client: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The same as a request of 2026-07-28, with the headers that belong to it."""
    about = {"name": client, "version": "1"}
    meta = {META + "protocolVersion": SESSIONLESS, META + "clientCapabilities": {}, META + "clientInfo": about}
    params = {**body["params"], "_meta": meta}
    headers = {"MCP-Protocol-Version": SESSIONLESS, "Mcp-Method": body["method"], "Mcp-Name": params["name"]}
    return {**body, "params": params}, headers


class SseWire:
    """HTTP+SSE: one stream for everything that comes, and POSTs beside it."""

    def __init__(
        self, http: httpx2.AsyncClient, headers: dict[str, str], on_message: OnMessage, patience_s: float
    ) -> None:
        self.http, self.headers, self.on_message, self.patience_s = http, headers, on_message, patience_s
        self._waiting: dict[str, tuple[Answer, anyio.Event]] = {}
        self.path, self.status, self.is_open = "", 0, False
        self.began = anyio.Event()

    async def read(self, url: str) -> None:
        """Opens the stream and reads it to its end."""
        timeout = httpx2.Timeout(self.patience_s, read=SILENCE_S)
        try:
            with suppress(httpx2.TransportError):
                headers = {**self.headers, "Accept": "text/event-stream"}
                async with self.http.stream("GET", url + "/sse", headers=headers, timeout=timeout) as response:
                    self.status = response.status_code
                    if self.status == 200:
                        async for event in events(response):
                            self._take(event)
        finally:
            self.is_open = False
            self.began.set()
            for _, done in self._waiting.values():
                done.set()

    def _take(self, event: Event) -> None:
        if event.name == "endpoint":
            url = httpx2.URL(event.data)
            self.path = url.raw_path.decode()
            self.is_open = True
            self.began.set()
            return
        message = event.message
        if "method" not in message and message.get("id") in self._waiting:
            answer, done = self._waiting[message["id"]]
            answer.message = message
            done.set()
        else:
            self.on_message(event, "listen")

    async def post(self, host: str, body: dict[str, Any]) -> Answer:
        """One message; the answer comes on the stream."""
        answer, done = Answer(), anyio.Event()
        wants = "id" in body
        if wants:
            self._waiting[body["id"]] = (answer, done)
        try:
            with suppress(httpx2.TransportError, TimeoutError), anyio.fail_after(self.patience_s):
                headers = {**self.headers, "Content-Type": "application/json"}
                response = await self.http.post(host + self.path, json=body, headers=headers)
                answer.status = response.status_code
                answer.retry_after = float(response.headers.get("retry-after", 0))
                if answer.status >= 400:
                    answer.text = response.text[:300]
                    with suppress(ValueError):
                        answer.message = response.json()
            with suppress(TimeoutError), anyio.fail_after(self.patience_s if answer.status else STILL_S):
                if wants and answer.status < 400 and answer.message is None and self.is_open:
                    await done.wait()
        finally:
            self._waiting.pop(body.get("id", ""), None)
        return answer


def now() -> float:
    return time.monotonic()
