"""Nothing goes on after its credential: no request that waits when its key is revoked, no stream whose key expires; on
one node, and where another one has passed the request on."""

import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, until
from tests.integration.nodes import Nodes
from tests.integration.sessionless_wire import META, SESSIONLESS
from tests.integration.wire import ACCEPT, Wire, wire

COUNTING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/counting.py")]
KEY_LIFE_S = 10.0  # on a busy machine it takes some seconds to open a stream of each kind with it
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "mark", "arguments": {"token": "late"}}}
ENVELOPE = {META + "protocolVersion": SESSIONLESS, META + "clientCapabilities": {}}
SESSIONLESS_CALL = {**CALL, "params": {**CALL["params"], "_meta": ENVELOPE}}  # type: ignore[dict-item]
SESSIONLESS_HEADERS = {
    "Accept": ACCEPT, "Content-Type": "application/json", "MCP-Protocol-Version": SESSIONLESS,
    "Mcp-Method": "tools/call", "Mcp-Name": "mark",
}  # fmt: skip

pytestmark = pytest.mark.timeout(120)


def key_of(gateway: Gateway, tenant: str, **fields: Any) -> tuple[str, str]:
    """A new key's id and text."""
    made = gateway.api("POST", f"/tenants/{tenant}/keys", {"name": "test", "scopes": ["mcp:connect"], **fields})
    return str(made["id"]), str(made["key"])


def revoke(gateway: Gateway, tenant: str, key_id: str) -> None:
    gateway.api("DELETE", f"/tenants/{tenant}/keys/{key_id}")


def gateway_sessions(gateway: Gateway, endpoint: Endpoint) -> list[Any]:
    found: list[Any] = gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    return found


async def test_whoever_waits_for_a_process_when_the_key_is_revoked_gets_none(gateway: Gateway, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    endpoint = gateway.endpoint([*COUNTING, str(trace)], max_processes=1)
    key_id, key = key_of(gateway, endpoint.tenant)
    async with wire(endpoint) as first, httpx2.AsyncClient(timeout=30) as http:
        assert await first.call("mark", token="first") == "first"
        statuses = list[int]()

        async def ask(message: object, headers: dict[str, str]) -> None:
            headers = {**headers, "Authorization": f"Bearer {key}"}
            statuses.append((await http.post(endpoint.mcp, json=message, headers=headers)).status_code)

        async with anyio.create_task_group() as tasks:
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
            tasks.start_soon(ask, message, {"Accept": ACCEPT})
            tasks.start_soon(ask, SESSIONLESS_CALL, SESSIONLESS_HEADERS)
            await until(lambda: len(gateway_sessions(gateway, endpoint)) == 3, 20)
            revoke(gateway, endpoint.tenant, key_id)
            await until(lambda: len(statuses) == 2, 10)  # though no process has come free
    assert statuses == [401, 401]
    assert trace.read_text().split() == ["first"]


@pytest.mark.parametrize("can_hear", [True, False], ids=["its notices wait", "its notices are lost"])
async def test_a_node_that_stood_still_lets_in_nobody_whose_key_was_revoked_meanwhile(
    nodes: Nodes, tmp_path: Path, can_hear: bool
) -> None:
    """What was sent to it while it stood still is read before the notice of the revocation, or there is none."""
    trace = tmp_path / "trace"
    first, second = nodes.all[:2]
    endpoint = first.endpoint([*COUNTING, str(trace)])
    key_id, endpoint.key = key_of(first, endpoint.tenant, scopes=["mcp:connect", "tenant:admin"])
    url = nodes.urls(endpoint)[1]
    statuses = dict[str, int]()

    async def ask(what: str, method: str, url: str, message: object, headers: dict[str, str]) -> None:
        statuses[what] = (await http.request(method, url, json=message, headers=headers)).status_code

    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, endpoint)
        session.url = url
        await session.open()
        assert await session.call("mark", token="before") == "before"
        rest = f"{second.url}/api/v1/tenants/{endpoint.tenant}/keys"
        requests = {
            "a call of a session": ("POST", url, CALL, session.headers),
            "a call without a session": ("POST", url, SESSIONLESS_CALL, {**SESSIONLESS_HEADERS, **endpoint.headers}),
            "a list": ("GET", rest, None, endpoint.headers),
        }
        for what, request in requests.items():
            await ask(what, *request)  # its key is remembered
        assert set(statuses.values()) == {200}
        second.process.send_signal(signal.SIGSTOP)
        try:
            revoke(first, endpoint.tenant, key_id)
            await anyio.sleep(4)  # longer than GAP_S
            if not can_hear:
                with nodes.redis.client() as client:
                    client.client_kill_filter(_type="pubsub")
                    client.client_kill_filter(_type="normal", skipme=True)
            async with anyio.create_task_group() as tasks:
                for what, request in requests.items():
                    tasks.start_soon(ask, what, *request)
                await anyio.sleep(0.5)
                second.process.send_signal(signal.SIGCONT)
        finally:
            second.process.send_signal(signal.SIGCONT)
    await nodes.all_know_each_other()  # the second may have counted as dead
    assert statuses == dict.fromkeys(requests, 401)
    assert trace.read_text().split() == ["before", "late", "late"]


Open = Callable[[httpx2.AsyncClient], Any]


def streams(endpoint: Endpoint, url: str, session: Wire) -> dict[str, Open]:
    """How each kind of stream is opened."""
    slow = {"name": "mark", "arguments": {"token": "slow", "ms": 60_000}}
    token = {**ENVELOPE, "progressToken": "p"}
    wanted = {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE}

    def post(method: str, params: Any, headers: dict[str, str]) -> Open:
        body = {"jsonrpc": "2.0", "id": 9, "method": method, "params": params}
        return lambda http: http.stream("POST", url, json=body, headers=headers)

    events = {**session.headers, "Accept": "text/event-stream"}
    sessionless = {**SESSIONLESS_HEADERS, **endpoint.headers}
    return {
        "get": lambda http: http.stream("GET", url, headers=events),
        "post": post("tools/call", slow, events),
        "sse": lambda http: http.stream("GET", url.removesuffix("mcp") + "sse", headers=events),
        "listen": post(
            "subscriptions/listen", wanted, {**sessionless, "Mcp-Method": "subscriptions/listen", "Mcp-Name": ""}
        ),
        "call": post("tools/call", {**slow, "_meta": token}, sessionless),
    }


async def lasted(http: httpx2.AsyncClient, open_stream: Open, ends: dict[str, float], kind: str) -> None:
    """Reads one stream to its end, which must be a clean one."""
    async with open_stream(http) as stream:
        assert stream.status_code == 200, (kind, await stream.aread())
        async for _ in stream.aiter_bytes():
            pass
    ends[kind] = time.time()


async def all_end(gateway: Gateway, endpoint: Endpoint, url: str) -> None:
    """Opens a stream of each kind with a key that expires soon: all end then, and none before."""
    expires_at = datetime.now(UTC) + timedelta(seconds=KEY_LIFE_S)
    _, endpoint.key = key_of(gateway, endpoint.tenant, expires_at=expires_at.isoformat())
    ends = dict[str, float]()
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, endpoint)
        await session.open()
        kinds = streams(endpoint, url, session)
        with anyio.fail_after(KEY_LIFE_S + 20):
            async with anyio.create_task_group() as tasks:
                for kind, open_stream in kinds.items():
                    tasks.start_soon(lasted, http, open_stream, ends, kind)
    print({kind: f"{at - expires_at.timestamp():+.2f} s" for kind, at in ends.items()})
    assert set(ends) == set(kinds)
    assert min(ends.values()) >= expires_at.timestamp() - 0.1
    gateway.api("DELETE", f"/tenants/{endpoint.tenant}", expect=204)  # the session goes on, and a drain would wait


async def test_every_stream_ends_when_the_key_expires_that_opened_it(gateway: Gateway, tmp_path: Path) -> None:
    endpoint = gateway.endpoint([*COUNTING, str(tmp_path / "trace")])
    await all_end(gateway, endpoint, endpoint.mcp)


async def test_streams_that_another_node_passes_on_end_at_the_node_that_has_them(nodes: Nodes, tmp_path: Path) -> None:
    """The session is at the first node, the streams are asked for at the second."""
    endpoint = nodes.all[0].endpoint([*COUNTING, str(tmp_path / "trace")])
    await all_end(nodes.all[0], endpoint, nodes.urls(endpoint)[1])
