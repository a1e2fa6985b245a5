"""Clients of every kind, who ask any node, put up with whatever they get, and keep the history of it."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import httpx2

from tests.chaos.history import Asked, Call, Closed, Heard, Listened, NotOpened, Opened
from tests.chaos.wires import PATIENCE_S, Answer, SseWire, Wire, initialize, now, sessionless, tool_call
from tests.chaos.world import Known, Principal, World
from tests.integration.wire import LATEST, Event

GOES_ON_S = 4.0  # how long a client goes on with a key that is revoked
SHUNNED_S = 1.0  # a node whose connection broke, by the client that had it
SLOW_MS = 1000  # who waits for so long waits for the backend, and not for a node
PAUSE_S = (0.05, 0.5)  # between two calls of one client


class Actor:
    """One client: opens, uses, ends, again and again. Subclasses say how."""

    recovery = "respawn"

    def __init__(self, world: World, tenant: str) -> None:
        self.world, self.tenant = world, tenant
        self.name = world.name(type(self).__name__.lower() + "-")
        self.chance = random.Random(world.chance.random())
        self.principal: Principal | None = None
        self.last_success = 0.0
        self.session = ""
        self.is_full = False  # its tenant has as many sessions as it may
        self._shunned: dict[int, float] = {}

    @property
    def path(self) -> str:
        return f"/t/{self.tenant}/{self.recovery}"

    @property
    def headers(self) -> dict[str, str]:
        assert self.principal is not None
        return {"Authorization": f"Bearer {self.principal.key}"}

    async def live(self) -> None:
        """Until the world stops."""
        while not self.world.stopping:
            if self.is_spent:
                self.principal = await self.world.new_principal(self.tenant)
            await self.visit()
            await anyio.sleep(self.chance.uniform(*PAUSE_S))

    async def visit(self) -> None:
        """One session, from its beginning to its end."""
        raise NotImplementedError

    @property
    def is_spent(self) -> bool:
        """Whether it is time for another key."""
        revoked_at = None if self.principal is None else self.principal.revoked_at
        return self.principal is None or (revoked_at is not None and now() - revoked_at > GOES_ON_S)

    @property
    def goes_on(self) -> bool:
        return not self.world.stopping and not self.is_spent

    def place(self) -> tuple[int, str]:
        """A node drawn by lot among those that have not just broken off, and its address."""
        places = [each for each in self.world.rig.places if now() > self._shunned.get(each.number, 0.0)]
        place = self.chance.choice(places or self.world.rig.places)
        return place.number, place.url

    def url(self) -> str:
        return self.place()[1] + self.path + "/mcp"

    def heard(self, event: Event, stream: str) -> None:
        data = event.message.get("params", {}).get("data")
        if isinstance(data, dict):  # the gateway itself says something now and then
            told = (data["process"], data["number"], data["whose"], data["at"])
            self.world.history.add(Heard(self.session, *told, now(), stream, event.id or ""))

    async def call(
        self, post: Callable[[str, dict[str, Any]], Awaitable[Answer]], tool: str, **arguments: Any
    ) -> Answer:
        """One tools/call, recorded whatever becomes of it."""
        assert self.principal is not None
        name, began, answer = self.world.name("call-"), now(), Answer()
        number, url = self.place()
        if arguments.get("ms", 0) < SLOW_MS:
            self.principal.waiting_since = began
        try:
            answer = await post(url, tool_call(name, tool, **arguments))
        finally:
            self.principal.waiting_since = None
            said = answer.said
            record = Call(name, self.session, self.principal.name, number, began, now(), answer.outcome, answer.status)
            told = [str(said.get(each, "")) for each in ("process", "whose", "call")]
            more = dict(zip(("process", "whose", "answers"), told, strict=True))
            self.world.history.add(Call(**{**vars(record), **more, "reason": answer.reason}))
        if answer.outcome == "answered":
            self.last_success = now()
        elif answer.outcome == "unknown":
            self._shunned[number] = now() + SHUNNED_S
        elif answer.outcome == "refused":
            await anyio.sleep(min(answer.retry_after, 1.0) or 0.2)
        return answer

    def milliseconds(self) -> int:
        """How long a call takes: mostly no time, sometimes longer than the patience of some clients."""
        return self.chance.choice([0, 0, 0, 0, 0, 50, 300, 1500, 4000])


class Caller(Actor):
    """Streamable HTTP with a handshake."""

    def __init__(self, world: World, tenant: str, recovery: str = "respawn") -> None:
        super().__init__(world, tenant)
        self.recovery = recovery

    async def visit(self) -> None:
        wire = Wire(self.world.rig.http, self.headers, self.heard, self.chance.choice(PATIENCE_S))
        if not await self.open(wire):
            return
        try:
            await self.use(wire)
        finally:
            await self.close(wire)

    async def open(self, wire: Wire) -> bool:
        assert self.principal is not None
        self.session, wire.headers = self.world.name("session-"), {**wire.headers}
        began, (number, url) = now(), self.place()
        answer = await wire.post(url + self.path + "/mcp", initialize(self.session))
        self.is_full = answer.reason == "quota_exceeded"
        if answer.outcome != "answered" or not answer.session_id:
            if self.is_full:  # which is as it should be: some have sessions that no client knows of
                self.last_success = now()
            why = (answer.status, answer.reason)
            self.world.history.add(NotOpened(self.principal.name, self.tenant, number, began, now(), *why))
            await anyio.sleep(min(answer.retry_after, 1.0))
            return False
        wire.headers |= {"Mcp-Session-Id": answer.session_id, "MCP-Protocol-Version": LATEST}
        self.world.history.add(Opened(self.session, self.principal.name, self.tenant, self.recovery, now()))
        self.world.known.append(Known(self.session, answer.session_id, self.principal, self.path))
        for _ in range(5):
            answer = await wire.post(self.url(), {"jsonrpc": "2.0", "method": "notifications/initialized"})
            if answer.status in (202, 401, 404):
                break
            await anyio.sleep(0.2)
        return True

    async def use(self, wire: Wire) -> None:
        """Calls until it had enough, or the session is gone."""
        for _ in range(self.chance.randrange(5, 40)):
            async with anyio.create_task_group() as beside:
                if self.chance.random() < 0.2:
                    beside.start_soon(self.mark, wire)
                status = await self.mark(wire)
            if status == 404 or not self.goes_on:
                break
            await anyio.sleep(self.chance.uniform(*PAUSE_S))

    async def mark(self, wire: Wire) -> int:
        """One call; the status of its answer."""
        post = lambda url, body: wire.post(url + self.path + "/mcp", body, self.url)  # noqa: E731
        return (await self.call(post, "mark", ms=self.milliseconds())).status

    async def close(self, wire: Wire) -> None:
        """DELETE until somebody says that it is gone."""
        self.world.known = [each for each in self.world.known if each.session != self.session]
        self.world.history.add(Closed(self.session, now()))
        for _ in range(10):
            if await wire.delete(self.url()) in (200, 204, 401, 404):
                break
            await anyio.sleep(0.3)


class Reader(Caller):
    """Reads the messages of its session on GET streams that break, and never misses one."""

    is_reading = False
    gone = False
    last_heard = 0.0
    place_in_stream = ""

    async def use(self, wire: Wire) -> None:
        self.gone, self.place_in_stream = False, ""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, wire)
            for _ in range(self.chance.randrange(2, 20)):
                if self.gone or self.world.resting or not await self._tell(wire):
                    break
            while self.world.resting and not self.world.stopping and not self.gone:
                await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()

    async def _tell(self, wire: Wire) -> bool:
        """Has it send some, and waits until they may have been sent; whether there is more to do."""
        count, gap_ms = self.chance.randrange(5, 40), self.chance.choice([5, 50, 100])
        post = lambda url, body: wire.post(url + self.path + "/mcp", body, self.url)  # noqa: E731
        answer = await self.call(post, "tell", count=count, gap_ms=gap_ms)
        if answer.status == 404 or not self.goes_on:
            return False
        wait_s = count * gap_ms / 1000 + self.chance.uniform(0.1, 1.0)
        with anyio.move_on_after(wait_s):
            while not self.gone and self.goes_on:
                await anyio.sleep(0.1)
        return self.goes_on

    async def _read(self, wire: Wire) -> None:
        while not self.gone:
            with suppress(httpx2.TransportError):
                await self._read_one(wire)
            self.is_reading = False
            await anyio.sleep(self.chance.uniform(0.02, 0.5))

    async def _read_one(self, wire: Wire) -> None:
        assert self.principal is not None
        number, url = self.place()
        began, status, after = now(), 0, self.place_in_stream
        try:
            async with wire.listen(url + self.path + "/mcp", after) as (status, stream):
                if status == 200:
                    self.is_reading = True
                    self._note(number, began, status, after)
                    began = 0.0
                    await self._take(stream)
        finally:
            if began:
                self._note(number, began, status, after)
        self.gone = status == 404

    def _note(self, number: int, began: float, status: int, after: str) -> None:
        assert self.principal is not None
        self.world.history.add(Listened(self.session, self.principal.name, number, began, now(), status, after))

    async def _take(self, stream: Any) -> None:
        async for event in stream:
            self.place_in_stream = event.id or self.place_in_stream
            if event.data:
                self.last_heard = now()
                self.heard(event, "listen")
            if not self.world.resting and self.chance.random() < 0.01:
                return  # a client that hangs up and comes back


class Sessionless(Actor):
    """2026-07-28: each request stands for itself."""

    def __init__(self, world: World, tenant: str, recovery: str = "respawn") -> None:
        super().__init__(world, tenant)
        self.recovery = recovery

    async def visit(self) -> None:
        assert self.principal is not None
        patience_s = self.chance.choice(PATIENCE_S)

        async def post(url: str, body: dict[str, Any]) -> Answer:
            assert self.principal is not None
            body, headers = sessionless(body, self.principal.name)
            wire = Wire(self.world.rig.http, {**self.headers, **headers}, self.heard, patience_s)
            return await wire.post(url + self.path + "/mcp", body)

        self.session = self.principal.name
        await self.call(post, "mark", ms=self.milliseconds())


class Sse(Actor):
    """HTTP+SSE: the session is its stream."""

    def __init__(self, world: World, tenant: str, recovery: str = "respawn") -> None:
        super().__init__(world, tenant)
        self.recovery = recovery

    async def visit(self) -> None:
        assert self.principal is not None
        self.session = self.world.name("session-")
        wire = SseWire(self.world.rig.http, self.headers, self.heard, self.chance.choice(PATIENCE_S))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wire.read, self.place()[1] + self.path)
            await wire.began.wait()
            if wire.is_open and (await wire.post(self.place()[1], initialize(self.session))).outcome == "answered":
                self.world.history.add(Opened(self.session, self.principal.name, self.tenant, "sse", now()))
                await wire.post(self.place()[1], {"jsonrpc": "2.0", "method": "notifications/initialized"})
                await self._use(wire)
                self.world.history.add(Closed(self.session, now()))
            tasks.cancel_scope.cancel()

    async def _use(self, wire: SseWire) -> None:
        for _ in range(self.chance.randrange(5, 40)):
            if not wire.is_open or not self.goes_on:
                break
            if self.chance.random() < 0.2:
                await self.call(wire.post, "tell", count=self.chance.randrange(3, 20), gap_ms=20)
            else:
                await self.call(wire.post, "mark", ms=self.milliseconds())
            await anyio.sleep(self.chance.uniform(*PAUSE_S))


class Intruder(Actor):
    """Has a key of its own, and uses the sessions of others."""

    async def visit(self) -> None:
        assert self.principal is not None
        others = [each for each in self.world.known if each.principal is not self.principal]
        if not others:
            return
        known = self.chance.choice(others)
        headers = {**self.headers, "Mcp-Session-Id": known.session_id, "MCP-Protocol-Version": LATEST}
        wire = Wire(self.world.rig.http, headers, lambda event, stream: None, 3.0)
        url, name, status = self.place()[1] + known.path + "/mcp", "", 0
        if self.chance.random() < 0.5:
            name = self.world.name("stolen-")
            answer = await wire.post(url, tool_call(name, "mark"))
            status = 0 if answer.outcome == "error" else answer.status  # an error that the node passes on is no use
        else:
            with suppress(httpx2.TransportError, TimeoutError), anyio.fail_after(3.0):  # calm: a look
                async with wire.listen(url) as (status, _):
                    pass
        self.world.history.add(Asked(known.session, self.principal.name, now(), status, name))
        self.last_success = now() if status == 404 else self.last_success


def crowd(world: World, *, few: bool) -> list[Actor]:
    """One of each kind, or everybody."""
    found: list[Actor] = [Intruder(world, "north")]
    if few:
        found += [
            Caller(world, "north"),
            Reader(world, "north"),
            Sessionless(world, "north", "end"),
            Sse(world, "north"),
        ]
        found += [Caller(world, "south", "end"), Reader(world, "south"), Sessionless(world, "south")]
    for tenant in () if few else ("north", "south"):
        found += [Caller(world, tenant, recovery) for recovery in ("respawn", "respawn", "end")]
        found += [Reader(world, tenant, recovery) for recovery in ("respawn", "respawn", "end")]
        found += [Sessionless(world, tenant, recovery) for recovery in ("respawn", "end")]
        found += [Sse(world, tenant, recovery) for recovery in ("respawn", "end")]
    found += [Caller(world, "narrow") for _ in range(4)]  # one more than it may have
    return found
