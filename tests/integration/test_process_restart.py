"""An administrator restarts one process: what becomes of each session that it serves, and that no call runs twice."""

import json
import sys
from contextlib import suppress
from typing import Any

import anyio

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, until
from tests.integration.toolboxes import toolboxes
from tests.integration.wire import RpcError, Wire, error_of, rpc, wire

STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
_KEYS = ("was", "sessions_ended", "sessions_going_on")


async def processes(gateway: Gateway, endpoint: Endpoint) -> list[dict[str, Any]]:
    found = await anyio.to_thread.run_sync(gateway.api, "GET", f"/tenants/{endpoint.tenant}/processes")
    return [each for each in found["items"] if each["state"] != "stopping"]


async def restarted(gateway: Gateway, endpoint: Endpoint, process: str) -> tuple[object, ...]:
    path = f"/tenants/{endpoint.tenant}/processes/{process}:restart"
    found = await anyio.to_thread.run_sync(gateway.api, "POST", path)
    return tuple(found[name] for name in _KEYS)


async def whoami(session: Wire) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await session.call("whoami"))
    return found


async def errors_of_a_call_under_way(gateway: Gateway, endpoint: Endpoint, session: Wire) -> list[RpcError]:
    """What a call that is never answered gets when its process is restarted."""
    found = []

    async def wait() -> None:
        found.append(await session.ask("later"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while "later" not in (await whoami(session))["heard"]:
            await anyio.sleep(0.02)
        (process,) = await processes(gateway, endpoint)
        await restarted(gateway, endpoint, process["id"])
    return found


async def test_a_session_of_a_server_with_state_ends_and_says_why(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO)
    async with wire(endpoint) as first, wire(endpoint) as second:
        rows = await processes(gateway, endpoint)
        assert len(rows) == 2
        mine = await anyio.to_thread.run_sync(gateway.api, "GET", f"/tenants/{endpoint.tenant}/sessions")
        ended = mine["items"][0]
        assert await restarted(gateway, endpoint, ended["process"]) == ("leased", 1, 0)
        answers = [await each.post(rpc("tools/list", 8)) for each in (first, second)]
    (over,) = [error_of(each) for each in answers if each.status_code == 404]
    assert (over.reason, over.data["cause"]) == ("session_ended", "process_restarted")
    assert "an administrator has restarted its process" in str(over)
    assert sum(each.status_code == 200 for each in answers) == 1  # the other one noticed nothing
    started = {row["pid"] for row in rows}
    await until(lambda: started.isdisjoint(each.pid for each in gateway.backends()), 30.0)


async def test_a_call_under_way_of_such_a_session_says_that_its_outcome_is_not_known(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(STATELESS)
    async with wire(endpoint) as session:
        (error,) = await errors_of_a_call_under_way(gateway, endpoint, session)
    assert (error.reason, error.data["cause"]) == ("call_cut_off", "process_restarted")


async def test_a_session_that_outlives_its_process_goes_on_and_runs_nothing_twice(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(STATELESS, recovery="respawn")
    async with wire(endpoint) as session:
        before = await whoami(session)
        (error,) = await errors_of_a_call_under_way(gateway, endpoint, session)
        assert error.reason == "backend_exited"
        assert "an administrator has restarted its process" in str(error)
        after = await whoami(session)
        assert after["process"] != before["process"]
        assert after["heard"] == ["initialize", "notifications/initialized"]  # and no `later`
        (process,) = await processes(gateway, endpoint)
        assert await restarted(gateway, endpoint, process["id"]) == ("leased", 0, 1)
        assert (await whoami(session))["process"] != after["process"]
    assert gateway.api("GET", f"/tenants/{endpoint.tenant}/failures")["items"] == []


async def test_all_sessions_of_a_shared_process_end_or_go_on(gateway: Gateway) -> None:
    for recovery, expected in (("end", ("leased", 2, 0)), ("respawn", ("leased", 0, 2))):
        endpoint = gateway.endpoint(STATELESS, isolation="shared", max_processes=1, recovery=recovery)
        async with wire(endpoint) as first, wire(endpoint) as second:
            before = (await whoami(first))["process"]
            (process,) = await processes(gateway, endpoint)
            assert await restarted(gateway, endpoint, process["id"]) == expected
            answers = [await each.post(rpc("tools/list", 8)) for each in (first, second)]
            assert [each.status_code for each in answers] == [404 if recovery == "end" else 200] * 2
            if recovery == "respawn":
                assert {(await whoami(each))["process"] for each in (first, second)} != {before}


async def test_a_warm_process_is_replaced(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO, warm=1)
    with anyio.fail_after(30):
        old = await the_warm_one(gateway, endpoint)
        assert await restarted(gateway, endpoint, old["id"]) == ("warm", 0, 0)
        new = await the_warm_one(gateway, endpoint)
    assert new["id"] != old["id"]


async def the_warm_one(gateway: Gateway, endpoint: Endpoint) -> dict[str, Any]:
    while True:
        found = await processes(gateway, endpoint)
        if [each["state"] for each in found] == ["warm"]:
            return found[0]
        await anyio.sleep(0.05)  # REST takes 50 requests a second for long


async def test_a_session_with_a_toolset_goes_on_with_another_process_of_the_member(gateway: Gateway) -> None:
    toolset = toolboxes(gateway, "red", "blue")
    async with wire(toolset) as session:
        assert await session.call("red_say", text="hi") == "red: hi"
        assert await session.call("blue_say", text="hi") == "blue: hi"
        (red,) = [each for each in await processes(gateway, toolset) if each["backend"].startswith("red")]
        await restarted(gateway, toolset, red["id"])
        assert await session.call("blue_say", text="still") == "blue: still"
        with anyio.fail_after(20):
            while await said(session) != "red: again":
                await anyio.sleep(0.02)


async def said(session: Wire) -> str:
    """What is answered; calls that come while the process stops may fail, as it does not read any more."""
    with suppress(RpcError):
        return await session.call("red_say", text="again")
    return ""
