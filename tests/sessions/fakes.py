"""Hand-written fakes of what a Session needs: a pool whose processes are lists of lines."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from app.cluster.routing.memory_store import MemoryStore
from app.domain import BackendSpec, Limits, Principal, Tenant
from app.errors import BackendBusy, BackendError, NotFound, RoutesUnavailable
from app.processes.connection import BackendListener
from app.processes.endings import Exit
from app.sessions.open_sessions import OpenSessions
from app.sessions.ownership import Ownership
from app.sessions.routes import Found, Quota, Route


class FakeConnection:
    """A process that writes down what it is sent; `say` is its stdout."""

    id = "p1"

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.paused = False
        self.asked = 0
        self.noise: list[bytes] = []
        self.is_busy = False
        self.listener: BackendListener | None = None
        self.begun: bytes | None = None

    def attach(self, listener: BackendListener) -> None:
        self.listener = listener

    def send(self, line: bytes) -> None:
        if self.is_busy:
            raise BackendBusy
        self.sent.append(json.loads(line))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def asked_for(self, size: int) -> None:
        self.asked += size

    def heard_noise(self, line: bytes) -> None:
        self.noise.append(line)

    def answering(self) -> bytes | None:
        return self.begun

    def say(self, **message: Any) -> None:
        assert self.listener is not None
        self.listener.backend_sent(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def answer(self, result: Any = None, *, to: int = -1) -> None:
        self.say(id=self.sent[to]["id"], result={} if result is None else result)

    def die(self) -> None:
        assert self.listener is not None
        self.listener.backend_exited(Exit("signaled", "signal 9 (SIGKILL)", ("last words",)))


class FakeLease:
    was_warm = False

    def __init__(self, connection: FakeConnection) -> None:
        self.connection = connection
        self.released: list[str] = []
        self.shook_hands = self.was_probed = False
        self.callers: list[Principal] = []

    def caller_is(self, principal: Principal) -> None:
        self.callers.append(principal)

    def probed(self) -> None:
        self.was_probed = True

    def handshake_succeeded(self) -> None:
        self.shook_hands = True

    def release(self, reason: str) -> None:
        self.released.append(reason)


class FakePool:
    """Hands out a new FakeConnection each time, or raises `error`."""

    def __init__(self) -> None:
        self.leases: list[FakeLease] = []
        self.error: BackendError | None = None
        self.waiting = 0
        self.counts: dict[str, int] = {}
        self.gate: anyio.Event | None = None  # until it is set, whoever wants a process waits

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> FakeLease:
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.leases.append(FakeLease(self._connection()))
        return self.leases[-1]

    def _connection(self) -> FakeConnection:
        return FakeConnection()

    def used(self) -> dict[str, int]:
        return self.counts


class FakeStore:
    """Backends and tenants in a dictionary; counts how often it is asked."""

    def __init__(self, *specs: BackendSpec, limits: Limits | None = None) -> None:
        self.specs = {spec.key: spec for spec in specs}
        self.limits = limits or Limits()
        self.asked = 0
        self.noise: list[bytes] = []

    async def get_backend(self, tenant: str, name: str) -> BackendSpec:
        self.asked += 1
        await anyio.lowlevel.checkpoint()  # as a database: others run meanwhile
        try:
            return self.specs[tenant, name]
        except KeyError:
            raise NotFound from None

    async def get_tenant(self, name: str) -> Tenant:
        return Tenant(name, self.limits)


class FakeRoutes:
    """A route store that has no other nodes; `error` is raised instead of an answer."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.handed_over: list[str] = []
        self.error: Exception | None = None

    async def find(self, key: str) -> Found:
        return Found(self.routes.get(key), owner_lives=True, is_settling=False)

    async def claim(self, route: Route, quota: Quota | None) -> Route:
        if self.error is not None:
            raise self.error
        return self.routes.setdefault(route.key, route)

    async def take_over(self, route: Route, node: str, url: str) -> Route | None:
        return None

    async def refresh(self, routes: Sequence[Route]) -> list[Route]:
        return []

    def holds(self, routes: Sequence[Route]) -> None:
        pass

    async def release(self, route: Route, *, hand_over: bool = False) -> None:
        if hand_over:
            self.handed_over.append(route.key)
        self.routes.pop(route.key, None)


def alone(sessions: OpenSessions | None = None) -> Ownership:
    """A node without others."""
    lost = OpenSessions().lost if sessions is None else sessions.lost
    return Ownership(FakeRoutes(), "0123456789abcdef", "http://127.0.0.1:1", on_session_lost=lost)


class HeldStore(MemoryStore):
    """Routes in memory. What was asked is done at once; a test can hold the answers back, or lose them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.is_away = self.loses_answers = False
        self._may_answer = anyio.Event()
        self._may_answer.set()

    def hold(self) -> None:
        self._may_answer = anyio.Event()

    def let_go(self) -> None:
        self._may_answer.set()

    async def is_asked(self, times: int) -> None:
        with anyio.fail_after(20):
            while len(self.asked) < times:
                await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def _asked(self, what: str) -> AsyncIterator[None]:
        await anyio.lowlevel.checkpoint()
        if self.is_away:
            raise RoutesUnavailable
        self.asked.append(what)
        try:
            yield
        finally:
            await self._may_answer.wait()
        if self.loses_answers:
            raise RoutesUnavailable

    async def claim(self, route: Route, quota: Quota | None) -> Route:
        async with self._asked("claim"):
            return await super().claim(route, quota)

    async def take_over(self, route: Route, node: str, url: str) -> Route | None:
        async with self._asked("take_over"):
            return await super().take_over(route, node, url)

    async def release(self, route: Route, *, hand_over: bool = False) -> None:
        async with self._asked("release"):
            await super().release(route, hand_over=hand_over)


async def all_ours(stood_still_at: float) -> None:
    """Asks nobody: a node that is alone owns what it has."""
