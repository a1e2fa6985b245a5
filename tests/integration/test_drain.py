"""A node that is told to stop: what it still takes, for how long, and when it is gone."""

import asyncio
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, Gateway, until
from tests.integration.stopwatch import stopwatch
from tests.integration.wire import Wire, error_of, wire

NOT_READY_WITHIN_S = 1.0  # of SIGTERM, by the stopwatch; a balancer that polls must not be the last to know
AFTER_DRAIN_S = 15.0  # on a busy machine
CALLS, SESSIONS, LONGEST_S = 1000, 40, 20.0
CALLERS = 8

Start = Callable[..., Gateway]


async def test_a_node_is_not_ready_at_once_and_takes_everything_for_drain_delay(start_gateway: Start) -> None:
    delay_s = 8.0
    gateway = start_gateway(DRAIN_DELAY_S=str(delay_s))
    endpoint = gateway.endpoint(ECHO, warm=1)
    async with wire(endpoint) as session:
        told, seconds = await stop(gateway)
        print(f"not ready {seconds * 1e3:.0f} ms after SIGTERM")
        assert seconds < NOT_READY_WITHIN_S
        async with wire(endpoint) as late:  # a new connection, a new session
            assert await late.call("echo", text="late") == "late"
        assert await session.call("echo", text="old") == "old"
        assert time.monotonic() - told < delay_s, "the machine is too slow for this test"
        assert await exit_status(gateway) == 0
        assert time.monotonic() - told > delay_s


async def test_while_a_call_has_its_time_new_connections_hear_that_the_node_stops_and_then_the_call_does(
    start_gateway: Start,
) -> None:
    drain_s = 5.0
    gateway = start_gateway(DRAIN_S=str(drain_s))
    endpoint = gateway.endpoint(ECHO)
    async with wire(endpoint) as session, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(session.ask("sleep", ms=60_000))
        plain = tasks.create_task(session.post(SLEEP, Accept="application/json"))
        await call_is_in_flight(gateway, 2)
        told, _ = await stop(gateway)
        async with httpx2.AsyncClient(timeout=30) as http:
            refused = await Wire(http, endpoint).post(INITIALIZE)
        assert (refused.status_code, error_of(refused).reason) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) >= 1
        with anyio.fail_after(drain_s + AFTER_DRAIN_S):
            error = await call
            status = await exit_status(gateway)
        took = time.monotonic() - told
        cut_off = await plain
    # They were sent: a 503 would have them sent again.
    assert (error.reason, error.data["outcome"]) == ("node_lost", "unknown")
    assert (cut_off.status_code, error_of(cut_off).reason, "retry-after" in cut_off.headers) == (
        200,
        "node_lost",
        False,
    )
    assert status == 0
    print(f"gone {took:.2f} s after SIGTERM, of which DRAIN_S are {drain_s:.0f}")
    assert drain_s <= took < drain_s + AFTER_DRAIN_S


async def test_a_call_can_be_cancelled_when_no_new_one_is_taken_any_more(start_gateway: Start) -> None:
    drain_s = 40.0
    gateway = start_gateway(DRAIN_S=str(drain_s))
    async with wire(gateway.endpoint(ECHO)) as session, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(session.post(SLEEP, Accept="application/json"))
        await call_is_in_flight(gateway)
        told, _ = await stop(gateway)
        await anyio.sleep(0.5 * drain_s + 1)  # new calls wait from the middle on; the rest is for a busy machine
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": SLEEP["id"]}}
        answer = await session.post(cancelled)
        assert answer.status_code == 202, answer.text
        assert error_of(await call).reason == "cancelled"
    assert await exit_status(gateway) == 0
    assert time.monotonic() - told < drain_s, "it has waited for a call that was cancelled"


@pytest.mark.parametrize("level", ["errors", "all"])
async def test_a_call_that_was_in_flight_is_the_last_on_its_connection(start_gateway: Start, level: str) -> None:
    gateway = start_gateway(ACCESS_LOG=level, DRAIN_DELAY_S="60")
    endpoint = gateway.endpoint(ECHO)
    async with wire(endpoint) as session, asyncio.TaskGroup() as tasks:
        short = {**SLEEP, "params": {"name": "sleep", "arguments": {"ms": 3000}}}
        call = tasks.create_task(session.post(short, Accept="application/json"))
        await call_is_in_flight(gateway)
        await stop(gateway)
        answer = await call
    assert (answer.status_code, answer.headers.get("connection")) == (200, "close")
    gateway.terminate()  # nobody waits for the rest of the delay
    assert await exit_status(gateway) == 0


async def test_a_second_signal_ends_it_at_once_and_the_log_says_how_many_calls_that_cut_off(
    start_gateway: Start,
) -> None:
    gateway = start_gateway()
    async with wire(gateway.endpoint(ECHO)) as session, asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(cut_off(session, name)) for name in "ab"]
        await call_is_in_flight(gateway, 2)
        await stop(gateway)  # two signals at once may be one
        told = time.monotonic()
        gateway.terminate()
        assert await exit_status(gateway) == 0
        assert time.monotonic() - told < AFTER_DRAIN_S
        await asyncio.gather(*calls)
    lines = [json.loads(line) for line in gateway.log.read_text().splitlines() if line.startswith("{")]
    (line,) = [each for each in lines if each["message"].startswith(("drained", "stopped"))]
    assert line["message"] == "stopped without draining to the end: told again to stop"
    assert (line["sessions"], line["calls_cut_off"]) == (1, 2)


async def cut_off(session: Wire, name: str) -> None:
    """A call that never ends; how its client hears of the end of the node is no matter here."""
    with suppress(httpx2.TransportError):
        await session.post({**SLEEP, "id": name}, Accept="application/json")


async def test_whoever_has_connected_before_the_listener_closes_is_answered(start_gateway: Start) -> None:
    gateway, found = start_gateway(), Counter[str]()
    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(anyio.to_thread.run_sync, knock_until_refused, gateway.host, found)
        await until(lambda: found["answered"] > 10 * CALLERS, 15)
        gateway.terminate()
    assert await exit_status(gateway) == 0
    print(f"\n{found}")
    assert set(found) == {"answered", "refused"}


def knock_until_refused(host: str, found: Counter[str]) -> None:
    """One connection after the other, with a request on each."""
    name, _, port = host.partition(":")
    request, deadline = (
        f"GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n",
        time.monotonic() + LONGEST_S,
    )
    while not found["refused"] and time.monotonic() < deadline:
        try:
            connection = socket.create_connection((name, int(port)), timeout=LONGEST_S)
        except ConnectionRefusedError:
            found["refused"] += 1
            return
        with connection:
            try:
                connection.sendall(request.encode())
                found["answered" if connection.recv(1000).startswith(b"HTTP/1.1 200 ") else "closed"] += 1
            except OSError as error:
                found[type(error).__name__] += 1


async def test_the_streams_of_many_clients_end_one_after_the_other(start_gateway: Start) -> None:
    for _ in range(3):  # where this program stands still for a moment, it hears of all ends at once
        ends, retries = await ends_of_streams(start_gateway())
        assert len(ends) == 30
        assert len(retries) > 20  # and each comes back after a time of its own
        assert min(retries) >= 1000
        assert max(retries) <= 5000
        if max(ends) - min(ends) > 0.15:  # a hundred a second
            return
    pytest.fail("all streams have ended at once")


async def ends_of_streams(gateway: Gateway) -> tuple[list[float], set[int]]:
    """When the streams of thirty clients have ended at a stop, and after how long they shall come back."""
    endpoint = gateway.endpoint(ECHO)
    ends: list[float] = []
    retries: set[int] = set()

    async def listen(session: Wire, listening: anyio.abc.TaskStatus[None]) -> None:
        async with session.stream("GET", Accept="text/event-stream") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            listening.started()
            retries.update([int(line.removeprefix("retry: ")) async for line in lines if line.startswith("retry: ")])
            ends.append(time.monotonic())

    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(wire(endpoint)) for _ in range(30)]
        async with anyio.create_task_group() as tasks:
            for session in sessions:
                await tasks.start(lambda task_status, session=session: listen(session, task_status))
            gateway.terminate()
            with anyio.fail_after(40):
                status = await exit_status(gateway)
    assert status == 0
    return ends, retries


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(240)
async def test_a_thousand_calls_in_flight_all_finish(start_gateway: Start) -> None:
    """L1: calls of up to 20 s within a drain of 30 s."""
    gateway = start_gateway()
    endpoint = gateway.endpoint(ECHO, max_processes=SESSIONS)
    chance = random.Random(1)
    answers: list[str] = []

    async def call(session: Wire, seconds: float) -> None:
        answers.append(await session.call("sleep", ms=seconds * 1000))

    async with AsyncExitStack() as stack:
        limits = httpx2.Limits(max_connections=CALLS + SESSIONS)
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=60, limits=limits))
        sessions = [Wire(http, endpoint) for _ in range(SESSIONS)]
        for session in sessions:
            await session.open()
        async with asyncio.TaskGroup() as tasks:
            begun = time.monotonic()
            for number in range(CALLS):
                seconds = chance.uniform(4.0, LONGEST_S)
                tasks.create_task(call(sessions[number % SESSIONS], seconds))
            await call_is_in_flight(gateway, CALLS)
            told = time.monotonic()
            gateway.terminate()
        assert await exit_status(gateway) == 0
    print(f"{CALLS} calls in flight after {told - begun:.1f} s; gone {time.monotonic() - told:.1f} s after SIGTERM")
    assert answers == ["slept"] * CALLS
    assert not gateway.backends()


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}

SLEEP = {"jsonrpc": "2.0", "id": "s", "method": "tools/call", "params": {"name": "sleep", "arguments": {"ms": 60_000}}}


async def stop(gateway: Gateway) -> tuple[float, float]:
    """Sends SIGTERM; when that was, and how many seconds later the node said that it is not ready."""
    async with httpx2.AsyncClient(timeout=30) as http:  # connected before: that takes time of its own
        assert (await http.get(gateway.url + "/readyz")).status_code == 200
        async with stopwatch(gateway) as watch:
            told = time.monotonic()
            gateway.terminate()
            with anyio.fail_after(20):
                while (await http.get(gateway.url + "/readyz")).status_code == 200:
                    await anyio.sleep(0.001)
            return told, watch.seconds


async def call_is_in_flight(gateway: Gateway, count: int = 1) -> None:
    """Waits for what administrators see."""
    (tenant,) = [each["name"] for each in gateway.api("GET", "/tenants")["items"] if each["name"] != "default"]
    with anyio.fail_after(30):
        while True:
            sessions = gateway.api("GET", f"/tenants/{tenant}/sessions?limit=100")["items"]
            if sum(each["calls"] for each in sessions) >= count:
                return
            await anyio.sleep(0.02)


async def exit_status(gateway: Gateway) -> int:
    return await anyio.to_thread.run_sync(gateway.process.wait, 60)
