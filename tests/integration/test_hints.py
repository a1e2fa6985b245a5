"""What an error or a problem says that can be done does help in that case: each row brings the case about.

The words themselves are tested beside the pure parts: tests/processes/test_endings_advice.py, test_missed.py.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, for_backends, until
from tests.integration.test_limits import running
from tests.integration.wire import RpcError, Wire, initialize, rpc, wire

ASKING = {"Accept": "application/json, text/event-stream"}
HOSTILE = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/hostile.py")]


def problem(endpoint: Endpoint, kind: str) -> Any:
    found = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/problems")["items"]
    return next(each for each in found if each["kind"] == kind)


@pytest.mark.parametrize(
    ("case", "reason", "helps"),
    [
        (["noise"], "backend_exited", "have it write its log to stderr"),
        (["endless-line"], "backend_exited", "MAX_LINE_BYTES"),
        (["closes-stdout"], "backend_exited", "keep its stdin and stdout open"),
        (["log-messages", "1000"], "timeout", "Have it write less"),
    ],
)
async def test_what_a_backend_does_in_a_call(gateway: Gateway, case: list[str], reason: str, helps: str):
    """Nothing of it is in its stderr, and more time would not help."""
    endpoint = gateway.endpoint([*HOSTILE, *case], timeouts={"call_s": 2 if reason == "timeout" else 60})
    async with wire(endpoint) as session:
        error = await session.ask("attack")
    assert error.reason == reason
    assert helps in error.data["hint"]
    about = problem(endpoint, "timeouts" if reason == "timeout" else "backend_failed")
    assert helps in about["do"]
    assert "Read the end" not in about["do"]


@pytest.mark.parametrize(
    ("program", "mode", "helps"),
    [
        (None, 0, "Is the command installed, and on the gateway's PATH?"),
        ("#!/bin/sh\ncat\n", 0o600, "Is the command executable by the gateway's user?"),
        ("\0\1\2", 0o755, "a script with a `#!` line?"),
    ],
)
async def test_what_cannot_be_started(gateway: Gateway, tmp_path: Path, program: str | None, mode: int, helps: str):
    command = for_backends(tmp_path) / "server"
    if program is not None:
        command.write_text(program)
        command.chmod(mode)
    endpoint = gateway.endpoint([str(command)], sandbox={"mode": "off"})
    async with httpx2.AsyncClient(timeout=60) as http:
        with pytest.raises(RpcError) as caught:
            await Wire(http, endpoint).open()
    assert caught.value.reason == "backend_exited"
    assert helps in caught.value.data["hint"]
    checked = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
    assert helps in checked["failure"]["hint"]


async def test_what_a_client_sends(gateway: Gateway, echo: Endpoint):
    async with httpx2.AsyncClient(timeout=60) as http:
        wrong = {**ASKING, "Authorization": "Bearer wrong"}
        refused = await http.post(echo.mcp, json=initialize(), headers=wrong)
        assert "`trunkline keys create`" in refused.json()["error"]["data"]["hint"]
        gone = {**ASKING, **echo.headers, "Mcp-Session-Id": "gone"}
        refused = await http.post(echo.mcp, json=rpc("tools/list"), headers=gone)
        assert "Start again with `initialize`" in refused.json()["error"]["data"]["hint"]


async def test_whoever_follows_the_hints_gets_in(start_gateway: Callable[..., Gateway]):
    """Each refusal names one limit, which is raised as it says, until the same request passes."""
    gateway = start_gateway(POOL_WAIT_S="1")
    tenant = gateway.add_tenant(sessions=1, sessions_per_principal=1, processes=1)
    endpoint, followed = gateway.endpoint(ECHO, tenant=tenant, max_processes=1), list[str]()
    async with wire(endpoint), httpx2.AsyncClient(timeout=60) as http:
        while (answer := await http.post(endpoint.mcp, json=initialize(), headers=ASKING | endpoint.headers)).is_error:
            hint = answer.json()["error"]["data"]["hint"]
            (found,) = re.findall(r"PATCH /api/v1(\S+), ([\w.]+)\.$", hint)
            path, name = found
            assert name not in followed, hint
            followed.append(name)
            value: Any = 2
            for part in reversed(name.split(".")):
                value = {part: value}
            gateway.api("PATCH", path, value)
    assert followed == ["limits.sessions", "limits.sessions_per_principal", "limits.processes", "max_processes"]


async def test_a_session_keeps_the_calls_it_was_opened_with(gateway: Gateway):
    endpoint = gateway.endpoint(ECHO, calls_per_session=1)
    async with wire(endpoint) as session, anyio.create_task_group() as tasks:
        for _ in range(9):  # one with the backend, eight that wait
            tasks.start_soon(partial(session.call, "sleep", ms=60_000))
        await until(lambda: running(endpoint) == 9, 20)
        refused = await session.post(rpc("tools/list"))
        assert refused.json()["error"]["data"]["hint"].endswith("calls_per_session (for new sessions).")
        tasks.cancel_scope.cancel()
