"""Clients that a backend asks, by hand: one session, whose stream, calls and answers go to a node each."""

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self
from urllib.parse import urljoin

import anyio
import anyio.abc
import httpx2

from tests.integration.gateway import Endpoint
from tests.integration.wire import RpcError, Wire, events

SAMPLING, ELICITATION = "sampling/createMessage", "elicitation/create"
METHODS = (SAMPLING, ELICITATION)
CAPABILITIES: dict[str, Any] = {"sampling": {}, "elicitation": {}}
LISTENING = "the listening stream"
WITHIN_S = 20.0  # of one call with its question


class Places(NamedTuple):
    """The endpoint's address on the node that gets each kind of request."""

    opens: str  # `initialize`; this node has the session then
    listens: str
    calls: str
    answers: str


class Asked(NamedTuple):
    """A question, and the stream that it came on: LISTENING, or the text of the call whose response it is."""

    stream: str
    text: str


def text_of(question: Any) -> str:
    params = question["params"]
    if question["method"] == ELICITATION:
        return str(params["message"])
    return str(params["messages"][0]["content"]["text"])


def answer_to(text: str) -> str:
    return f"answer to {text}"


def reply_to(question: Any) -> dict[str, Any]:
    """The response that a client sends."""
    text = answer_to(text_of(question))
    if question["method"] == ELICITATION:
        result: dict[str, Any] = {"action": "accept", "content": {"text": text}}
    else:
        result = {"role": "assistant", "model": "none", "content": {"type": "text", "text": text}}
    return {"jsonrpc": "2.0", "id": question["id"], "result": result}


def asking_call(number: int, text: str, method: str, among: int) -> dict[str, Any]:
    """A call of `ask_and_wait` (tests/servers/stateless.py)."""
    params = {"name": "ask_and_wait", "arguments": {"text": text, "method": method, "among": among}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


class AskedClient:
    """A Streamable HTTP session. `asked` is every question in order, `strays` what came for no call of ours."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint, places: Places) -> None:
        self._wire, self.places = Wire(http, endpoint), places
        self._wire.url = places.opens
        self.asked: list[Asked] = []
        self.strays: list[Any] = []

    def _at(self, url: str) -> Wire:
        """The same session, at this node."""
        other = copy.copy(self._wire)
        other.url = url
        return other

    async def open(self, version: str) -> None:
        await self._wire.open(version, CAPABILITIES)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listens until the session is closed, which the block must do: so nothing that was sent is missed."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._listen)
            yield

    async def _listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with self._at(self.places.listens).stream("GET") as response:
            assert response.status_code == 200, await response.aread()
            task_status.started()
            async for event in events(response):
                if event.data:
                    await self._receive(event.message, LISTENING, self.strays)

    async def ask(self, text: str, method: str, *, among: int = 1) -> str:
        """Has the backend ask, and answers; the text of the call's own answer."""
        body = asking_call(next(self._wire.ids), text, method, among)
        answers: list[Any] = []
        with anyio.fail_after(WITHIN_S):
            async with self._at(self.places.calls).stream("POST", body) as response:
                async for message in _messages(response):
                    await self._receive(message, text, answers)
        assert [each.get("id") for each in answers] == [body["id"]], answers
        return _text_in(answers[0])

    async def _receive(self, message: Any, stream: str, others: list[Any]) -> None:
        if "method" not in message:
            others.append(message)
            return
        self.asked.append(Asked(stream, text_of(message)))
        response = await self._at(self.places.answers).post(reply_to(message))
        assert response.status_code == 202, response.text

    async def heard(self) -> list[str]:
        """What the process has heard without having asked for it, or twice."""
        return _unexpected(json.loads(await self._at(self.places.calls).call("whoami")))

    async def close(self) -> None:
        assert (await self._wire.close()).status_code == 204


class AskedSseClient:
    """The same over HTTP+SSE, used as `async with`. The stream opens the session, so `opens` says nothing here."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint, places: Places) -> None:
        self._http, self._headers, self.places = http, endpoint.headers, places
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._path = ""
        self.asked: list[Asked] = []
        self.strays: list[Any] = []

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        with anyio.fail_after(WITHIN_S):
            await self._tasks.start(self._listen)
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(*exc_info)

    async def _listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        url = self.places.listens.removesuffix("/mcp") + "/sse"
        headers = {**self._headers, "Accept": "text/event-stream"}
        async with self._http.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async for event in events(response):
                if event.name == "endpoint":
                    self._path = event.data
                    task_status.started()
                else:
                    await self._receive(event.message)

    async def _receive(self, message: Any) -> None:
        if "method" in message and "id" in message:
            self.asked.append(Asked(LISTENING, text_of(message)))
            await self._post(self.places.answers, reply_to(message))
        elif message.get("id") in self._pending:
            self._pending.pop(message["id"]).set_result(message)
        else:
            self.strays.append(message)

    async def _post(self, url: str, message: Any) -> None:
        response = await self._http.post(urljoin(url, self._path), json=message, headers=self._headers)
        assert response.status_code == 202, response.text

    async def _request(self, message: Any) -> Any:
        answered = self._pending[message["id"]] = asyncio.get_running_loop().create_future()
        await self._post(self.places.calls, message)
        with anyio.fail_after(WITHIN_S):
            return await answered

    async def open(self) -> None:
        info = {"name": "asked", "version": "1"}
        params = {"protocolVersion": "2024-11-05", "capabilities": CAPABILITIES, "clientInfo": info}
        await self._request({"jsonrpc": "2.0", "id": next(self._ids), "method": "initialize", "params": params})
        await self._post(self.places.calls, {"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def ask(self, text: str, method: str, *, among: int = 1) -> str:
        """Has the backend ask, and answers; the text of the call's own answer."""
        return _text_in(await self._request(asking_call(next(self._ids), text, method, among)))

    async def _whoami(self) -> Any:
        call = {"jsonrpc": "2.0", "id": next(self._ids), "method": "tools/call", "params": {"name": "whoami"}}
        return json.loads(_text_in(await self._request(call)))

    async def process(self) -> int:
        """The process that serves it, by its stdin."""
        return int((await self._whoami())["process"])

    async def heard(self) -> list[str]:
        """What the process has heard without having asked for it, or twice. All sent before has been read then."""
        return _unexpected(await self._whoami())


async def _messages(response: httpx2.Response) -> AsyncIterator[Any]:
    """The messages in the answer to a POST, stream or not."""
    assert response.status_code == 200, await response.aread()
    if response.headers["content-type"].startswith("application/json"):
        yield json.loads(await response.aread())
        return
    async for event in events(response):
        if event.data:
            yield event.message


def _text_in(answer: Any) -> str:
    if "error" in answer:
        raise RpcError(answer["error"])
    return str(answer["result"]["content"][0]["text"])


def _unexpected(whoami: Any) -> list[str]:
    return [each for each in whoami["heard"] if each in ("answer", "error")]
