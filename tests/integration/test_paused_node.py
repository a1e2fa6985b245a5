"""A node that stands still (SIGSTOP) while another takes its sessions over: awake again, it neither accepts for them
nor delivers."""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, for_backends, until
from tests.integration.nodes import BUSY_S, Nodes, running_nodes
from tests.integration.wire import Wire, answer, error_of, last_message

COUNTING = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/counting.py")]
SESSIONS = 5
PAUSE_S = 10.0
# The first call is sent to the node that stands still: a lease of 5 s, a beat until that is noticed, a probe of 0.5 s,
# and the start of a process.
TAKEN_WITHIN_S = 6.5

pytestmark = pytest.mark.timeout(300)


@dataclass
class Rig:
    """Two nodes; the second has the sessions and is the one that stands still."""

    nodes: Nodes
    endpoint: Endpoint
    trace: Path
    http: httpx2.AsyncClient
    sessions: list[Wire] = field(default_factory=list)

    @property
    def sleeper(self) -> Gateway:
        return self.nodes.all[1]

    @property
    def urls(self) -> tuple[str, str]:
        first, second = self.nodes.urls(self.endpoint)
        return first, second

    async def open(self) -> Wire:
        session = Wire(self.http, self.endpoint)
        session.url = self.urls[1]
        await session.open()
        await self.mark(session, 1)
        return session

    async def post(self, session: Wire, node: int, token: str, **arguments: object) -> httpx2.Response:
        """One call at that node."""
        return await self.http.post(self.urls[node], json=call(session, token, **arguments), headers=session.headers)

    async def mark(self, session: Wire, node: int) -> float:
        """Calls until one is answered, each time another call: after a 503, and after the error for one whose outcome
        nobody knows, because it was sent to the node that stands still. How many seconds that took."""
        began_at = time.monotonic()
        with anyio.fail_after(30):
            while True:
                token = f"marked-{session.session_id[-6:]}-{time.monotonic_ns()}"
                response = await self.post(session, node, token)
                if response.status_code == 503:
                    await anyio.sleep(0.05)
                    continue
                message = last_message(response)
                if "result" in message:
                    assert answer(response)["content"][0]["text"] == token
                    return time.monotonic() - began_at
                assert message["error"]["data"]["reason"] == "node_lost", message

    def executed(self) -> Counter[str]:
        return Counter(self.trace.read_text().split())


def call(session: Wire, token: str, **arguments: object) -> dict[str, object]:
    params = {"name": "mark", "arguments": {"token": token, **arguments}}
    return {"jsonrpc": "2.0", "id": next(session.ids), "method": "tools/call", "params": params}


@asynccontextmanager
async def rig(tmp_path: Path, database: str) -> AsyncIterator[Rig]:
    with running_nodes(tmp_path, database, 2) as nodes, ExitStack() as stack:
        await nodes.all_know_each_other()
        trace = for_backends(tmp_path) / "trace"
        endpoint = nodes.all[0].endpoint([*COUNTING, str(trace)], recovery="respawn")
        async with httpx2.AsyncClient(timeout=60) as http:
            redis = stack.enter_context(nodes.redis.client())
            rig = Rig(nodes, endpoint, trace, http)
            rig.sessions += [await rig.open() for _ in range(SESSIONS)]
            # By now all is written down that another node needs.
            await until(lambda: len(list(redis.scan_iter("trunkline:head:*"))) == SESSIONS, 10)
            await anyio.sleep(0.3)
            yield rig
        twice = {token: count for token, count in rig.executed().items() if count > 1}
        assert not twice, twice


@asynccontextmanager
async def paused(node: Gateway, seconds: float = PAUSE_S) -> AsyncIterator[None]:
    """It stands still for so long, and its processes do not."""
    until_at = time.monotonic() + seconds
    node.process.send_signal(signal.SIGSTOP)
    try:
        yield
        await anyio.sleep(until_at - time.monotonic())
    finally:
        node.process.send_signal(signal.SIGCONT)


@pytest.mark.alone
async def test_a_node_that_stood_still_does_not_answer_for_what_another_has_taken_over(
    tmp_path: Path, postgres_database: str, full: bool
) -> None:
    async with rig(tmp_path, postgres_database) as it:
        plain = it.nodes.all[0].endpoint(ECHO, tenant=it.endpoint.tenant)
        before, kept = Wire(it.http, plain), await it.open()
        before.url = it.nodes.urls(plain)[1]
        await before.open()
        process = json.loads(await before.call("whoami"))["process"]
        in_flight, queued = list[httpx2.Response](), list[httpx2.Response]()

        async def post(into: list[httpx2.Response], session: Wire, word: str, ms: int = 0) -> None:
            into.append(await it.post(session, 1, f"{word}-{id(session)}", ms=ms))

        async with anyio.create_task_group() as tasks:
            for session in it.sessions:
                tasks.start_soon(post, in_flight, session, "slow", 5000)
            await until(lambda: sum(token.startswith("slow-") for token in it.executed()) == SESSIONS)
            async with paused(it.sleeper):
                for session in it.sessions:
                    tasks.start_soon(post, queued, session, "queued")
                taken = [await it.mark(session, 0) for session in it.sessions]
        print(f"\ntaken over after {max(taken):.2f} s; in flight: {[each.status_code for each in in_flight]}")
        print(f"queued: {[each.status_code for each in queued]} {queued[0].text}")
        assert max(taken) < TAKEN_WITHIN_S + (0 if full else BUSY_S)
        # Sent, and perhaps carried out. No 404: the sessions go on at the other node.
        told = [(each.status_code, error_of(each).reason, error_of(each).data["outcome"]) for each in in_flight]
        assert told == [(200, "node_lost", "unknown")] * SESSIONS
        assert [answer(each)["content"][0]["text"][:6] for each in queued] == ["queued"] * SESSIONS
        for session in it.sessions:
            for node in (0, 1):
                await it.mark(session, node)
        assert await it.mark(kept, 1) < (1.0 if full else 4.0)  # and not after the five seconds of a lease
        assert json.loads(await before.call("whoami"))["process"] == process
        assert it.nodes.all[0].metrics()['trunkline_takeovers_total{result="restored"}'] == SESSIONS
        await it.nodes.have_only(SESSIONS + 2, it.endpoint)


@pytest.mark.long
async def test_a_request_that_was_half_there_before_the_pause_is_not_accepted(
    tmp_path: Path, postgres_database: str
) -> None:
    async with rig(tmp_path, postgres_database) as it, AsyncExitStack() as lines:
        halves = []
        for session in it.sessions:
            where, body = urlsplit(it.urls[1]), json.dumps(call(session, f"half-{id(session)}")).encode()
            head = f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(body)}\r\n"
            asked = {**session.headers, "Expect": "100-continue"}  # answered by a node that has read the head
            head += "".join(f"{name}: {value}\r\n" for name, value in asked.items()) + "\r\n"
            line = await lines.enter_async_context(await anyio.connect_tcp(str(where.hostname), where.port or 80))
            await line.send(head.encode())
            with anyio.fail_after(30):
                assert (await line.receive()).startswith(b"HTTP/1.1 100 ")
            await line.send(body[:10])
            halves.append((line, body[10:]))
        async with paused(it.sleeper):
            for session in it.sessions:
                await it.mark(session, 0)
            for line, rest in halves:
                await line.send(rest)
        heads = []
        for line, _ in halves:
            with anyio.fail_after(10):
                heads.append((await line.receive()).split(b"\r\n")[0])
        ran = [token for token in it.executed() if token.startswith("half-")]
        print(f"\n{heads}; carried out: {len(ran)}")
        assert not ran
        assert not [head for head in heads if b" 200 " in head]
        for session in it.sessions:
            await it.mark(session, 1)
        await it.nodes.have_only(SESSIONS, it.endpoint)
