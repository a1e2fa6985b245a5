"""Nodes that die, stop and come back under load: what clients see of it, and that no call is carried out twice."""

import bisect
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, for_backends, is_alive, until
from tests.integration.nodes import AGAIN_WITHIN_S, BUSY_S, Nodes
from tests.integration.wire import LATEST, RpcError, Wire, answer, events

COUNTING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/counting.py")]
SESSIONS = 20
KILLS, ROLLS = 20, 10
HEARD_WITHIN_S = 30.0  # what clients have missed comes when they have connected again
QUICK_PAUSE_S = (
    0.1  # between two calls of a session; less with --long, which leaves the machine no time for anything else
)

pytestmark = pytest.mark.timeout(900)


@dataclass
class Tally:
    """What the clients of one test have seen."""

    answered: list[str] = field(default_factory=list)  # tokens of calls with an answer
    unknown: dict[str, str] = field(default_factory=dict)  # calls whose outcome nobody could tell, and why
    failed: Counter[str] = field(default_factory=Counter)
    put_off: Counter[str] = field(default_factory=Counter)  # 503: not accepted, to be sent again
    refused_again: int = 0  # by another node than the one that refused the connection first
    tokens: "itertools.count[int]" = field(default_factory=itertools.count)

    def next_token(self) -> str:
        return f"token-{next(self.tokens)}"


class Client:
    """One session that asks a node drawn by lot each time, and repeats no call that may have been carried out."""

    def __init__(self, http: httpx2.AsyncClient, nodes: Nodes, endpoint: Endpoint, tally: Tally) -> None:
        self._nodes, self._endpoint, self._tally = nodes, endpoint, tally
        self.wire = Wire(http, endpoint)
        self.answered_at: list[float] = []
        self.heard: list[str] = []
        self.told: dict[str, float] = {}
        self.last_event: str | None = None

    def pick(self, *, another: bool = False) -> None:
        """A node drawn by lot; or one that is not the last one."""
        urls = self._nodes.urls(self._endpoint)
        self.wire.url = random.choice([url for url in urls if url != self.wire.url or not another] or urls)

    async def call(self, tool: str = "mark", **arguments: object) -> None:
        """One call. Refused connections and 503 are tried again elsewhere: then nothing was sent, or not accepted."""
        token = self._tally.next_token()
        message = {
            "jsonrpc": "2.0",
            "id": next(self.wire.ids),
            "method": "tools/call",
            "params": {"name": tool, "arguments": {"token": token, **arguments}},
        }
        is_refused = False
        while True:
            self.pick(another=is_refused)
            try:
                response = await self.wire.post(message)
            except httpx2.ConnectError:
                self._tally.refused_again += is_refused
                is_refused = True
                continue
            except httpx2.TransportError as error:
                self._tally.unknown[token] = f"{self.wire.url}: {error!r}"
                return
            if response.status_code == 503:
                self._tally.put_off[response.text[-200:]] += 1
                await anyio.sleep(0.05)
                continue
            if response.status_code != 200:
                self._tally.failed[f"{response.status_code} {response.text[:120]}"] += 1
                return
            try:
                result = answer(response)
            except (RpcError, StopIteration) as error:
                is_lost = not isinstance(error, RpcError) or error.reason in ("node_lost", "backend_exited")
                if is_lost:
                    self._tally.unknown[token] = f"{self.wire.url}: {error!r}"
                else:
                    self._tally.failed[str(error)] += 1
                return
            assert result["content"][0]["text"] == token
            self.answered_at.append(time.monotonic())
            self._tally.answered.append(token)
            if tool == "tell":
                self.told[token] = self.answered_at[-1]
            return

    def missing(self) -> list[str]:
        """Events that a call has told, and that have not come."""
        return list(self.told.keys() - self.heard)

    async def first_answer_after(self, moment: float, within_s: float) -> float:
        """How many seconds after that moment the first call was answered."""
        await until(lambda: self.answered_at and self.answered_at[-1] > moment, within_s)
        return self.answered_at[bisect.bisect(self.answered_at, moment)] - moment

    async def listen(self) -> None:
        """Keeps a GET stream open wherever that works, and goes on after the last event it has got."""
        while True:
            self.pick()
            headers = {} if self.last_event is None else {"Last_Event_ID": self.last_event}
            try:
                async with self.wire.stream("GET", **headers) as stream:
                    if stream.status_code == 200:
                        async for event in events(stream):
                            self.last_event = event.id or self.last_event
                            if event.data:
                                self.heard.append(event.message.get("params", {}).get("uri", ""))
            except httpx2.TransportError:
                pass
            await anyio.sleep(0.05)


@asynccontextmanager
async def clients(nodes: Nodes, endpoint: Endpoint, tally: Tally, count: int) -> AsyncIterator[list[Client]]:
    """So many open sessions, spread over the nodes."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(timeout=60, limits=limits) as http:
        opened = [Client(http, nodes, endpoint, tally) for _ in range(count)]
        for client in opened:
            client.pick()
            await client.wire.open(LATEST)
        yield opened


def executed(trace: Path) -> Counter[str]:
    """How often each call was carried out, as the servers wrote it down."""
    return Counter(trace.read_text().split()) if trace.exists() else Counter()


def require_no_double(tally: Tally, trace: Path) -> None:
    runs = executed(trace)
    twice = {token: count for token, count in runs.items() if count > 1}
    assert not twice, twice
    never = [token for token in tally.answered if runs[token] != 1]
    assert not never, never
    assert not tally.failed, tally.failed


def respawning(node: Gateway, trace: Path, **fields: Any) -> Endpoint:
    return node.endpoint([*COUNTING, str(trace)], recovery="respawn", **fields)


async def for_ever(work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        await work()
        await anyio.sleep(pause_s)


async def kill_whole(node: Gateway) -> None:
    """SIGKILL to a node; nothing that it has started may outlive it."""
    family = node.family()
    node.kill()
    await until(lambda: not any(is_alive(each) for each in family), 15)


@pytest.mark.alone
async def test_a_node_that_is_killed_loses_no_session_and_no_event_and_repeats_no_call(
    tmp_path: Path, own_nodes: Nodes, full: bool
) -> None:
    kills = KILLS if full else KILLS // 10
    tally, trace, waits = Tally(), for_backends(tmp_path) / "trace", list[float]()
    endpoint = respawning(own_nodes.all[0], trace, warm=4)
    async with clients(own_nodes, endpoint, tally, SESSIONS) as opened, anyio.create_task_group() as tasks:
        for client in opened:
            tasks.start_soon(client.listen)
            tasks.start_soon(for_ever, partial(client.call, ms=50), 0.05 if full else QUICK_PAUSE_S)
        # Who has no event to go on after cannot ask for what came before.
        await until(lambda: all(client.last_event for client in opened), 20)
        for client in opened:
            tasks.start_soon(for_ever, partial(client.call, "tell"), 0.2)
        for number in range(kills):
            await anyio.sleep(random.uniform(1.0, 1.5))
            victim = own_nodes.all[number % 2]
            await kill_whole(victim)
            killed_at = time.monotonic()
            again = [await client.first_answer_after(killed_at, 15) for client in opened]
            print(f"kill {number + 1}: the last session answered after {max(again):.2f} s")
            waits += again
            await anyio.to_thread.run_sync(own_nodes.replace, victim)
            await own_nodes.all_know_each_other()
        await anyio.sleep(1.0)
        for client in opened:
            await until(lambda: not client.missing(), HEARD_WITHIN_S, client.missing)  # noqa: B023 - awaited here
        tasks.cancel_scope.cancel()
    require_no_double(tally, trace)
    for client in opened:
        heard = Counter(filter(None, client.heard))
        assert not [token for token, count in heard.items() if count > 1], "an event came twice"
    waits.sort()
    median, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    print(
        f"\n{kills} kills: answered again after {median:.2f} s, p99 {p99:.2f} s, {len(tally.answered)} calls answered"
    )
    print(f"{len(tally.unknown)} calls without a known outcome")
    assert p99 <= AGAIN_WITHIN_S + (0 if full else BUSY_S)


@pytest.mark.alone
async def test_rolling_restarts_under_load_fail_no_call(tmp_path: Path, own_nodes: Nodes, full: bool) -> None:
    rolls = ROLLS if full else 2
    tally, trace = Tally(), for_backends(tmp_path) / "trace"
    endpoint = respawning(own_nodes.all[0], trace, warm=2)
    async with clients(own_nodes, endpoint, tally, SESSIONS) as opened, anyio.create_task_group() as tasks:
        for client in opened:
            tasks.start_soon(for_ever, client.call, 0.02 if full else QUICK_PAUSE_S)
        await own_nodes.roll(rolls)
        tasks.cancel_scope.cancel()
    require_no_double(tally, trace)
    assert not tally.unknown, tally.unknown
    assert (tally.put_off, tally.refused_again) == (Counter(), 0)
    print(f"\n{rolls} restarts: {len(tally.answered)} calls answered")
