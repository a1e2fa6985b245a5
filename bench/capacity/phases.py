"""What is done to one gateway with one server: opening one by one, then many sessions, idle, chatting, bursting."""

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from loadgen import failure_kind, milliseconds
from mcp_clients import StreamableSession

from capacity.costs import Costs, costs_of
from capacity.gateways import Endpoint

OPENING_S = 90.0  # for one session, on a machine that is busy
CALL_S = 150.0  # likewise
AT_ONCE = 4
SAMPLE_S = 5.0
SETTLED_S = 1.0
Report = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    one_by_one: int  # sessions that are opened, or woken, one after the other
    sessions: int  # with a process of their own
    parked: int
    shared: int
    idle_s: float
    chat_s: float
    chat_every_s: tuple[float, float]  # between two calls of a session
    burst_s: float
    concurrency: tuple[int, ...]  # of the calls to the echo server
    curve_s: float


FULL = Plan(4, 8, 8, 60, 8.0, 16.0, (4.0, 12.0), 3.0, (1, 4, 16, 64), 2.0)
QUICK = Plan(2, 3, 4, 12, 2.0, 4.0, (1.5, 3.0), 1.0, (1, 8), 0.5)


@dataclass
class Load:
    """Clients of one endpoint, and what they have met."""

    endpoint: Endpoint
    tool: str
    arguments: dict[str, Any]
    sessions: list[StreamableSession] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    idle_cpu: float = 0.0  # of the gateway while nobody calls: seconds in a second

    async def costs(self) -> Costs:
        """In a thread: with many processes it takes a while, in which the clients must go on."""
        return await asyncio.to_thread(costs_of, self.endpoint.pid)

    async def opened(self) -> tuple[StreamableSession, float]:
        """A session that has its list of tools, and the seconds that took."""
        session = StreamableSession(self.endpoint.url, self.endpoint.headers)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(OPENING_S):
                await session.open()
                await session.request("tools/list", timeout=OPENING_S)
        except BaseException:
            session.abort()
            raise
        return session, time.perf_counter() - began

    async def one_by_one(self, count: int) -> Report:
        """Opens so many and closes them again; the time of each."""
        took = list[float]()
        for _ in range(count):
            session, seconds = await self.opened()
            took.append(seconds)
            await session.close()
        return {"n": count, "p50_ms": round(statistics.median(took) * 1000, 1), "max_ms": round(max(took) * 1000, 1)}

    async def open_until(self, count: int) -> None:
        """As many as are missing, some at once."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with places:
                self.sessions.append((await self.opened())[0])

        async with asyncio.TaskGroup() as tasks:
            for _ in range(count - len(self.sessions)):
                tasks.create_task(one())

    async def close_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for session in self.sessions:
                tasks.create_task(session.close())
        self.sessions.clear()

    async def call(self, session: StreamableSession) -> float | None:
        """The seconds that it took; None if it has failed."""
        began = time.perf_counter()
        try:
            await session.call_tool(self.tool, self.arguments, CALL_S)
        except Exception as error:
            self.failures[failure_kind(error)] += 1
            return None
        return time.perf_counter() - began

    # --- phases

    async def without_sessions(self, seconds: float) -> None:
        """What the gateway does for nobody is not part of what a session costs, nor what it does for idle sessions of
        what a call does."""
        before, began = await self.costs(), time.perf_counter()
        await asyncio.sleep(seconds)
        after = await self.costs()
        self.idle_cpu = (after.gateway_cpu_s - before.gateway_cpu_s) / (time.perf_counter() - began)

    async def idle(self, seconds: float) -> Report:
        """CPU seconds in an hour of a session of which nobody wants anything."""
        before, began = await self.costs(), time.perf_counter()
        await asyncio.sleep(seconds)
        after = await self.costs()
        took = time.perf_counter() - began
        hours = took / 3600 * len(self.sessions)
        spent, nobody = after.gateway_cpu_s - before.gateway_cpu_s, self.idle_cpu * took
        self.idle_cpu = spent / took
        return {
            "gateway_cpu_s_per_hour": round(max(0.0, spent - nobody) / hours, 2),
            "backend_cpu_s_per_hour": round((after.backends_cpu_s - before.backends_cpu_s) / hours, 2),
        }

    async def chatting(self, seconds: float, every_s: tuple[float, float]) -> Report:
        """Each session calls now and then, as that of a person does."""

        async def one(session: StreamableSession, took: list[float], ends: float) -> None:
            await asyncio.sleep(random.uniform(0, every_s[1]))
            while time.perf_counter() < ends:
                if (done := await self.call(session)) is not None:
                    took.append(done)
                await asyncio.sleep(random.uniform(*every_s))

        return await self._measured(one, seconds)

    async def one_after_the_other(self, count: int) -> Report:
        """So many sessions call once, each when the one before has its answer."""
        turn = asyncio.Lock()
        chosen = random.sample(self.sessions, min(count, len(self.sessions)))

        async def one(session: StreamableSession, took: list[float], _: float) -> None:
            async with turn:
                if session in chosen and (done := await self.call(session)) is not None:
                    took.append(done)

        return await self._measured(one, 0)

    async def bursting(self, seconds: float) -> Report:
        """All sessions call as fast as they are answered, each at least once."""

        async def one(session: StreamableSession, took: list[float], ends: float) -> None:
            while True:
                if (done := await self.call(session)) is not None:
                    took.append(done)
                if time.perf_counter() > ends or self.failures.total() > 100:
                    return

        return await self._measured(one, seconds)

    async def _measured(self, one: Callable[[StreamableSession, list[float], float], Any], last_s: float) -> Report:
        took = list[float]()
        failed = self.failures.total()
        before, began = await self.costs(), time.perf_counter()
        async with self._sampled() as sizes, asyncio.TaskGroup() as tasks:
            for session in self.sessions:
                tasks.create_task(one(session, took, began + last_s))
        seconds, after = time.perf_counter() - began, sizes[-1]
        if not took:
            raise RuntimeError(f"every call has failed: {dict(self.failures)}")
        calls = max(1, len(took))
        own = max(0.0, after.gateway_cpu_s - before.gateway_cpu_s - self.idle_cpu * seconds)
        return {
            "calls": len(took),
            "failed": self.failures.total() - failed,
            "calls_per_s": round(len(took) / seconds, 1),
            **{name: value for name, value in milliseconds(took).items() if name in ("p50_ms", "p95_ms", "p99_ms")},
            "gateway_cpu_ms_per_call": round(own / calls * 1000, 3),
            "backend_cpu_ms_per_call": round((after.backends_cpu_s - before.backends_cpu_s) / calls * 1000, 3),
            "backends": max(each.backends for each in sizes),
            "mib": round(max(each.gateway_mib + each.backends_mib for each in sizes), 1),
        }

    @contextlib.asynccontextmanager
    async def _sampled(self) -> AsyncIterator[list[Costs]]:
        """The sizes while the block runs, and at its end."""
        sizes = list[Costs]()

        async def sample() -> None:
            while True:
                await asyncio.sleep(SAMPLE_S)
                sizes.append(await self.costs())

        task = asyncio.create_task(sample())
        try:
            yield sizes
        finally:
            task.cancel()
            await asyncio.wait([task])
        sizes.append(await self.costs())
