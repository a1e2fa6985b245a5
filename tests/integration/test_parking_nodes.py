"""Parked sessions when their node or its Redis goes, and when several nodes are asked at once."""

import random
import signal
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import for_backends, until
from tests.integration.nodes import Nodes
from tests.integration.parked import COUNTING, WITHIN_S, is_parked, parking, use
from tests.integration.wire import RpcError, Wire, last_message, rpc

pytestmark = pytest.mark.timeout(300)
MANY = 24


def mark(token: str, number: int) -> dict[str, Any]:
    return rpc("tools/call", number, {"name": "mark", "arguments": {"token": token}})


async def everyone(http: httpx2.AsyncClient, endpoint: Any, count: int) -> list[Wire]:
    found = [Wire(http, endpoint) for _ in range(count)]
    gate = anyio.Semaphore(8)

    async def open_one(session: Wire) -> None:
        async with gate:
            await session.open()

    async with anyio.create_task_group() as tasks:
        for session in found:
            tasks.start_soon(open_one, session)
    return found


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_all_parked_sessions_of_a_node_that_ends_live_on(
    own_nodes: Nodes, http: httpx2.AsyncClient, tmp_path: Path, how: str
) -> None:
    """Requests for each session arrive on both living nodes at once."""
    ledger = for_backends(tmp_path) / "ledger"
    here = own_nodes.all[0]
    third = own_nodes.start()
    await own_nodes.all_know_each_other()
    endpoint = parking(here, [*COUNTING, str(ledger)])
    sessions = await everyone(http, endpoint, MANY)
    await until(lambda: use(endpoint)["parked_sessions"] == MANY, 2 * WITHIN_S, lambda: str(use(endpoint)))
    urls = [each for each in own_nodes.urls(endpoint) if not each.startswith(here.url)]
    if how == "killed":
        here.kill()
    else:
        here.process.send_signal(signal.SIGTERM)
    wanted: list[str] = []

    async def ask(session: Wire, url: str, token: str, number: int) -> None:
        """Until it is answered; what was refused was not executed, and is said again."""
        wanted.append(token)
        while True:
            try:
                response = await http.post(url, json=mark(token, number), headers=session.headers)
            except httpx2.ConnectError:
                await anyio.sleep(0.1)
                continue
            message = last_message(response) if response.content else {}
            if "result" in message:
                assert message["id"] == number
                assert message["result"]["content"][0]["text"] == token
                return
            assert response.status_code != 404, response.text
            data = message.get("error", {}).get("data", {})
            assert data.get("outcome") is None, message
            await anyio.sleep(random.uniform(0.1, 0.5))

    with anyio.fail_after(200):
        async with anyio.create_task_group() as tasks:
            for k, session in enumerate(sessions):
                for n, url in enumerate(urls):
                    tasks.start_soon(ask, session, url, f"{k}-{n}", 100 + n)
    assert sorted(ledger.read_text().split()) == sorted(wanted)
    if how == "stopped":
        assert await anyio.to_thread.run_sync(here.process.wait, 45) == 0
    assert third.process.poll() is None


async def test_a_session_wakes_without_redis_or_is_refused_and_wakes_later(
    own_nodes: Nodes, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    ledger = for_backends(tmp_path) / "ledger"
    endpoint = parking(own_nodes.all[0], [*COUNTING, str(ledger)])
    session = Wire(http, endpoint)
    session.url = own_nodes.urls(endpoint)[0]
    await session.open()
    await is_parked(endpoint)
    own_nodes.redis.freeze()
    answers: list[Any] = []

    async def wake() -> None:
        response = await session.post(mark("frozen", 7))
        answers.append((response.status_code, last_message(response)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wake)
        await anyio.sleep(8)
        own_nodes.redis.thaw()
    if "error" in answers[0][1]:
        assert answers[0][1]["error"]["data"].get("outcome") is None
    with anyio.fail_after(60):
        while True:
            try:
                assert await session.call("mark", token="thawed") == "thawed"
                break
            except RpcError:
                await anyio.sleep(0.3)
    got = ledger.read_text().split()
    assert got.count("thawed") == 1
    assert got.count("frozen") == ("result" in answers[0][1])
