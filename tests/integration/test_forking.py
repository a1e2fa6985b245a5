"""`start: fork` from registration to a session: who is forked, what administrators see, and what is left afterwards."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.integration.gateway import Endpoint, Gateway, is_alive, until
from tests.integration.wire import wire

WITHIN_S = 30.0
TIME = [str(Path(sys.executable).with_name("mcp-server-time"))]
OFF = {"mode": "off"}


def checked(endpoint: Endpoint) -> Any:
    return endpoint.gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")


def processes(endpoint: Endpoint) -> list[Any]:
    """Without that of the catalogue, which asks after a check what the backend offers."""
    found = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/processes")["items"]
    return [each for each in found if each["start"] != "exec"]


async def test_sessions_of_a_real_server_are_forks_and_end_as_others_do(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway()
    endpoint = gateway.endpoint(TIME, start="auto", sandbox=OFF)
    check = checked(endpoint)
    assert (check["ok"], check["start_used"], check["start_reason"]) == (True, "fork", "")
    async with wire(endpoint) as one, wire(endpoint) as other:
        for session in (one, other):
            told = json.loads(await session.call("get_current_time", timezone="Europe/Paris"))
            assert told["timezone"] == "Europe/Paris"
        found = sorted(each["start"] for each in processes(endpoint))
        assert found == ["fork", "fork", "template"]
        assert {each["start_reason"] for each in processes(endpoint)} == {""}
        assert gateway.metrics()['trunkline_process_starts_total{start="fork"}'] >= 2
        pids = [psutil.Process(each["pid"]) for each in processes(endpoint)]
    await until(lambda: [each["start"] for each in processes(endpoint)] == ["template"], WITHIN_S)
    gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:restart")
    await until(lambda: processes(endpoint) == [], WITHIN_S)
    await until(lambda: not any(map(is_alive, pids)), WITHIN_S)


async def test_nothing_is_left_when_the_node_is_killed(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway()
    endpoint = gateway.endpoint(TIME, start="fork", sandbox=OFF)
    assert checked(endpoint)["ok"]
    async with wire(endpoint) as session:
        await session.call("get_current_time", timezone="Europe/Paris")
        left = [psutil.Process(each["pid"]) for each in processes(endpoint)]
        assert len(left) == 2
        gateway.kill()
        await until(lambda: not any(map(is_alive, left)), WITHIN_S)


def test_a_check_says_why_a_backend_cannot_be_forked(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway()
    endpoint = gateway.endpoint(["/bin/sh", "-c", 'exec "$0"', *TIME], start="fork", sandbox=OFF)
    found = checked(endpoint)
    assert found["failure"]["step"] == "fork"
    assert found["failure"]["detail"] == found["start_reason"] == "the command is no script of Python"
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}", {"start": "auto"})
    found = checked(endpoint)
    assert (found["ok"], found["start_used"]) == (True, "exec")
    assert found["start_reason"] == "the command is no script of Python"
