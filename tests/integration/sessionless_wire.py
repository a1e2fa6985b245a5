"""Clients of 2026-07-28 by hand, who ask any of several nodes: no request says anything of an earlier one."""

import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from tests.integration.gateway import Endpoint, Gateway, stdin_of
from tests.integration.nodes import Nodes
from tests.integration.wire import ACCEPT, answer, error_of, events

SESSIONLESS = "2026-07-28"
META = "io.modelcontextprotocol/"
ASKED: dict[str, Any] = {"elicitation": {}, "sampling": {}}
OF_CALL = object()  # a mark: what the question says of its call, which need not be the one that is answered with it


class SessionlessClient:
    """One principal with one set of capabilities. `nodes` are the endpoint's addresses; each request draws one."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        endpoint: Endpoint,
        nodes: Sequence[str],
        capabilities: dict[str, Any] | None = None,
    ) -> None:
        self.http, self.nodes, self.capabilities = http, list(nodes), capabilities or {}
        content = {"Accept": ACCEPT, "Content-Type": "application/json"}
        self.headers = {**endpoint.headers, **content, "MCP-Protocol-Version": SESSIONLESS}
        self.ids = itertools.count(1)

    def message(self, method: str, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """A request and its headers; `meta` of the params goes into the envelope."""
        meta = {META + "protocolVersion": SESSIONLESS, META + "clientCapabilities": self.capabilities}
        meta |= params.pop("meta", {})
        name = params.get("name") or params.get("uri")
        headers = {**self.headers, "Mcp-Method": method, **({"Mcp-Name": name} if name else {})}
        body = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": {**params, "_meta": meta}}
        return body, headers

    async def post(self, method: str, *, at: str | None = None, more: Any = (), **params: Any) -> httpx2.Response:
        """One request, to this node or one drawn by lot, with these headers in addition."""
        body, headers = self.message(method, params)
        url = at or random.choice(self.nodes)
        # Not `json`, which refuses half an emoji.
        response = await self.http.post(url, content=json.dumps(body), headers={**headers, **dict(more)})
        if response.status_code in (200, 400) and response.headers["content-type"] == "application/json":
            assert response.json()["id"] == body["id"], response.text
        return response

    async def request(self, method: str, *, at: str | None = None, more: Any = (), **params: Any) -> Any:
        """Its result; RpcError where it was refused."""
        return answer(await self.post(method, at=at, more=more, **params))

    async def call(self, tool: str, *, at: str | None = None, **arguments: Any) -> str:
        """The text of a tool's answer."""
        result = await self.request("tools/call", at=at, name=tool, arguments=arguments)
        return str(result["content"][0]["text"])

    async def whoami(self, at: str | None = None) -> dict[str, Any]:
        """What the process says of itself."""
        return json.loads(await self.call("whoami", at=at))  # type: ignore[no-any-return]

    async def begin(self, tool: str, *, at: str | None = None, **arguments: Any) -> dict[str, Any]:
        """A call that is asked something: the `input_required` result."""
        result = await self.request("tools/call", at=at, name=tool, arguments=arguments)
        assert result["resultType"] == "input_required", result
        return result  # type: ignore[no-any-return]

    async def retry(
        self, tool: str, asked: dict[str, Any], mark: object, *, at: str | None = None, **arguments: Any
    ) -> httpx2.Response:
        """The same call again, with answers that carry the mark."""
        answers = {key: _answer(question, mark) for key, question in asked["inputRequests"].items()}
        params = {"inputResponses": answers, "requestState": asked["requestState"]}
        return await self.post("tools/call", at=at, name=tool, arguments=arguments, **params)

    async def answer_all(self, tool: str, mark: object, **arguments: Any) -> str:
        """Calls the tool and answers every question with the mark; the text of the result."""
        asked = await self.begin(tool, **arguments)
        while True:
            result = answer(await self.retry(tool, asked, mark, **arguments))
            if result["resultType"] != "input_required":
                return str(result["content"][0]["text"])
            asked = result

    @asynccontextmanager
    async def listen(self, at: str, **notifications: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """A subscription: its messages, without the acknowledgement, which must be the first."""
        body, headers = self.message("subscriptions/listen", {"notifications": notifications})
        async with self.http.stream("POST", at, json=body, headers=headers) as stream:
            assert stream.status_code == 200
            messages = (event.message async for event in events(stream) if event.data)
            first = await anext(messages)
            assert first["method"] == "notifications/subscriptions/acknowledged", first
            assert first["params"]["notifications"] == notifications
            assert first["params"]["_meta"][META + "subscriptionId"] == body["id"]
            yield messages


def _answer(question: dict[str, Any], mark: object) -> dict[str, Any]:
    mark = _of_call(question) if mark is OF_CALL else mark
    if question["method"] == "sampling/createMessage":
        text = {"type": "text", "text": f"color-{mark}"}
        return {"role": "assistant", "model": "none", "content": text}
    fields = question["params"]["requestedSchema"]["properties"]
    return {"action": "accept", "content": {name: f"{name}-{mark}" for name in fields}}


def _of_call(question: dict[str, Any]) -> str:
    params = question["params"]
    about = params["message"] if "message" in params else params["messages"][0]["content"]["text"]
    return str(about.split()[0])


def another_key(endpoint: Endpoint) -> Endpoint:
    """The same backend for another principal."""
    key = endpoint.gateway.key(endpoint.tenant)
    return Endpoint(endpoint.gateway, endpoint.tenant, endpoint.name, endpoint.base, key)


def owner_of(nodes: Nodes, process: int) -> Gateway:
    """The node that has started the process with this stdin."""
    (owner,) = [node for node in nodes.living() if process in {stdin_of(each.pid) for each in node.family()}]
    return owner


def at(nodes: Nodes, endpoint: Endpoint, node: Gateway) -> str:
    """The endpoint's address on that node."""
    return nodes.urls(endpoint)[nodes.living().index(node)]


def others(nodes: Nodes, endpoint: Endpoint, node: Gateway) -> list[str]:
    """Its addresses on all others."""
    return [url for url in nodes.urls(endpoint) if not url.startswith(node.url)]


def sessions_of(nodes: Nodes, endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nodes.living()[0].api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    return found


def forwarded(nodes: Nodes, result: str = "ok") -> float:
    return sum(node.metrics().get(f'trunkline_forwards_total{{result="{result}"}}', 0) for node in nodes.living())


async def reason(client: SessionlessClient, tool: str, asked: dict[str, Any], url: str, **arguments: Any) -> str:
    """Why the retry is refused."""
    response = await client.retry(tool, asked, "x", at=url, **arguments)
    error = error_of(response)
    assert (response.status_code, error.code) == (400, -32602), response.text
    return str(error.reason)
