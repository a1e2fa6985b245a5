"""Overload: a node sheds new sessions first and calls last; who comes back as told gets through, with nothing amiss."""

import asyncio
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import psutil
import pytest
from mcp_clients import PROTOCOL_VERSION, CallFailed, HttpConnection

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, running_gateway
from tests.integration.nodes import Nodes
from tests.integration.roaming import Roaming
from tests.integration.test_isolation import Findings
from tests.integration.wire import Wire, initialize, rpc

STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALLS = 5
LOAD = 12  # processes that want a core, those included that others have on this machine
PATIENCE_S = 90.0  # a client's, with one request: as long as it may wait here for Redis, a process and its answer
IDLE_S = 10.0  # a connection that is idle for longer may be closed in the moment in which it is used
WITHIN_S = 300.0  # every client, from its first request until it has gone

pytestmark = pytest.mark.timeout(900)


# --- marks


class Attentive(Gateway):
    """A gateway that looks at its descriptors ten times a second, and forgets soon."""

    FIRST = "import app.limits.overload as overload; overload.LOOK_EVERY, overload.HOLD_S = 1, 0.2"


@pytest.fixture
def attentive(tmp_path: Path) -> Iterator[Gateway]:
    with running_gateway(tmp_path, Attentive, SHED_SESSIONS_PERCENT="60", SHED_CALLS_PERCENT="95") as gateway:
        yield gateway


async def test_descriptors_that_run_out_cost_new_sessions_first_and_calls_last(attentive: Gateway) -> None:
    gateway = attentive
    endpoint = gateway.endpoint(ECHO)
    async with httpx2.AsyncClient(timeout=30) as http:
        session, newcomer = Wire(http, endpoint), Wire(http, endpoint)
        await session.open()
        node = psutil.Process(gateway.pid)

        # In the middle between the marks, 60 and 95 %: while processes start and end it has some more, or less.
        with descriptors(gateway, int(node.num_fds() / 0.78)):
            with anyio.fail_after(20):  # who comes before the node has looked waits for a process
                while "overload" not in (ready := await http.get(gateway.url + "/readyz")).json()["degraded"]:
                    await anyio.sleep(0.05)
            assert ready.status_code == 200
            words = ready.json()["degraded"]["overload"]
            assert words.startswith("New sessions are refused: ")
            assert "LimitNOFILE" in words
            refused = await newcomer.post(initialize())
            assert refused.status_code == 503
            assert refused.json()["error"]["data"]["reason"] == "overloaded"
            assert int(refused.headers["retry-after"]) >= 1
            assert await session.call("echo", text="sessions go on") == "sessions go on"

        with descriptors(gateway, int(node.num_fds() * 0.95)):
            refused = await comes_to(503, lambda: session.post(rpc("tools/list", 1000)))
            assert refused.json()["error"]["data"]["reason"] == "overloaded"
            assert int(refused.headers["retry-after"]) >= 1

        await comes_to(200, lambda: session.post(rpc("tools/list", 1001)))
        await comes_to(200, lambda: newcomer.post(initialize()))
        shed = {name: value for name, value in gateway.metrics().items() if name.startswith("trunkline_shed_total")}
        assert shed['trunkline_shed_total{mark="descriptors",what="session"}'] >= 1
        assert shed['trunkline_shed_total{mark="descriptors",what="call"}'] >= 1
        assert set((await http.get(gateway.url + "/readyz")).json()["degraded"]) == set()


class FewDescriptors(Gateway):
    FIRST = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))"


async def test_sessions_that_fill_a_node_are_reached_over_new_connections(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data", FewDescriptors, POOL_WAIT_S="2") as gateway:
        endpoint = gateway.endpoint(ECHO)
        opened: list[str] = []
        refused = Counter[str]()

        async def come(_: int) -> None:
            async with httpx2.AsyncClient(timeout=60) as http:
                session = Wire(http, endpoint)
                if (answer := await session.post(initialize())).status_code != 200:
                    refused[answer.json()["error"]["data"]["reason"]] += 1
                    return
                session.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
                assert (await session.post(INITIALIZED)).status_code == 202
                opened.append(session.headers["Mcp-Session-Id"])

        for _ in range(5):  # crowds, between which all connections end
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(come, number)
        assert len(opened) > 10, refused
        assert refused["overloaded"] > 10
        assert set(refused) <= {"overloaded", "backend_busy"}
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(httpx2.AsyncClient(timeout=60)) for _ in opened]
            for http, session_id in zip(clients, opened, strict=True):  # all of them at the same time
                session = Wire(http, endpoint)
                session.headers["Mcp-Session-Id"] = session_id
                assert await session.call("echo", text="still here") == "still here"
            for path in ("/livez", "/readyz"):
                assert httpx2.get(gateway.url + path, timeout=30).status_code == 200
            assert (await session.close()).status_code in (200, 204)


@contextmanager
def descriptors(gateway: Gateway, limit: int) -> Iterator[None]:
    """The node may have so many for a while."""
    process = psutil.Process(gateway.pid)
    before = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        process.rlimit(resource.RLIMIT_NOFILE, before)


async def comes_to(status: int, ask: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """The first answer with this status."""
    with anyio.fail_after(20):
        while True:
            response = await ask()
            if response.status_code == status:
                return response
            await anyio.sleep(0.05)


# --- many sessions on a machine that has no time


@dataclass
class Crowd(Findings):
    """What happened to all, and how long they were kept away."""

    refused: Counter[str] = field(default_factory=Counter)
    not_told_when: int = 0
    opened_after_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        longest = sorted(self.opened_after_s) or [0.0]
        return (
            f"{len(self.opened_after_s)} sessions, {self.answers} answers; refused and come back: {dict(self.refused)};"
            f" crossed {self.crossed}, lost {self.lost}, repeated {self.repeated}, failed {dict(self.failed)},"
            f" without Retry-After {self.not_told_when}; open after p50 {longest[len(longest) // 2]:.1f} s,"
            f" at most {longest[-1]:.1f} s"
        )


class Obedient(Roaming):
    """A client that sends each request to a node drawn by lot, and comes back when it is told to."""

    def __init__(self, urls: list[str], headers: dict[str, str], crowd: Crowd) -> None:
        super().__init__(urls, headers)
        self._crowd = crowd
        self._last: HttpConnection | None = None
        self._used_at = 0.0

    async def _ready_connection(self) -> HttpConnection:
        now = time.monotonic()
        if now - self._used_at > IDLE_S:
            self.abort()
        self._last, self._used_at = await super()._ready_connection(), now
        return self._last

    async def notify(self, method: str) -> None:
        """As patient as with a request: the other side of a connection is as busy as this one."""
        connection = await self._ready_connection()
        connection.send("POST", self.path, self.head, msgspec.json.encode({"jsonrpc": "2.0", "method": method}))
        assert connection.finished is not None
        await asyncio.wait_for(asyncio.shield(connection.finished), PATIENCE_S)
        if connection.status >= 400:
            raise CallFailed(f"http-{connection.status}", bytes(connection.body[:200]).decode(errors="replace"))

    async def open(self) -> None:
        """The handshake, of which a node may refuse either part."""
        client = {"name": "crowd", "version": "1"}
        hello = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        await self.until_let_in("initialize", lambda: self.request("initialize", hello, PATIENCE_S))
        await self.until_let_in("initialized", lambda: self.notify("notifications/initialized"))

    async def until_let_in(self, what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer; a refusal before it is counted, and obeyed."""
        while True:
            try:
                return await ask()
            except CallFailed as error:
                if error.kind != "http-503":
                    raise
                reason = str(error).partition('"reason":"')[2].partition('"')[0]
                self._crowd.refused[f"{what} {reason}"] += 1
                assert self._last is not None
                told = self._last.headers.get(b"retry-after")
                self._crowd.not_told_when += told is None
            self.last_id = 0 if what == "initialize" else self.last_id  # as a client that starts anew
            await asyncio.sleep(float(told or 1) + random.random() / 4)


async def live(endpoint: Endpoint, urls: list[str], name: str, crowd: Crowd) -> None:
    """One client: it opens a session, calls with the ids that everyone uses, and goes."""
    session, began_at = Obedient(urls, endpoint.headers, crowd), time.monotonic()
    try:
        async with asyncio.timeout(WITHIN_S):
            await session.open()
            crowd.opened_after_s.append(time.monotonic() - began_at)
            for number in range(CALLS):
                text = f"{name} call {number}"
                answer = await session.until_let_in(
                    "call", partial(session.call_tool, "echo", {"text": text}, PATIENCE_S)
                )
                crowd.answers += answer == text
                crowd.crossed += answer != text
            for stray in session.strays:
                mine = name in str(stray)
                crowd.repeated += "result" in stray and mine
                crowd.crossed += "result" in stray and not mine
    except (CallFailed, OSError, TimeoutError) as error:
        is_lost = isinstance(error, TimeoutError) or getattr(error, "kind", "") == "timeout"
        crowd.lost += is_lost
        crowd.failed[f"{error!r}"[:300]] += not is_lost
    finally:
        await session.close()


@contextmanager
def busy_machine(load: int) -> Iterator[None]:
    """As many processes that want a core all the time as make up this load, and none of them longer than the test."""
    count = max(1, load - int(psutil.getloadavg()[0]))
    program = f"import time\nend = time.monotonic() + {WITHIN_S * 2}\nwhile time.monotonic() < end: pass"
    burners = [subprocess.Popen([sys.executable, "-I", "-S", "-c", program]) for _ in range(count)]
    try:
        yield
    finally:
        for each in burners:
            each.kill()
            each.wait()


async def gather(nodes: Nodes, endpoint: Endpoint, count: int) -> Crowd:
    """So many clients at once, whose every request goes to a node drawn by lot."""
    crowd, urls = Crowd(), nodes.urls(endpoint)
    began_at, cores = time.monotonic(), psutil.cpu_count() or 1
    load: list[float] = []

    async def watch() -> None:
        while True:
            load.append(psutil.getloadavg()[0])
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    try:
        await asyncio.gather(*(live(endpoint, urls, f"client {number}", crowd) for number in range(count)))
    finally:
        watching.cancel()
    shed = Counter[str]()
    for node in nodes.all:
        metrics = await anyio.to_thread.run_sync(node.metrics)
        shed.update({name: int(value) for name, value in metrics.items() if value and "_shed_total" in name})
        shed.update({name: int(value) for name, value in metrics.items() if value and "store_errors_total" in name})
    print(f"\n{crowd}; {time.monotonic() - began_at:.0f} s, load {min(load):.0f} to {max(load):.0f} on {cores} cores;")
    print(f"nodes: {dict(shed)}")
    return crowd


CROWDS = [
    pytest.param(60, "session", 4, id="60 sessions"),
    pytest.param(600, "session", LOAD, id="600 sessions", marks=(pytest.mark.long, pytest.mark.alone)),
    pytest.param(2000, "shared", LOAD, id="2000 sessions", marks=(pytest.mark.long, pytest.mark.alone)),
]


@pytest.mark.parametrize(("count", "isolation", "load"), CROWDS)
async def test_every_client_that_comes_back_as_told_gets_through_a_crowd(
    nodes: Nodes, count: int, isolation: str, load: int
) -> None:
    if isolation == "shared":
        endpoint = nodes.all[0].endpoint(STATELESS, isolation="shared", max_processes=4)
    else:
        endpoint = nodes.all[0].endpoint(ECHO)
    with busy_machine(load):
        crowd = await gather(nodes, endpoint, count)
    assert crowd.faults == 0, crowd
    assert crowd.not_told_when == 0, crowd
    assert crowd.answers == count * CALLS, crowd
