"""An administrator with nothing but the first key: sets two tenants up, looks, restarts, revokes; clients notice."""

import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from tests.integration.gateway import ECHO, Endpoint, Gateway, marked, running_gateway, until
from tests.integration.servers import TIME, TRANSPORTS, Transport, python_client, text_of
from tests.integration.stopwatch import stopwatch
from tests.integration.wire import Wire, wire
from tests.postgres import new_database
from tests.processes.rig import SERVERS

AT_ONCE_S = 1.0
WITHIN_S = 30.0  # the start or the end of a process, on a busy machine


@pytest.fixture(scope="module", params=[pytest.param("sqlite", marks=pytest.mark.long), "postgresql"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway of this module's own, on each database; every other module's is on SQLite."""
    folder = tmp_path_factory.mktemp(f"administration-{request.param}") / "data"
    if request.param == "sqlite":
        with running_gateway(folder) as gateway:
            yield gateway
        return
    server, template = (request.getfixturevalue(f"postgres_{name}") for name in ("url", "template"))
    with (
        new_database(server, template) as url,
        running_gateway(folder, DATABASE_URL=url, SECRET_KEY="5ec" * 22) as gateway,
    ):
        yield gateway


def tenant(gateway: Gateway, **limits: Any) -> str:
    return gateway.add_tenant(**limits)


def made(gateway: Gateway, tenant: str, *scopes: str) -> dict[str, Any]:
    created: dict[str, Any] = gateway.api("POST", f"/tenants/{tenant}/keys", {"scopes": list(scopes)})
    return created


def items(gateway: Gateway, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.api("GET", path)["items"]
    return found


async def test_two_tenants_with_a_backend_of_the_same_name_run_their_own_commands(gateway: Gateway) -> None:
    first, second = tenant(gateway), tenant(gateway, sessions=1)
    zones = {first: "Europe/Paris", second: "Asia/Tokyo"}
    endpoints = {}
    for name, zone in zones.items():
        base = gateway.add_backend(name, "time", TIME[0], [*TIME[1:-1], zone])
        endpoints[name] = Endpoint(gateway, name, "time", base, made(gateway, name, "mcp:connect:time")["key"])
    for name, zone in zones.items():
        async with python_client(endpoints[name], "streamable") as client:
            tools = (await client.list_tools()).tools
            assert zone in str(tools[0].input_schema)
            assert zone in text_of(await client.call_tool("get_current_time", {"timezone": zone}))
            if name == second:  # its limit is one session
                async with httpx2.AsyncClient(timeout=30) as http:
                    refused = await Wire(http, endpoints[name]).post(_initialize())
                assert refused.status_code == 429
    # The first tenant's key does not open the second one's backend of the same name.
    async with httpx2.AsyncClient(timeout=30) as http:
        crossed = await Wire(http, endpoints[second], key=endpoints[first].key).post(_initialize())
    assert crossed.status_code == 404


def _initialize() -> dict[str, Any]:
    client = {"name": "wire", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_revoked_keys_session_ends_within_a_second_and_its_next_request_is_401(
    gateway: Gateway, transport: Transport
) -> None:
    endpoint = gateway.endpoint(ECHO)
    doomed = made(gateway, endpoint.tenant, "mcp:connect")
    victim = Endpoint(gateway, endpoint.tenant, endpoint.name, endpoint.base, doomed["key"])
    took: list[float] = []  # looked at out here: in there a failed assertion would be one of the errors to come
    async with wire(endpoint) as bystander:
        with anyio.fail_after(60), pytest.raises((MCPError, ExceptionGroup, httpx2.HTTPError)):
            await _use_until_revoked(gateway, victim, doomed["id"], transport, took)
        assert [seconds < AT_ONCE_S for seconds in took] == [True], took
        assert await bystander.call("echo", text="still here")
    async with httpx2.AsyncClient(timeout=30) as http:
        assert (await Wire(http, victim).post(_initialize())).status_code == 401


async def _use_until_revoked(
    gateway: Gateway, victim: Endpoint, key_id: str, transport: Transport, took: list[float]
) -> None:
    async with python_client(victim, transport) as client:
        assert text_of(await client.call_tool("echo", {"text": "before"}))
        gateway.api("DELETE", f"/tenants/{victim.tenant}/keys/{key_id}")
        async with stopwatch(gateway) as watch:
            await until(lambda: len(_sessions_of(gateway, victim.tenant)) == 1, WITHIN_S)
            took.append(watch.seconds)
        await client.call_tool("echo", {"text": "after"})


def _call(text: str) -> dict[str, Any]:
    params = {"name": "echo", "arguments": {"text": text}}
    return {"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params}


def _sessions_of(gateway: Gateway, tenant: str) -> list[dict[str, Any]]:
    return items(gateway, f"/tenants/{tenant}/sessions")


async def _is_over(gateway: Gateway, session: Wire) -> None:
    async with stopwatch(gateway) as watch:
        with anyio.fail_after(WITHIN_S):
            while (await session.post(_call("x"))).status_code != 404:
                await anyio.sleep(0.01)
        assert watch.seconds < AT_ONCE_S


async def test_sessions_and_processes_are_shown_and_an_ended_session_is_over(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO, warm=1)
    async with wire(endpoint) as session, wire(endpoint) as other:
        shown = _sessions_of(gateway, endpoint.tenant)
        assert len(shown) == 2
        name = hashlib.sha256(session.session_id.encode()).hexdigest()[:12]
        (mine,) = [each for each in shown if each["id"] == name]
        assert (mine["backend"], mine["issuer"], mine["state"]) == (endpoint.name, "key", "open")
        assert session.session_id not in str(shown)
        assert other.session_id not in str(shown)
        processes = {each["id"]: each for each in items(gateway, f"/tenants/{endpoint.tenant}/processes")}
        assert processes[mine["process"]]["sessions"] == [name]
        assert processes[mine["process"]]["state"] == "leased"
        assert processes[mine["process"]]["pid"] in {each.pid for each in marked(gateway.mark)}
        stderr = gateway.api("GET", f"/tenants/{endpoint.tenant}/processes/{mine['process']}/stderr")
        assert isinstance(stderr["lines"], list)
        (node,) = items(gateway, "/nodes")
        assert node["sessions"] >= 2
        assert node["processes"] >= 2
        gateway.api("DELETE", f"/tenants/{endpoint.tenant}/sessions/{name}", expect=204)
        await _is_over(gateway, session)
        assert await other.call("echo", text="still here")
        # Another tenant's administrator reaches neither.
        stranger = gateway.key(gateway.add_tenant(), ["tenant:admin"])
        left = _sessions_of(gateway, endpoint.tenant)[0]["id"]
        gateway.api("DELETE", f"/tenants/{endpoint.tenant}/sessions/{left}", key=stranger, expect=404)


async def test_a_restart_ends_sessions_and_replaces_warm_processes(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO, warm=2)
    path = f"/tenants/{endpoint.tenant}"
    async with wire(endpoint) as session:
        await until(lambda: len(items(gateway, f"{path}/processes")) == 3, WITHIN_S)
        before = {each["id"] for each in items(gateway, f"{path}/processes")}
        gateway.api("POST", f"{path}/backends/{endpoint.name}:restart", expect=204)
        await _is_over(gateway, session)

    def are_replaced() -> bool:
        now = {each["id"] for each in items(gateway, f"{path}/processes")}
        return len(now) == 2 and not before & now

    await until(are_replaced, WITHIN_S)
    async with wire(endpoint) as session:
        assert await session.call("echo", text="again")
    assert gateway.metrics()['trunkline_sessions_closed_total{reason="backend_restarted"}'] >= 1


@pytest.mark.parametrize("how", ["disabled", "deleted", "tenant deleted"])
async def test_what_is_switched_off_stops_at_once(gateway: Gateway, how: str) -> None:
    endpoint = gateway.endpoint(ECHO, warm=1)
    path = f"/tenants/{endpoint.tenant}"
    async with wire(endpoint) as session:
        pids = {each["pid"] for each in items(gateway, f"{path}/processes")}
        changes: dict[str, Callable[[], Any]] = {
            "disabled": lambda: gateway.api("PATCH", f"{path}/backends/{endpoint.name}", {"enabled": False}),
            "deleted": lambda: gateway.api("DELETE", f"{path}/backends/{endpoint.name}"),
            "tenant deleted": lambda: gateway.api("DELETE", path),
        }
        changes[how]()
        response = await session.post(_call("x"))
        refused = {"disabled": 403, "deleted": 404, "tenant deleted": 401}[how]
        assert response.status_code == refused
        response = await Wire(session.http, endpoint).post(_initialize())
        assert response.status_code == refused
    await until(lambda: not pids & {each.pid for each in gateway.backends()}, WITHIN_S)
    if how == "disabled":
        gateway.api("PATCH", f"{path}/backends/{endpoint.name}", {"enabled": True})
        async with wire(endpoint) as session:
            assert await session.call("echo", text="on again")


async def test_a_changed_command_serves_new_sessions_and_open_ones_keep_theirs(gateway: Gateway) -> None:
    name = tenant(gateway)
    base = gateway.add_backend(name, "time", TIME[0], [*TIME[1:-1], "Europe/Paris"], warm=1)
    endpoint = Endpoint(gateway, name, "time", base, gateway.key(name))
    async with wire(endpoint) as old:
        patch = {"args": [*TIME[1:-1], "Asia/Tokyo"]}
        gateway.api("PATCH", f"/tenants/{name}/backends/time", patch)
        async with wire(endpoint) as new:
            assert "Asia/Tokyo" in str(await new.request("tools/list"))
        assert "Europe/Paris" in str(await old.request("tools/list"))


async def test_new_limits_hold_at_once(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    async with wire(endpoint) as first:
        gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"limits": {"sessions": 1}})
        async with httpx2.AsyncClient(timeout=30) as http:
            assert (await Wire(http, endpoint).post(_initialize())).status_code == 429
        assert await first.call("echo", text="stays")


async def test_a_check_tells_what_a_backend_offers_or_why_it_does_not(gateway: Gateway) -> None:
    name = tenant(gateway)
    gateway.add_backend(name, "time", TIME[0], TIME[1:], enabled=False)
    gateway.add_backend(name, "broken", TIME[0], ["-c", "import sys; sys.exit('no such luck')"])
    good = gateway.api("POST", f"/tenants/{name}/backends/time:check")
    assert (good["ok"], good["tools"], good["failure"]) == (True, 2, None)
    assert good["server"]["name"] == "mcp-time"
    assert [step["step"] for step in good["steps"]][:3] == ["start", "initialize", "tools/list"]
    bad = gateway.api("POST", f"/tenants/{name}/backends/broken:check")
    assert (bad["ok"], bad["failure"]["step"], bad["failure"]["reason"]) == (False, "initialize", "backend_exited")
    assert bad["failure"]["stderr"] == ["no such luck"]
    await until(lambda: not items(gateway, f"/tenants/{name}/processes"), WITHIN_S)


async def test_a_check_tells_its_steps_while_they_are_taken_and_ends_with_who_asked(
    gateway: Gateway, tmp_path: Path
) -> None:
    name = tenant(gateway)
    gateway.add_backend(name, "gate", sys.executable, [str(SERVERS / "gate.py"), str(tmp_path)])
    url = f"{gateway.url}/api/v1/tenants/{name}/backends/gate:check"
    headers = {"Authorization": f"Bearer {gateway.admin_key}", "Accept": "text/event-stream"}
    async with httpx2.AsyncClient(timeout=60) as http:
        async with http.stream("POST", url, headers=headers) as answer:
            lines = answer.aiter_lines()
            assert await _until_event(lines, "begun", step="start")
            assert await _until_event(lines, "begun", step="initialize", number=2)
            assert items(gateway, f"/tenants/{name}/processes")  # it waits at the gate
        await until(lambda: not items(gateway, f"/tenants/{name}/processes"), WITHIN_S)
        (tmp_path / "open").touch()
        async with http.stream("POST", url, headers=headers) as answer:
            found = await _until_event(answer.aiter_lines(), "result", ok=True)
    assert [each["step"] for each in found["steps"]] == ["start", "initialize", "tools/list", "catalog"]
    # What it found can be approved at once.
    gateway.api("POST", f"/tenants/{name}/backends/gate/tools:approve", {"tools": ["through"]})


async def _until_event(lines: AsyncIterator[str], kind: str, **members: object) -> dict[str, Any]:
    """The data of the first event of this kind with these members."""
    seen = ""
    async for line in lines:
        if line.startswith("event: "):
            seen = line.removeprefix("event: ")
        elif line.startswith("data: ") and seen == kind:
            data: dict[str, Any] = json.loads(line.removeprefix("data: "))
            if members.items() <= data.items():
                return data
    raise AssertionError(f"the stream ended without {kind} {members}")


async def test_everything_the_administrator_did_is_in_the_trail(gateway: Gateway) -> None:
    name = tenant(gateway)
    key = made(gateway, name, "tenant:admin")
    gateway.api("DELETE", f"/tenants/{name}/keys/{key['id']}")
    shown = items(gateway, f"/tenants/{name}/audit")
    assert [each["action"] for each in reversed(shown)] == ["tenant.create", "key.create", "key.revoke"]
    assert key["key"] not in str(shown)
    first = [each for each in items(gateway, "/audit?limit=200&tenant=default") if each["actor"]["issuer"] == "cli"]
    assert [each["action"] for each in first] == ["key.create"]
