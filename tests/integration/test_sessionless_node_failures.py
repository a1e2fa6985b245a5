"""Clients of 2026-07-28 while nodes die, stand still and stop, and while Redis forgets."""

import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, for_backends, stdin_of, until
from tests.integration.nodes import AGAIN_WITHIN_S, BUSY_S, Nodes, running_nodes
from tests.integration.sessionless_wire import ASKED, SessionlessClient, another_key, others, reason, sessions_of
from tests.integration.test_node_failures import COUNTING, QUICK_PAUSE_S, executed, for_ever, kill_whole
from tests.integration.wire import answer, error_of

ASKING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/asks_twice.py")]
ROLLS = 10

pytestmark = pytest.mark.timeout(300)


async def waiting(
    http: httpx2.AsyncClient, nodes: Nodes, journal: Path, calls: int
) -> tuple[SessionlessClient, list[dict[str, Any]], str]:
    """A client, what so many of its calls ask from the first node, and the address of the other."""
    endpoint = nodes.all[0].endpoint([*ASKING, str(journal)])
    client = SessionlessClient(http, endpoint, nodes.urls(endpoint), ASKED)
    asked = [await client.begin("poll", at=nodes.urls(endpoint)[0], n=number) for number in range(calls)]
    (survivor,) = others(nodes, endpoint, nodes.all[0])
    return client, asked, survivor


@pytest.mark.alone
async def test_a_call_on_a_node_that_has_died_is_lost_and_never_runs_again(
    http: httpx2.AsyncClient, tmp_path: Path, own_nodes: Nodes, full: bool
) -> None:
    journal = for_backends(tmp_path) / "journal"
    client, asked, survivor = await waiting(http, own_nodes, journal, 3)
    await kill_whole(own_nodes.all[0])
    killed_at = time.monotonic()
    assert await reason(client, "poll", asked[0], survivor, n=0) == "state_lost"
    print(f"\nknown to be lost {time.monotonic() - killed_at:.1f} s after the kill")
    assert time.monotonic() - killed_at < AGAIN_WITHIN_S + (0 if full else BUSY_S)
    assert await reason(client, "poll", asked[1], survivor, n=1) == "state_lost"
    client.nodes = [survivor]
    assert await client.answer_all("poll", "new", n=9) == "name-new likes color-new"
    assert Counter(journal.read_text().splitlines())["began 0"] == 1


# --- nodes that die, stand still, and stop


@pytest.mark.alone
async def test_a_caller_whose_node_dies_is_served_by_another_within_seconds(
    http: httpx2.AsyncClient, tmp_path: Path, postgres_database: str, full: bool
) -> None:
    with running_nodes(tmp_path, postgres_database, 3) as nodes:
        await nodes.all_know_each_other()
        first = nodes.all[0].endpoint(ECHO)
        callers = [
            SessionlessClient(http, endpoint, others(nodes, first, nodes.all[0]))
            for endpoint in [first, *[another_key(first) for _ in range(9)]]
        ]
        for client in callers:
            await client.whoami(nodes.urls(first)[0])
            assert (await client.whoami())["count"] == 2
        await kill_whole(nodes.all[0])
        killed_at, waits = time.monotonic(), list[float]()

        async def one(client: SessionlessClient) -> None:
            response = await client.post("tools/call", name="whoami", arguments={})
            if response.status_code != 200 or "error" in response.json():
                assert error_of(response).reason in ("node_lost", "node_unavailable"), response.text
                await one(client)
                return
            waits.append(time.monotonic() - killed_at)
            said = [json.loads(answer(response)["content"][0]["text"]), *[await client.whoami() for _ in range(5)]]
            assert len({each["process"] for each in said}) == 1
            assert said[-1]["count"] - said[0]["count"] == 5

        async with anyio.create_task_group() as tasks:
            for client in callers:
                tasks.start_soon(one, client)
        print(f"\nserved again after {min(waits):.1f} to {max(waits):.1f} s")
        assert max(waits) < AGAIN_WITHIN_S + (0 if full else BUSY_S)


@pytest.mark.long
async def test_a_node_that_stood_still_gives_up_the_lines_that_another_has_by_now(
    http: httpx2.AsyncClient, own_nodes: Nodes
) -> None:
    endpoint = own_nodes.all[0].endpoint(ECHO)
    frozen, other = own_nodes.urls(endpoint)
    client = SessionlessClient(http, endpoint, own_nodes.urls(endpoint))
    kept = SessionlessClient(http, another_key(endpoint), own_nodes.urls(endpoint))
    before, kept_before = await client.whoami(frozen), await kept.whoami(frozen)
    own_nodes.all[0].process.send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    while True:  # what was sent is not sent again: the client is told that nobody knows
        response = await client.post("tools/call", at=other, name="whoami", arguments={})
        if response.status_code == 200 and "result" in response.json():
            break
        assert error_of(response).reason in ("node_lost", "node_unavailable"), response.text
        assert time.monotonic() - stopped_at < 15
    print(f"\nserved again after {time.monotonic() - stopped_at:.1f} s")
    taken = json.loads(answer(response)["content"][0]["text"])
    assert taken["process"] != before["process"]
    own_nodes.all[0].process.send_signal(signal.SIGCONT)
    said = [await client.whoami(url) for url in (frozen, other, frozen, other)]
    assert [(each["process"], each["count"]) for each in said] == [(taken["process"], count) for count in (2, 3, 4, 5)]
    await until(lambda: before["process"] not in {stdin_of(each.pid) for each in own_nodes.all[0].family()}, 10)
    assert (await kept.whoami())["process"] == kept_before["process"], "what nobody has taken goes on"


async def test_calls_in_flight_on_a_node_that_drains_finish_while_others_have_its_callers(
    http: httpx2.AsyncClient, own_nodes: Nodes
) -> None:
    endpoint = own_nodes.all[0].endpoint(ECHO)
    leaving, other = own_nodes.urls(endpoint)
    client = SessionlessClient(http, endpoint, own_nodes.urls(endpoint))
    before = (await client.whoami(leaving))["process"]
    texts: list[str] = []

    async def slow() -> None:
        texts.append(await client.call("sleep", ms=12_000, at=random.choice(client.nodes)))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(slow)
        await until(lambda: sum(each["calls"] for each in sessions_of(own_nodes, endpoint)) == 10)
        own_nodes.all[0].terminate()
        with anyio.fail_after(10):
            while (first := await client.whoami(other))["process"] == before:
                await anyio.sleep(0.02)
        said = [first, *[await client.whoami(url) for url in (leaving, other, leaving, other)]]
        assert [(each["process"], each["count"]) for each in said] == [
            (first["process"], count) for count in range(1, 6)
        ]
        assert not texts
    assert len(texts) == 10
    assert await anyio.to_thread.run_sync(own_nodes.all[0].process.wait, 45) == 0


@pytest.mark.alone
@pytest.mark.parametrize(
    "declared", [pytest.param({"isolation": "shared"}, marks=pytest.mark.long), {"recovery": "respawn"}]
)
async def test_rolling_restarts_fail_no_request_of_clients_without_a_session(
    http: httpx2.AsyncClient,
    tmp_path: Path,
    own_nodes: Nodes,
    full: bool,
    declared: dict[str, str],
) -> None:
    rolls, trace = ROLLS if full else 2, for_backends(tmp_path) / "trace"
    failed, answered, cut_off, tokens = Counter[str](), list[str](), list[str](), itertools.count()
    first = own_nodes.all[0].endpoint([*COUNTING, str(trace)], warm=2, **declared)

    async def call(client: SessionlessClient) -> None:
        token = f"token-{next(tokens)}"
        urls = own_nodes.urls(first)
        random.shuffle(urls)
        for url in urls:
            try:
                response = await client.post("tools/call", at=url, name="mark", arguments={"token": token, "ms": 20})
            except httpx2.ConnectError:  # a load balancer would try the next one as well
                continue
            except httpx2.TransportError:
                cut_off.append(token)
                return
            if response.status_code != 200 or "result" not in response.json():
                failed[f"{response.status_code} {response.text}"] += 1
                return
            answered.append(token)
            return
        failed["no node takes a connection"] += 1

    async with anyio.create_task_group() as tasks:
        for endpoint in [first, *[another_key(first) for _ in range(9)]]:
            client = SessionlessClient(http, endpoint, [])
            tasks.start_soon(for_ever, lambda client=client: call(client), 0.02 if full else QUICK_PAUSE_S)
        await own_nodes.roll(rolls)
        tasks.cancel_scope.cancel()
    assert not failed, failed
    runs = executed(trace)
    assert not cut_off, [(token, runs[token]) for token in cut_off]
    assert [token for token in answered if runs[token] != 1] == []
    assert max(runs.values()) == 1
    print(f"\n{rolls} restarts: {len(answered)} calls answered, {len(cut_off)} met a closed connection")
