"""Many calls of one session at once, over HTTP: so many run, the others wait their turn, and some never get it."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from app.protocol.exchange import MIN_WAITING
from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, until
from tests.integration.sessionless_wire import SessionlessClient
from tests.integration.wire import RpcError, Wire, answer, error_of, in_time, rpc, wire

TURNSTILE = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/turnstile.py")]
AT_ONCE = 4
LIMITS = httpx2.Limits(max_connections=100)

pytestmark = pytest.mark.timeout(120)


class Turnstile:
    """A session whose process holds its calls, and what each of them has come to."""

    def __init__(self, session: Wire, endpoint: Endpoint, trace: Path) -> None:
        self.session, self.endpoint, self._trace = session, endpoint, trace
        self.answers: dict[str, str] = {}
        self.errors: dict[str, RpcError] = {}

    @property
    def arrived(self) -> list[str]:
        """The calls that the process has heard of."""
        return self._trace.read_text().split() if self._trace.exists() else []

    async def has(self, *names: str) -> None:
        await until(lambda: self.arrived == [*names], 30, lambda: self.arrived)

    async def call(self, name: str) -> None:
        try:
            result = answer(await self.session.post(rpc("tools/call", name, {"name": name})))
            self.answers[name] = result["content"][0]["text"]
        except RpcError as error:
            self.errors[name] = error

    async def call_all(self, tasks: anyio.abc.TaskGroup, names: list[str]) -> None:
        """Each is known to be in its session before the next is sent."""
        for name in names:
            before = self.in_flight
            tasks.start_soon(self.call, name)
            await until(lambda before=before: self.in_flight == before + 1, 30)  # type: ignore[misc]

    @property
    def in_flight(self) -> int:
        sessions = self.endpoint.gateway.api("GET", f"/tenants/{self.endpoint.tenant}/sessions")["items"]
        return sum(each["calls"] for each in sessions)

    async def let_one_go(self) -> None:
        response = await self.session.post({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        assert response.status_code == 202

    async def cancel(self, name: str) -> None:
        params = {"requestId": name}
        response = await self.session.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert response.status_code == 202


@asynccontextmanager
async def turnstile(gateway: Gateway, tmp_path: Path, **options: Any) -> AsyncIterator[Turnstile]:
    trace = tmp_path / "trace"
    endpoint = gateway.endpoint([*TURNSTILE, str(trace)], calls_per_session=AT_ONCE)
    async with httpx2.AsyncClient(timeout=60, limits=LIMITS) as http:
        session = Wire(http, endpoint)
        await session.open(**options)
        yield Turnstile(session, endpoint, trace)
        await session.close()


@pytest.mark.parametrize("fields", [{}, {"isolation": "shared"}, {"recovery": "respawn"}, {"calls_per_session": 20}])
async def test_forty_calls_at_once_are_all_answered(gateway: Gateway, fields: dict[str, Any]) -> None:
    endpoint = gateway.endpoint(ECHO, **fields)
    async with wire(endpoint) as session, anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(partial(session.call, "sleep", ms=100))


@pytest.mark.parametrize("calls", [128, 5, 1])
async def test_forty_calls_at_once_of_a_client_without_sessions_are_all_answered(gateway: Gateway, calls: int) -> None:
    endpoint = gateway.endpoint(ECHO, calls_per_session=calls)
    async with httpx2.AsyncClient(timeout=60, limits=LIMITS) as http, anyio.create_task_group() as tasks:
        client = SessionlessClient(http, endpoint, [endpoint.mcp])
        for _ in range(40):
            tasks.start_soon(partial(client.call, "sleep", ms=100))


async def test_above_the_setting_calls_wait_their_turn_in_order(gateway: Gateway, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(12)]
    async with turnstile(gateway, tmp_path) as rig:
        async with anyio.create_task_group() as tasks:
            await rig.call_all(tasks, names)
            assert rig.in_flight == 12
            for sent in range(AT_ONCE, 12):
                await rig.has(*names[:sent])
                await rig.let_one_go()
            await rig.has(*names)
            for _ in range(AT_ONCE):
                await rig.let_one_go()
        assert rig.answers == {name: name for name in names}


async def test_above_the_waiting_bound_it_is_429_and_says_when(gateway: Gateway, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(AT_ONCE + MIN_WAITING)]
    async with turnstile(gateway, tmp_path) as rig, anyio.create_task_group() as tasks:
        await rig.call_all(tasks, names)
        response = await rig.session.post(rpc("tools/call", "one more", {"name": "more"}))
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert error_of(response).reason == "quota_exceeded"
        await rig.has(*names[:AT_ONCE])
        await rig.session.close()
        assert rig.arrived == names[:AT_ONCE]


async def test_a_call_that_is_cancelled_while_it_waits_is_never_sent(gateway: Gateway, tmp_path: Path) -> None:
    async with turnstile(gateway, tmp_path) as rig, anyio.create_task_group() as tasks:
        await rig.call_all(tasks, ["a", "b", "c", "d", "e", "f"])
        await rig.cancel("e")
        await until(lambda: "e" in rig.errors, 30)
        for _ in range(2):
            await rig.let_one_go()
        await rig.has("a", "b", "c", "d", "f")
        assert rig.errors["e"].reason == "cancelled"
        assert "outcome" not in rig.errors["e"].data
        await rig.session.close()


@pytest.mark.parametrize("end", ["delete", "revoke", "disable"])
async def test_what_waits_when_the_session_ends_is_never_sent(gateway: Gateway, tmp_path: Path, end: str) -> None:
    async with turnstile(gateway, tmp_path) as rig:
        endpoint = rig.endpoint
        path = f"/tenants/{endpoint.tenant}"
        async with anyio.create_task_group() as tasks:
            await rig.call_all(tasks, ["a", "b", "c", "d", "waits"])
            await rig.has("a", "b", "c", "d")
            if end == "delete":
                await rig.session.close()
            elif end == "revoke":
                (key,) = gateway.api("GET", f"{path}/keys")["items"]
                gateway.api("DELETE", f"{path}/keys/{key['id']}")
            else:
                gateway.api("PATCH", f"{path}/backends/{endpoint.name}", {"enabled": False})
        assert rig.errors["a"].data["outcome"] == "unknown"
        assert "outcome" not in rig.errors["waits"].data
        assert "waits" not in rig.arrived


async def test_a_batch_that_does_not_fit_whole_is_refused_before_anything_of_it_runs(
    gateway: Gateway, tmp_path: Path
) -> None:
    def batch(*names: str) -> list[dict[str, Any]]:
        return [rpc("tools/call", name, {"name": name}) for name in names]

    async with turnstile(gateway, tmp_path, version="2025-03-26") as rig, anyio.create_task_group() as tasks:
        await rig.call_all(tasks, ["a", "b"])
        with in_time():
            response = await rig.session.post(batch(*(f"x{number}" for number in range(AT_ONCE + MIN_WAITING - 1))))
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert error_of(response).reason == "quota_exceeded"
        assert rig.in_flight == 2
        names = [f"y{number}" for number in range(AT_ONCE + MIN_WAITING - 2)]
        found = list[str]()

        async def ask() -> None:
            response = await rig.session.post(batch(*names))
            # On a busy machine it has become a stream, with one event for each, or one for all.
            parts = [line.removeprefix("data:").strip() for line in response.text.splitlines()]
            for part in [json.loads(each) for each in parts if each.startswith(("[", "{"))]:
                answers = part if isinstance(part, list) else [part]
                found.extend(each["id"] for each in answers if "result" in each)

        tasks.start_soon(ask)
        await until(lambda: rig.in_flight == AT_ONCE + MIN_WAITING, 30)
        for sent in range(AT_ONCE, 2 + len(names)):
            await rig.has(*["a", "b", *names][:sent])
            await rig.let_one_go()
        await rig.has("a", "b", *names)
        for _ in range(AT_ONCE):
            await rig.let_one_go()
        await until(lambda: found == names, 30, lambda: found)
