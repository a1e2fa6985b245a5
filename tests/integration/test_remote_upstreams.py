"""Servers that are reached by URL: Trunkline behind Trunkline, and servers of the official SDKs."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp import types

from tests.backends.upstreams.proxies import proxying
from tests.backends.upstreams.rig import Asked, polite, serving
from tests.certificates import authority, issued
from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway, until
from tests.integration.remote import (
    EVERYTHING_REMOTE,
    LOOPBACK,
    SDK,
    behind,
    free_port,
    is_listened_to,
    listening,
    reached,
)
from tests.integration.servers import python_client, text_of
from tests.integration.wire import RpcError, Wire, rpc, wire

NODE_ROOT, NODE_PROXY = authority(), free_port()
SDK_KEY = {"Authorization": "Bearer sdk"}
pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway before others. What it reaches by https goes through a proxy, which one test has."""
    folder = tmp_path_factory.mktemp("front")
    (folder / "root.pem").write_text(NODE_ROOT.pem)
    outward = {"OUTBOUND_PROXY": f"http://me:pass@127.0.0.1:{NODE_PROXY}", "OUTBOUND_CA": str(folder / "root.pem")}
    with running_gateway(folder / "data", **LOOPBACK, **outward) as gateway:
        yield gateway


@contextmanager
def sdk(front: Gateway, kind: str, port: int | None = None, **fields) -> Iterator[Endpoint]:
    """A server of the Python SDK, by its URL."""
    port = port or free_port()
    path, transport = ("/sse", "sse") if kind == "sse" else ("/mcp", "streamable-http")
    with listening([*SDK, kind, str(port)], port):
        fields = {"transport": transport, "headers": SDK_KEY, **fields}
        yield reached(front, f"http://127.0.0.1:{port}{path}", **fields)


def value(gateway: Gateway, name: str) -> float:
    return gateway.metrics().get(name, 0.0)


async def no_upstream_is_left(front: Gateway) -> None:
    def left() -> float:
        return value(front, "trunkline_upstream_sessions") + value(front, "trunkline_upstream_connections")

    await until(lambda: left() == 0, 10.0, left)


def at_the_server(server: Endpoint) -> set[str]:
    """The ids of its sessions. Other tests have sessions there as well."""
    return {one["id"] for one in server.gateway.api("GET", f"/tenants/{server.tenant}/sessions")["items"]}


async def test_a_session_goes_through_both(front: Gateway, echo: Endpoint):
    remote, before = behind(front, echo), at_the_server(echo)
    async with wire(remote) as session:
        assert await session.call("echo", text="hello") == "hello"
        (behind_it,) = at_the_server(echo) - before
        assert {tool["name"] for tool in (await session.request("tools/list"))["tools"]}
        (shown,) = front.api("GET", f"/tenants/{remote.tenant}/sessions")["items"]
        assert shown["process"].startswith("u-")
        backend = front.api("GET", f"/tenants/{remote.tenant}/backends/{remote.name}")
        assert (backend["status"], backend["processes"]["leased"]) == ("running", 1)
        assert value(front, "trunkline_upstream_sessions") == 1
    await no_upstream_is_left(front)
    assert behind_it not in at_the_server(echo)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("kind", ["streamable", "json", "stateless", "sse"])
async def test_the_official_client_reaches_a_server_of_the_official_sdk(front: Gateway, kind: str, mode: str):
    heard: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async def answer(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    with sdk(front, kind) as remote:
        async with python_client(remote, "streamable", mode=mode, elicitation_callback=answer) as client:
            assert text_of(await client.call_tool("echo", {"text": "hé\n"})) == "hé\n"
            assert len((await client.list_tools()).tools) == 6
            if kind in ("streamable", "sse") and mode == "legacy":  # else it has no way to ask
                assert text_of(await client.call_tool("ask", {})) == "Ada"
            if kind in ("streamable", "sse"):
                done = await client.call_tool("count", {"until": 5}, progress_callback=on_progress)
                assert text_of(done) == "done"
                await until(lambda: heard and heard[-1] == 5, 10, lambda: heard)
            got = json.loads(text_of(await client.call_tool("headers", {})))
            assert got["authorization"] == "Bearer sdk"
            assert remote.key not in str(got)
        checked = front.api("POST", f"/tenants/{remote.tenant}/backends/{remote.name}:check")
        assert checked["ok"], checked
        assert {step["step"] for step in checked["steps"]} >= {"resolve", "connect", "initialize", "tools/list"}
        # Sessions of 2026-07-28 are the gateway's, and are kept for the client's next request.
        front.api("DELETE", f"/tenants/{remote.tenant}/backends/{remote.name}")
    await no_upstream_is_left(front)


@pytest.mark.node
async def test_a_server_of_the_typescript_sdk(front: Gateway):
    port = free_port()
    with listening(EVERYTHING_REMOTE, port, PORT=str(port)):
        remote = reached(front, f"http://127.0.0.1:{port}/mcp")
        async with python_client(remote, "streamable") as client:
            assert text_of(await client.call_tool("echo", {"message": "hi"})) == "Echo: hi"
            assert len((await client.list_tools()).tools) > 5
    await no_upstream_is_left(front)


@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_a_server_in_a_companys_network(front: Gateway, tmp_path: Path, kind: str):
    """Behind a proxy with credentials, with a certificate of the company's authority; it wants one of its clients."""
    root, port = authority(), free_port()
    server, ours = issued(root), issued(root, "gateway.example")
    files = {"SDK_TLS": tmp_path / "server.pem", "SDK_CLIENTS": tmp_path / "root.pem"}
    files["SDK_TLS"].write_text(server.chain + server.key)
    files["SDK_CLIENTS"].write_text(root.pem)
    path, transport = ("/sse", "sse") if kind == "sse" else ("/mcp", "streamable-http")
    async with proxying(credentials="me:pass") as proxy:
        with listening([*SDK, kind, str(port)], port, **{name: str(file) for name, file in files.items()}):
            connect = {
                "proxy": proxy.url, "proxy_auth": "me:pass", "ca": root.pem, "certificate": ours.pem, "key": ours.key,
            }  # fmt: skip
            url = f"https://127.0.0.1:{port}{path}"
            remote = await anyio.to_thread.run_sync(
                partial(reached, front, url, transport=transport, headers=SDK_KEY, connect=connect)
            )
            async with python_client(remote, "streamable", mode="legacy") as client:
                assert text_of(await client.call_tool("echo", {"text": "hé"})) == "hé"
            assert {first for first, _ in proxy.asked} == {f"CONNECT 127.0.0.1:{port} HTTP/1.1"}
            check = partial(front.api, "POST", f"/tenants/{remote.tenant}/backends/{remote.name}:check")
            checked = await anyio.to_thread.run_sync(check)
            assert checked["ok"], checked
            assert [step["step"] for step in checked["steps"]][:4] == ["resolve", "connect", "proxy", "tls"]
            await anyio.to_thread.run_sync(
                partial(
                    front.api, "PATCH", f"/tenants/{remote.tenant}/backends/{remote.name}",
                    {"connect": {"certificate": None, "key": None}},
                )
            )  # fmt: skip
            failed = await anyio.to_thread.run_sync(check)
            assert not failed["ok"]
            assert "`connect.certificate`" in str(failed["failure"]["hint"]), failed
    await no_upstream_is_left(front)


async def test_the_proxy_and_the_authority_of_the_node(front: Gateway, tmp_path: Path):
    server, port = issued(NODE_ROOT), free_port()
    (tmp_path / "server.pem").write_text(server.chain + server.key)
    async with proxying(port=NODE_PROXY, credentials="me:pass") as proxy:
        with listening([*SDK, "streamable", str(port)], port, SDK_TLS=str(tmp_path / "server.pem")):
            url = f"https://127.0.0.1:{port}/mcp"
            remote = await anyio.to_thread.run_sync(partial(reached, front, url, headers=SDK_KEY))
            async with python_client(remote, "streamable", mode="legacy") as client:
                assert text_of(await client.call_tool("echo", {"text": "hé"})) == "hé"
    assert {first for first, _ in proxy.asked} == {f"CONNECT 127.0.0.1:{port} HTTP/1.1"}
    await no_upstream_is_left(front)


async def test_it_falls_back_to_the_older_transport(front: Gateway):
    """A URL of HTTP+SSE, with `transport: auto`."""
    with sdk(front, "sse", transport="auto") as remote:
        async with wire(remote) as session:
            assert await session.call("echo", text="hello") == "hello"


async def test_wrong_headers_are_said_to_be_wrong(front: Gateway):
    with sdk(front, "streamable", headers={"Authorization": "Bearer wr0ng"}) as remote:
        async with httpx2.AsyncClient(timeout=30) as http:
            with pytest.raises(RpcError) as caught:
                await Wire(http, remote).open()
    assert caught.value.reason == "upstream_refused"
    assert "does not accept the `headers`" in str(caught.value)
    assert "wr0ng" not in str(caught.value) + front.log.read_text()


async def test_a_server_that_dies_in_a_call(front: Gateway):
    """Its caller is told that nobody knows; the next session is refused in words."""
    port = free_port()
    with sdk(front, "streamable", port) as remote:
        async with wire(remote) as session:
            error = await session.ask("die")
            assert (error.reason, error.data["outcome"]) == ("call_cut_off", "unknown")
            await until(lambda: not is_listened_to(port), 10)  # the kernel closes the port last
            error = await session.ask("echo", text="x")
            assert error.reason == "backend_unavailable"
    await no_upstream_is_left(front)


async def test_a_server_that_has_forgotten_the_session_gets_a_new_one(front: Gateway):
    """It was restarted meanwhile: with `respawn` the session goes on, else it ends."""
    port = free_port()
    with sdk(front, "streamable", port, recovery="respawn") as remote:
        async with wire(remote) as session:
            assert await session.call("echo", text="one") == "one"
            with listening([sys.executable, "-c", "pass"], port):
                pass
            await _restarted(front, remote, port, session)


async def _restarted(front: Gateway, remote: Endpoint, port: int, session: Wire) -> None:
    await session.ask("die")
    await until(lambda: not is_listened_to(port), 10)  # the kernel closes the port last
    with listening([*SDK, "streamable", str(port)], port):
        # The latter where its stream of notifications has noticed it before the call.
        assert await _outcome(session, "two") in ("backend_exited", "two")
        assert await session.call("echo", text="three") == "three"


async def _outcome(session: Wire, text: str) -> str | None:
    """What is answered, or the reason why not."""
    try:
        return await session.call("echo", text=text)
    except RpcError as error:
        return error.reason


@pytest.mark.parametrize("how", ["delete", "disable", "restart"])
async def test_a_change_ends_the_sessions(front: Gateway, echo: Endpoint, how: str):
    remote = behind(front, echo)
    path = f"/tenants/{remote.tenant}/backends/{remote.name}"
    async with wire(remote) as session:
        await session.call("echo", text="x")
        if how == "delete":
            front.api("DELETE", path)
        elif how == "disable":
            front.api("PATCH", path, {"enabled": False, "reason": "enough"})
        else:
            front.api("POST", path + ":restart")
        response = await session.post(rpc("tools/call", 9, {"name": "echo", "arguments": {"text": "y"}}))
        assert response.status_code in (403, 404)
    await no_upstream_is_left(front)


async def test_a_gateway_is_not_its_own_server(front: Gateway):
    """Not with `UPSTREAM_ALLOW` either."""
    local = front.url.replace("127.0.0.1", "localhost")
    for url in (front.url, local):
        remote = reached(front, f"{url}/t/any/any/mcp")
        checked = front.api("POST", f"/tenants/{remote.tenant}/backends/{remote.name}:check")
        assert "of the gateway itself" in str(checked), checked


async def test_nobody_there_is_503_and_soon_at_once(front: Gateway):
    remote = reached(front, f"http://127.0.0.1:{free_port()}/mcp")
    async with httpx2.AsyncClient(timeout=30) as http:
        for _ in range(6):
            with pytest.raises(RpcError) as caught:
                await Wire(http, remote).open()
            assert caught.value.reason == "backend_unavailable"
    assert "several times in a row" in str(caught.value)
    backend = front.api("GET", f"/tenants/{remote.tenant}/backends/{remote.name}")
    assert backend["status"] == "breaker_open"
    assert "refuses connections" in backend["last_error"]


async def test_it_is_a_member_of_a_toolset(front: Gateway, echo: Endpoint):
    with sdk(front, "streamable") as remote:
        local = front.add_backend(remote.tenant, "local", ECHO[0], ECHO[1:])
        assert local
        members = [{"backend": remote.name, "prefix": "far_"}, {"backend": "local", "prefix": "near_"}]
        front.api("POST", f"/tenants/{remote.tenant}/toolsets", {"name": "all", "members": members})
        toolset = Endpoint(front, remote.tenant, "all", f"{front.url}/t/{remote.tenant}/all", remote.key)
        async with wire(toolset) as session:
            tools = [each["name"] for each in (await session.request("tools/list"))["tools"]]
            assert {"far_echo", "near_echo"} <= {*tools}
            # That which was asked for its tools has ended.
            await until(lambda: value(front, "trunkline_upstream_sessions") == 0, 10)
            assert await session.call("far_echo", text="far") == "far"
            assert await session.call("near_echo", text="near") == "near"
    await no_upstream_is_left(front)


async def test_many_sessions_stay_apart(front: Gateway):
    """Equal ids in all of them, calls at once."""
    with sdk(front, "streamable") as remote:

        async def one(number: int) -> None:
            async with wire(remote) as session:
                for turn in range(5):
                    text = f"{number}-{turn}"
                    assert await session.call("echo", text=text) == text

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(one, number)
    await no_upstream_is_left(front)


async def test_a_node_that_stops_ends_its_sessions_at_the_server(start_gateway: Callable[..., Gateway], echo: Endpoint):
    front = start_gateway(DRAIN_S="2", **LOOPBACK)
    remote, before = behind(front, echo), at_the_server(echo)
    async with httpx2.AsyncClient(timeout=30) as http:
        session = Wire(http, remote)
        await session.open()
        (behind_it,) = at_the_server(echo) - before
        await anyio.to_thread.run_sync(front.stop)
    assert behind_it not in at_the_server(echo)


async def test_a_server_that_stalls_floods_or_sends_elsewhere(front: Gateway):
    """Each is an error to its caller alone; the session goes on, and afterwards nothing is left."""

    async def answer(asked: Asked) -> None:
        what = asked.message.get("params", {}).get("name")
        if what == "stall":
            await asked.events()
            await asked.gone()
        elif what == "flood":
            await asked.events()
            for _ in range(20_000):
                await asked.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 900}})
            await asked.event({"jsonrpc": "2.0", "id": asked.message["id"], "result": {"content": []}})
        elif what == "elsewhere":
            await asked.whole("", 302, "Location: http://169.254.169.254/latest/meta-data\r\n")
        else:
            await asked.result({"content": [{"type": "text", "text": "well"}]})

    async with serving(polite(answer)) as server:
        hurried = reached(front, server.url, timeouts={"call_s": 3.0})
        async with wire(hurried) as session:
            assert (await session.ask("stall")).reason == "timeout"
            assert await session.call("echo") == "well"
        async with wire(reached(front, server.url)) as session:
            error = await session.ask("elsewhere")
            assert (error.reason, "169.254.169.254" in str(error)) == ("invalid_response", True)
            assert await session.call("echo") == "well"
            assert (await session.request("tools/call", {"name": "flood"}))["content"] == []
            assert await session.call("echo") == "well"
        await no_upstream_is_left(front)
        await server.until_quiet()
