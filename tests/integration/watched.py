"""Sessions under watch while faults come and go: calls at the node that has them, the same at others, and new ones."""

import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import anyio
import httpx2

from tests.integration.gateway import ROOT, Endpoint, until
from tests.integration.nodes import Nodes
from tests.integration.pulse import LATENESS
from tests.integration.wire import LATEST, RpcError, Wire, answer

WARM = 2  # processes at each node that wait for a session
PAUSE_S = 0.1  # between two requests of one client
OPEN_EVERY_S = 0.25
REFUSED_WITHIN_S = 1.0  # every one
RECOVERED_WITHIN_S = 5.0
ALIVE_WITHIN_S = 0.1  # p99 of /livez, all along


class Seen(NamedTuple):
    """One request: when it was sent, how long its answer took, and what that was."""

    at: float
    seconds: float
    status: int
    fault: str = ""  # what is wrong with the answer


class Beat(NamedTuple):
    """One answer to /livez; `late` is how late its program itself was woken just before or just after, `waited` for how
    long the node waited for a core meanwhile."""

    node: int
    at: float
    seconds: float
    late: float
    waited: float

    @property
    def nodes_own(self) -> float:
        """What of it the node has taken: for what it and the program waited, the machine is to blame."""
        return max(0.0, self.seconds - self.late - self.waited)


@dataclass
class Findings:
    """What was seen by whom, in order."""

    at_owner: list[Seen] = field(default_factory=list)
    elsewhere: list[Seen] = field(default_factory=list)
    opening: list[Seen] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)  # tokens of calls
    refused: list[str] = field(default_factory=list)
    tokens: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def faults(self) -> Counter[str]:
        """What no fault of Redis excuses."""
        found = Counter(f"at the owner: {seen.status} {seen.fault}" for seen in self.at_owner if seen.status != 200)
        for name, all_seen in (("elsewhere", self.elsewhere), ("opening", self.opening)):
            found += Counter(f"{name}: {seen.status} {seen.fault}" for seen in all_seen if seen.fault)
        return found

    def require_each_once(self, trace: Path) -> None:
        """What was answered was carried out once, what was refused never, and nothing twice."""
        runs = Counter(trace.read_text().split()) if trace.exists() else Counter()
        assert not [token for token, count in runs.items() if count > 1], "carried out twice"
        assert not [token for token in self.answered if runs[token] != 1]
        assert not [token for token in self.refused if runs[token]], "carried out and refused"


class Visitor:
    """One session, and who asks for it at its owner's and at another node."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint, urls: tuple[str, str], found: Findings) -> None:
        self.wire, self._urls, self._found = Wire(http, endpoint), urls, found
        self.wire.url = urls[0]
        self.last_elsewhere = Seen(0.0, 0.0, 0)

    async def call(self) -> None:
        """At the node that has it."""
        self._found.at_owner.append(await self._call(self._urls[0]))

    async def visit(self) -> None:
        """At the other."""
        seen = self.last_elsewhere = await self._call(self._urls[1])
        self._found.elsewhere.append(seen)

    async def _call(self, url: str) -> Seen:
        token = f"token-{next(self._found.tokens)}"
        params = {"name": "mark", "arguments": {"token": token}}
        message = {"jsonrpc": "2.0", "id": next(self.wire.ids), "method": "tools/call", "params": params}
        seen, response = await timed(self.wire.http.post(url, json=message, headers=self.wire.headers))
        if response is None or seen.fault:
            return seen
        if seen.status == 503:
            self._found.refused.append(token)
            return seen
        try:
            text = answer(response)["content"][0]["text"]
        except (RpcError, StopIteration) as error:
            return seen._replace(fault=f"{error!r}")
        self._found.answered.append(token)
        return seen if text == token else seen._replace(fault="the answer of another call")


async def timed(asked: Awaitable[httpx2.Response]) -> tuple[Seen, httpx2.Response | None]:
    """The answer, and what can be seen of it from outside."""
    began_at = time.monotonic()
    try:
        response = await asked
    except httpx2.TransportError as error:
        return Seen(began_at, time.monotonic() - began_at, 0, repr(error)), None
    seconds, fault = time.monotonic() - began_at, ""
    if response.status_code not in (200, 503):
        fault = response.text[-160:]
    elif response.status_code == 503 and "retry-after" not in response.headers:
        fault = "without Retry-After"
    return Seen(began_at, seconds, response.status_code, fault), response


class Door:
    """Opens sessions at all nodes in turn, and closes them again."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint, urls: list[str], found: Findings) -> None:
        self._http, self._endpoint, self._found = http, endpoint, found
        self._urls = itertools.cycle(urls)

    async def open(self) -> None:
        """One `initialize`. It goes on if it is cancelled: nobody would close the session."""
        with anyio.CancelScope(shield=True):
            await self._open_and_close()

    async def _open_and_close(self) -> None:
        wire = Wire(self._http, self._endpoint)
        wire.url = next(self._urls)
        params = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "door", "version": "1"}}
        seen, response = await timed(wire.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}))
        self._found.opening.append(seen)
        if response is not None and response.status_code == 200:
            wire.headers["Mcp-Session-Id"] = response.headers["mcp-session-id"]
            closed = await wire.close()
            assert closed.status_code == 204, closed.text


class Watch:
    """The sessions, who asks, and what they have seen."""

    def __init__(self, visitors: list[Visitor], found: Findings, beats: Path) -> None:
        self.visitors, self.found, self._beats = visitors, found, beats

    async def has_recovered(self, since: float) -> float:
        """Waits until each session was answered at the other node and one was opened; how long after `since`."""

        def are_answered() -> bool:
            opened = any(seen.at > since and seen.status == 200 for seen in self.found.opening[-20:])
            return opened and all(
                visitor.last_elsewhere.at > since and visitor.last_elsewhere.status == 200 for visitor in self.visitors
            )

        await until(are_answered, 30, lambda: [visitor.last_elsewhere for visitor in self.visitors])
        return time.monotonic() - since

    def beats(self, began_at: float, ended_at: float) -> list[Beat]:
        """The answers to /livez of that time."""
        written, _, _ = self._beats.read_text().rpartition("\n")  # the last line may not be there in full yet
        return [beat for beat in beats_of(written.splitlines()) if began_at <= beat.at <= ended_at]

    def require_service(self, name: str, began_at: float, ended_at: float, recovered_s: list[float]) -> None:
        """Prints what was seen during the fault, and holds it against what was promised."""
        beats = self.beats(began_at, ended_at)
        alive = max(percentile([beat.nodes_own for beat in beats if beat.node == node], 0.99) for node in (0, 1))
        waited = max(percentile([beat.seconds for beat in beats if beat.node == node], 0.99) for node in (0, 1))
        owner = [seen.seconds for seen in self.found.at_owner if began_at <= seen.at <= ended_at]
        rest = [seen for seen in (*self.found.elsewhere, *self.found.opening) if began_at <= seen.at <= ended_at]
        refused = [seen.seconds for seen in rest if seen.status == 503]
        print(
            f"\n{name}, {ended_at - began_at:.1f} s: {len(owner)} calls at the owner,"
            f" p50 {in_ms(percentile(owner, 0.5))}, p99 {in_ms(percentile(owner, 0.99))}; {len(rest)} others,"
            f" {len(refused)} refused, p99 {in_ms(percentile(refused, 0.99))},"
            f" at most {in_ms(max(refused, default=0))},"
            f" all in at most {in_ms(max((seen.seconds for seen in rest), default=0))};"
            f" recovered in at most {max(recovered_s):.2f} s;"
            f" /livez p99 {in_ms(alive)}, {in_ms(waited)} with what both waited for a core;"
            f" faults {dict(self.found.faults)}"
        )
        assert not self.found.faults, self.found.faults
        # On a machine that is busy with something else everything takes longer, a call at the owner as well, which asks
        # Redis nothing.
        late = max((beat.late for beat in beats), default=0)
        assert max(refused, default=0) < max(REFUSED_WITHIN_S, 10 * percentile(owner, 0.5)) + 5 * late
        assert max(recovered_s) < RECOVERED_WITHIN_S + 5 * late + percentile(owner, 0.99)
        assert alive < ALIVE_WITHIN_S + late  # the node waits for a core as well


async def opened(session: Wire) -> None:
    """Before anything is spoilt; on a busy machine Redis may answer too late, and the client is told to try again."""
    with anyio.fail_after(60):
        while True:
            try:
                await session.open()
                return
            except RpcError as error:
                if error.reason != "routes_unavailable":
                    raise
                await anyio.sleep(0.2)


@asynccontextmanager
async def watched(nodes: Nodes, endpoint: Endpoint, sessions: int, beats: Path) -> AsyncIterator[Watch]:
    """So many sessions, spread over the nodes, each under two clients; at the end each has one process, and no more."""
    urls, found = nodes.urls(endpoint), Findings()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(timeout=30, limits=limits) as http:
        ways = itertools.islice(itertools.cycle(itertools.permutations(urls, 2)), sessions)
        visitors = [Visitor(http, endpoint, way, found) for way in ways]
        for visitor in visitors:
            await opened(visitor.wire)
        watch, door = Watch(visitors, found, beats), Door(http, endpoint, urls, found)
        with pulse([f"{node.host}:{node.pid}" for node in nodes.all], beats):
            async with anyio.create_task_group() as tasks:
                for visitor in visitors:
                    tasks.start_soon(again_and_again, visitor.call, PAUSE_S)
                    tasks.start_soon(again_and_again, visitor.visit, PAUSE_S)
                tasks.start_soon(again_and_again, door.open, OPEN_EVERY_S)
                await watch.has_recovered(time.monotonic())
                yield watch
                tasks.cancel_scope.cancel()
        # A node that is busy starts one in five seconds in the place of a warm one that was taken.
        await nodes.have_only(sessions, endpoint, warm=WARM * len(nodes.all), within_s=60)


async def again_and_again(work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        await work()
        await anyio.sleep(pause_s)


@contextmanager
def pulse(places: list[str], beats: Path) -> Iterator[None]:
    """Measures how soon each node answers /livez, and writes that to this file."""
    with beats.open("wb") as out:
        program = subprocess.Popen(
            [sys.executable, "-I", "-S", ROOT / "tests/integration/pulse.py", *places], stdout=out
        )
        try:
            yield
        finally:
            program.kill()
            program.wait()


def beats_of(lines: Iterable[str]) -> list[Beat]:
    """What pulse.py has written: rounds of one answer from each node, and after each how late it woke."""
    beats, answers, late_before = list[Beat](), list[Beat](), 0.0
    for line in lines:
        node, at, seconds, waited = line.split()
        if int(node) != LATENESS:
            answers.append(Beat(int(node), float(at), float(seconds), 0.0, float(waited)))
            continue
        late = float(seconds)
        beats += [beat._replace(late=max(late_before, late)) for beat in answers]
        answers, late_before = [], late
    return beats


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)] if values else 0.0


def in_ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
