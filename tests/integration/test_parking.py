"""Idle sessions that give their processes back and stay valid: over real sockets and processes, on one node and two."""

import json
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest
from mcp_clients import CallFailed, StreamableSession

from tests.console.browser import Browser
from tests.integration.asked import AskedSseClient, Places
from tests.integration.gateway import ECHO, Gateway, until
from tests.integration.parked import (
    COUNTING,
    PARK_S,
    WITHIN_S,
    is_awake,
    is_open,
    is_parked,
    opened,
    parking,
    processes,
    sessions,
    states,
    use,
    whoami,
)
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.wire import RpcError, Wire, events, listening, rpc

MANY, PLACES = 200, 8
CONNECTIONS = 500  # of the client at once; a node closes those over MAX_CONNECTIONS
# The second where so many at once keep the node from its loop for seconds.
AGAIN = {"backend_busy", "routes_unavailable"}

pytestmark = pytest.mark.timeout(300)


async def test_an_idle_session_has_no_process_until_its_next_call(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = parking(gateway)
    async with opened(http, endpoint) as session, listening(session) as heard:
        await session.request("logging/setLevel", {"level": "warning"})
        before = await whoami(session)
        await is_parked(endpoint)
        await until(lambda: not processes(endpoint), WITHIN_S)
        assert gateway.processes_of(before["process"]) == []
        assert sessions(endpoint)[0]["process"] is None
        assert (use(endpoint)["parked_sessions"], use(endpoint)["sessions"], use(endpoint)["processes"]) == (1, 1, 0)
        assert gateway.metrics()["trunkline_sessions_parked"] >= 1  # other tests may have left some
        with Browser(gateway) as browser:
            browser.sign_in(gateway.admin_key)
            assert ">parked<" in browser.page(f"/tenants/{endpoint.tenant}/sessions").text
        after = await whoami(session)
        assert after["process"] != before["process"]
        assert after["heard"] == ["initialize", "notifications/initialized", "logging/setLevel warning"]
        await is_open(endpoint, session)
        assert gateway.metrics()['trunkline_session_wakes_total{result="cold"}'] >= 1
        await until(lambda: heard, WITHIN_S)
        # Once each time it is woken: of a machine that stands still that may be more often than here.
        assert {each["method"] for each in heard} == {"notifications/tools/list_changed"}
    assert use(endpoint)["parked_sessions"] == 0


async def test_a_warm_process_wakes_it(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = parking(gateway, warm=1)
    async with opened(http, endpoint) as session:
        await is_parked(endpoint)
        await until(lambda: [each["state"] for each in processes(endpoint)] == ["warm"], WITHIN_S)
        before = gateway.metrics().get('trunkline_session_wakes_total{result="warm"}', 0.0)
        assert await session.call("echo", text="at once") == "at once"
        assert gateway.metrics()['trunkline_session_wakes_total{result="warm"}'] == before + 1


async def test_calls_and_parking_at_the_same_moment_lose_nothing_and_run_nothing_twice(
    gateway: Gateway, http: httpx2.AsyncClient, tmp_path: Any
) -> None:
    """Clients whose calls come about when their sessions are parked."""
    ledger = tmp_path / "ledger"
    endpoint = parking(gateway, [*COUNTING, str(ledger)], max_processes=1000)
    tokens: list[str] = []

    async def client(number: int) -> None:
        async with opened(http, endpoint) as session:
            for turn in range(4):
                token = f"{number}-{turn}"
                tokens.append(token)
                await session.call("mark", token=token)
                await anyio.sleep(PARK_S + random.uniform(-0.1, 1.1))

    before = gateway.metrics().get('trunkline_session_wakes_total{result="cold"}', 0.0)
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(client, number)
    assert sorted(ledger.read_text().split()) == sorted(tokens)
    assert gateway.metrics()['trunkline_session_wakes_total{result="cold"}'] > before


def refused(session: StreamableSession, failed: CallFailed) -> Any:
    """The error with which it was refused: as a status, or, after a while, in the stream of its answer."""
    if failed.kind == "http-503" and session.connection is not None:
        return json.loads(bytes(session.connection.body))["error"]
    return failed.error


@pytest.mark.alone
@pytest.mark.timeout(1800)
async def test_many_sessions_live_on_few_processes(start_gateway: Any, full: bool) -> None:
    """All are woken at once: each gets a place in its turn, or is told to come again."""
    many, places = (5000, 50) if full else (MANY, PLACES)
    gateway = start_gateway(MAX_PROCESSES=str(places), MAX_SESSIONS="20000", POOL_WAIT_S="60" if full else "240")
    # Of the thousands some clients are so slow on a busy machine that their sessions would end between the two messages
    # of a handshake: they are not parked before the second.
    endpoint = parking(gateway, timeouts={"reclaim_idle_s": 60.0 if full else 0.2})
    found = [StreamableSession(endpoint.mcp, endpoint.headers) for _ in range(many)]
    gate, connections = anyio.Semaphore(places), anyio.Semaphore(CONNECTIONS)
    answers: list[str] = []
    put_off: list[RpcError] = []

    async def in_turn(session: StreamableSession, do: Callable[[], Awaitable[Any]], turns: anyio.Semaphore) -> Any:
        """As a client does: what it is told to try again, it tries again."""
        while True:
            try:
                async with turns:
                    done = await do()
                    session.abort()  # only its connection
                    return done
            except CallFailed as error:
                refusal = RpcError(refused(session, error) or {"code": 0})
                if refusal.reason not in AGAIN:
                    raise
                put_off.append(refusal)
                await anyio.sleep(random.uniform(0.1, 1.0))

    async def call(session: StreamableSession, text: str) -> None:
        do = partial(session.call_tool, "echo", {"text": text}, timeout=600.0)
        answers.append(await in_turn(session, do, connections))

    async with anyio.create_task_group() as tasks:
        for session in found:
            tasks.start_soon(in_turn, session, session.open, gate)
    await until(lambda: gateway.metrics()["trunkline_sessions_parked"] == many, 600)
    assert use(endpoint)["parked_sessions"] == use(endpoint)["sessions"] == many
    await gateway.wait_for_backends(0, 60)
    with anyio.fail_after(900 if full else 300):
        async with anyio.create_task_group() as tasks:
            for number, session in enumerate(found):
                tasks.start_soon(call, session, str(number))
    assert sorted(answers, key=int) == [str(number) for number in range(many)]
    assert full or not put_off
    assert all(each.data.get("outcome") is None for each in put_off)
    assert len(gateway.backends()) <= places


async def test_the_next_process_is_that_of_the_changed_backend(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = parking(gateway)
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    async with opened(http, endpoint) as session:
        await is_parked(endpoint)
        gateway.api("PATCH", path, {"command": ECHO[0], "args": ECHO[1:]})
        assert await session.call("sleep", ms=1) == "slept"  # which only the new one has


async def test_a_restart_does_not_end_it(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = parking(gateway)
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    async with opened(http, endpoint) as session, opened(http, endpoint) as other:
        await is_parked(endpoint, 2)
        await other.request("resources/subscribe", {"uri": "note:a"})  # it is not parked again
        gateway.api("POST", f"{path}:restart")
        assert await session.call("echo", text="still here") == "still here"
        assert (await other.post(rpc("ping"))).status_code == 404


async def test_a_backend_of_which_some_tools_are_shown_is_parked_too(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = gateway.endpoint(ECHO, recovery="respawn", timeouts={"park_s": PARK_S}, include=["echo"])
    async with opened(http, endpoint) as session, listening(session) as heard:
        assert await session.call("echo", text="one") == "one"
        await is_parked(endpoint)
        await until(lambda: not processes(endpoint), WITHIN_S)
        assert await session.call("echo", text="two") == "two"
        await is_open(endpoint, session)
        assert heard == []


async def test_sessions_that_share_a_process_give_it_back_one_by_one(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = parking(gateway, isolation="shared", max_processes=1)
    async with opened(http, endpoint) as session, opened(http, endpoint) as other:
        await is_parked(endpoint, 2)
        found: list[int] = []

        async def ask(each: Wire) -> None:
            found.append((await whoami(each))["process"])

        async with anyio.create_task_group() as tasks:  # at once: who has said nothing for a second is parked
            tasks.start_soon(ask, session)
            tasks.start_soon(ask, other)
        assert len(found) == 2
        assert found[0] == found[1]


async def test_a_client_without_sessions_notices_nothing(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = parking(gateway, ECHO)
    client = SessionlessClient(http, endpoint, [endpoint.mcp])
    assert await client.call("echo", text="one") == "one"
    await is_parked(endpoint)
    await until(lambda: not processes(endpoint), WITHIN_S)
    assert await client.call("echo", text="two") == "two"


async def test_a_stream_is_resumed_while_its_session_is_parked_and_wakes_nothing(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = parking(gateway)
    async with opened(http, endpoint) as session:
        async with session.stream("GET") as response:
            await session.call("change")
            last = await anext(each.id or "" async for each in events(response) if each.data)
        await is_parked(endpoint)
        await until(lambda: not processes(endpoint), WITHIN_S)
        async with session.stream("GET", last_event_id=last) as response:
            assert response.status_code == 200
            assert (states(endpoint), processes(endpoint)) == (["parked"], [])
            await session.call("change")
            heard = await anext(each async for each in events(response) if each.data)
            assert heard.message["method"] == "notifications/tools/list_changed"
            assert heard.id != last


@pytest.mark.parametrize("isolation", ["session", "shared"])
async def test_a_session_of_2024_11_05_is_parked_and_woken_on_its_stream(
    gateway: Gateway, http: httpx2.AsyncClient, isolation: str
) -> None:
    endpoint = parking(gateway, isolation=isolation)
    async with AskedSseClient(http, endpoint, Places(*[endpoint.mcp] * len(Places._fields))) as client:
        await client.open()
        before = await client.process()
        await is_parked(endpoint)
        after = await client.process()
        assert isolation == "shared" or after != before
        await is_awake(endpoint, client.process)
        assert {each.get("method") for each in client.strays} <= {"notifications/tools/list_changed"}
