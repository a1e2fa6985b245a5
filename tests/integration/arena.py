"""A gateway with a bystander that calls all the while, and what an attack on it costs: time, memory, descriptors."""

import asyncio
import math
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import anyio
import psutil

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, until

HOSTILE = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/hostile.py")]
REST_S = 0.002  # of the bystander, between two calls
SETTLED_WITHIN_S = 30.0
BACK_BYTES = 64 << 20
CONNECTIONS = 2  # that may be opened meanwhile, and stay open for a while
LOOK_S = 0.02  # between two looks at the gateway's memory


class Call(NamedTuple):
    """One call of the bystander."""

    at: float
    seconds: float
    wrong: str


@dataclass
class Cost:
    """What an attack has cost: the gateway's memory at its most, above what it was before."""

    peak_bytes: int = 0
    began_at: float = 0.0
    ended_at: float = 0.0


class Arena:
    """The gateway, and the bystander in a tenant of its own."""

    def __init__(self, gateway: Gateway, calls: Path) -> None:
        self.gateway = gateway
        self._process = psutil.Process(gateway.pid)
        self._calls = calls
        self._read, self._bytes = list[Call](), 0  # so far, of a file that only grows

    def endpoint(self, mode: str, times: int = 1, **fields: Any) -> Endpoint:
        """A hostile server in a tenant of its own."""
        return self.gateway.endpoint([*HOSTILE, mode, str(times)], **fields)

    def calls(self, since: float = 0.0, until: float = math.inf) -> list[Call]:
        """The bystander's calls that began in this time."""
        with self._calls.open("rb") as file:
            file.seek(self._bytes)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._bytes += len(whole)
        for line in whole.decode().split("\n")[:-1]:
            at, seconds, wrong = line.split(" ", 2)
            self._read.append(Call(float(at), float(seconds), wrong))
        first, last = (bisect_left(self._read, when, key=attrgetter("at")) for when in (since, until))
        return self._read[first:last]

    @property
    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    @property
    def descriptors(self) -> list[int]:
        """Of the gateway and of its spawner, if this user may count them."""
        own = {each.pid for each in self.gateway.backends()}
        spawner = [each for each in self._process.children() if each.pid not in own]
        try:
            return [each.num_fds() for each in (self._process, *spawner)]
        except psutil.AccessDenied:  # only root may look into them
            return []

    @asynccontextmanager
    async def attack(self) -> AsyncIterator[Cost]:
        """Afterwards the gateway lives and is as it was, and the bystander has noticed nothing but the time."""
        before, descriptors, processes = self.rss, self.descriptors, len(self.gateway.backends())
        cost = Cost(began_at=time.monotonic())
        watch = asyncio.create_task(self._watch(cost, before))  # in a task group errors of tests would become groups
        try:
            yield cost
        finally:
            watch.cancel()
        cost.ended_at = time.monotonic()
        await self.gateway.wait_for_backends(processes, SETTLED_WITHIN_S)
        assert self.gateway.process.poll() is None, self.gateway.log_tail()
        await until(lambda: self._leaks_none_of(descriptors), SETTLED_WITHIN_S, lambda: (descriptors, self.descriptors))
        await until(lambda: self.rss - before < BACK_BYTES, SETTLED_WITHIN_S, lambda: (before, self.rss))
        await until(lambda: self.calls(since=cost.ended_at), SETTLED_WITHIN_S)
        wrong = [call for call in self.calls(since=cost.began_at) if call.wrong]
        assert not wrong, wrong[:3]

    def _leaks_none_of(self, before: list[int]) -> bool:
        """Connections that were idle before may be closed by now, and a few others may be open, as to the database."""
        return all(now <= then + CONNECTIONS for now, then in zip(self.descriptors, before, strict=True))

    async def _watch(self, cost: Cost, before: int) -> None:
        while True:
            cost.peak_bytes = max(cost.peak_bytes, self.rss - before)
            await anyio.sleep(LOOK_S)


@contextmanager
def open_arena(gateway: Gateway, calls: Path) -> Iterator[Arena]:
    endpoint = gateway.endpoint(ECHO)
    with calls.open("wb") as file, _running(endpoint, file):
        anyio.run(until, lambda: calls.stat().st_size, 30.0)
        yield Arena(gateway, calls)


@contextmanager
def _running(endpoint: Endpoint, output: IO[bytes]) -> Iterator[None]:
    program = [sys.executable, str(ROOT / "tests/integration/bystander.py"), endpoint.mcp, endpoint.key, str(REST_S)]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=output)
    try:
        yield
        assert process.poll() is None, "the bystander gave up"
    finally:
        process.communicate()


def percentile(seconds: Sequence[float], share: float) -> float:
    found = sorted(seconds)
    return found[min(len(found) - 1, int(len(found) * share))]
