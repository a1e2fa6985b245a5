"""A tenant's limits over real sockets: exact caps, refusals that say when to come again, others unharmed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, until
from tests.integration.wire import Wire, error_of, wire

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "limits", "version": "1"}},
}

LONG_MS = 60_000  # of a call that lasts until its session ends


def limited(gateway: Gateway, **limits: Any) -> Endpoint:
    return gateway.endpoint(ECHO, tenant=gateway.add_tenant(**limits))


def running(endpoint: Endpoint) -> int:
    """The tenant's calls in flight."""
    sessions = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    return sum(session["calls"] for session in sessions)


async def refused(endpoint: Endpoint, *, key: str | None = None) -> str:
    """The limit's reason where `initialize` is refused."""
    async with httpx2.AsyncClient(timeout=30) as http:
        response = await Wire(http, endpoint, key=key).post(INITIALIZE)
    assert response.status_code == 429, response.text
    assert int(response.headers["retry-after"]) >= 1
    error = error_of(response)
    assert error.code == -32016
    return str(error.reason)


async def limit_of(endpoint: Endpoint, body: Any = INITIALIZE, *, session: Wire | None = None) -> dict[str, Any]:
    """Which limit a refusal names, in its message as well, and who can raise it."""
    async with httpx2.AsyncClient(timeout=30) as http:
        response = await (session or Wire(http, endpoint)).post(body)
    error = response.json()["error"]
    limit: dict[str, Any] = error["data"]["limit"]
    assert error["data"]["hint"] == f"Who can raise `{limit['name']}`: {limit['raised_by']}."
    assert f"{limit['allowed']:g}" in error["message"]
    return limit


async def test_refusals_say_which_limit_it_is_and_who_can_raise_it(gateway: Gateway) -> None:
    endpoint = limited(gateway, sessions=1, in_flight=1)
    where = f"a platform administrator: PATCH /api/v1/tenants/{endpoint.tenant}"
    at_limit = 'trunkline_tenants_at_limit{limit="sessions"}'
    others = gateway.metrics().get(at_limit, 0)
    async with wire(endpoint) as session, anyio.create_task_group() as tasks:
        assert gateway.metrics()[at_limit] == others + 1
        assert await limit_of(endpoint) == {
            "name": "sessions", "of": "tenant", "allowed": 1, "used": 1, "raised_by": f"{where}, limits.sessions"
        }  # fmt: skip
        tasks.start_soon(partial(session.call, "sleep", ms=LONG_MS))
        await until(lambda: running(endpoint) == 1, 20)
        ask = {"jsonrpc": "2.0", "id": "x", "method": "tools/list"}
        assert await limit_of(endpoint, ask, session=session) == {
            "name": "in_flight", "of": "tenant", "allowed": 1, "used": 1, "raised_by": f"{where}, limits.in_flight"
        }  # fmt: skip
        tasks.cancel_scope.cancel()


async def test_a_session_says_how_many_calls_it_may_have(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(ECHO, calls_per_session=1)
    async with wire(endpoint) as session, anyio.create_task_group() as tasks:
        for _ in range(9):  # one with the backend, eight that wait
            tasks.start_soon(partial(session.call, "sleep", ms=LONG_MS))
        await until(lambda: running(endpoint) == 9, 20)
        limit = await limit_of(endpoint, {"jsonrpc": "2.0", "id": "x", "method": "tools/list"}, session=session)
        assert (limit["name"], limit["of"], limit["allowed"], limit["used"]) == ("calls_per_session", "session", 1, 9)
        assert f"/backends/{endpoint.name}, calls_per_session" in limit["raised_by"]
        tasks.cancel_scope.cancel()


async def test_a_backend_without_a_free_process_says_so_and_nothing_of_other_tenants(
    start_gateway: Callable[..., Gateway],
) -> None:
    gateway = start_gateway(POOL_WAIT_S="3", MAX_PROCESSES="2")
    full, other = gateway.endpoint(ECHO, max_processes=1), gateway.endpoint(ECHO)
    async with wire(full), wire(other):
        assert gateway.metrics()['trunkline_node_used{limit="node_processes"}'] == 2
        assert gateway.metrics()['trunkline_node_limit{limit="node_processes"}'] == 2
        limit = await limit_of(full)
        assert (limit["name"], limit["of"], limit["allowed"], limit["used"]) == ("max_processes", "backend", 1, 1)
        limit = await limit_of(other)
        assert (limit["name"], limit["of"], limit["allowed"], limit["used"]) == ("node_processes", "node", 2, 2)
        assert limit["raised_by"] == "the operator of the gateway: the setting MAX_PROCESSES, or another node"
    assert gateway.metrics()['trunkline_rate_limited_total{limit="max_processes"}'] == 1


async def test_a_tenant_has_exactly_its_number_of_sessions(gateway: Gateway) -> None:
    endpoint, other = limited(gateway, sessions=2), limited(gateway, sessions=1)
    async with wire(endpoint), wire(endpoint):
        assert await refused(endpoint) == "quota_exceeded"
        async with wire(other) as unharmed:
            assert await unharmed.call("echo", text="x") == "x"
    async with wire(endpoint) as again:
        assert await again.call("echo", text="y") == "y"


async def test_one_principal_cannot_take_all_sessions(gateway: Gateway) -> None:
    endpoint = limited(gateway, sessions_per_principal=1)
    other_key = gateway.key(endpoint.tenant)
    async with wire(endpoint), httpx2.AsyncClient(timeout=30) as http:
        assert await refused(endpoint) == "quota_exceeded"
        assert (await Wire(http, endpoint, key=other_key).post(INITIALIZE)).status_code == 200


async def test_a_tenant_has_exactly_its_number_of_processes_and_the_next_waits(gateway: Gateway) -> None:
    endpoint = limited(gateway, processes=1)
    async with anyio.create_task_group() as tasks:
        async with wire(endpoint) as first:
            opened = anyio.Event()

            async def second() -> None:
                async with wire(endpoint) as session:
                    opened.set()
                    assert await session.call("echo", text="mine") == "mine"

            tasks.start_soon(second)
            for _ in range(20):
                assert await first.call("echo", text="x") == "x"
            assert not opened.is_set()
        with anyio.fail_after(30):
            await opened.wait()


async def test_calls_in_flight_are_counted_over_all_sessions_of_the_tenant(gateway: Gateway) -> None:
    endpoint = limited(gateway, in_flight=2)
    async with wire(endpoint) as one, wire(endpoint) as two, anyio.create_task_group() as tasks:
        for session in (one, two):
            tasks.start_soon(partial(session.call, "sleep", ms=LONG_MS))
        await until(lambda: running(endpoint) == 2, 20)
        response = await one.post({"jsonrpc": "2.0", "id": "x", "method": "tools/list"})
        assert response.status_code == 429
        assert (error_of(response).reason, error_of(response).code) == ("quota_exceeded", -32016)
        assert response.json()["id"] == "x"
        tasks.cancel_scope.cancel()
    await until(lambda: running(endpoint) == 0, 20)
    async with wire(endpoint) as free:
        assert await free.call("echo", text="z") == "z"


@pytest.mark.parametrize("burst", [5])
async def test_requests_come_as_fast_as_the_rate_and_the_burst_allow(gateway: Gateway, burst: int) -> None:
    endpoint = limited(gateway, requests_per_second=0.02, burst=burst)
    async with wire(endpoint) as session:  # spends two: initialize and initialized
        statuses = [
            (await session.post({"jsonrpc": "2.0", "id": n, "method": "ping"})).status_code for n in range(burst + 3)
        ]
        last = await session.post({"jsonrpc": "2.0", "id": 99, "method": "ping"})
        assert statuses.count(200) in (burst - 2, burst - 1)  # a token may come back meanwhile
        assert statuses[-1] == last.status_code == 429
        assert error_of(last).reason == "rate_limited"
        assert int(last.headers["retry-after"]) >= 1
        gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"limits": {"requests_per_second": None, "burst": None}})
        assert await session.call("echo", text="free again") == "free again"
