"""Who tries credentials at a real node, and an honest client behind the same address (security.md, A9)."""

import time

import anyio
import httpx2

from app.auth.api_keys import KeyMaker
from tests.integration.gateway import ECHO, Gateway
from tests.integration.wire import Wire, wire

ELSEWHERE = KeyMaker(b"x" * 32)
AT_ONCE, A_SECOND = 300, 10  # from one address
REFUSED = 200  # enough of those that are over


async def test_bad_credentials_are_slowed_and_a_good_one_behind_the_same_address_is_not(own_gateway: Gateway) -> None:
    endpoint = own_gateway.endpoint(ECHO)
    statuses: list[int] = []
    over = anyio.Event()

    async def attack(http: httpx2.AsyncClient) -> None:
        while statuses.count(429) < REFUSED and len(statuses) < 20 * AT_ONCE:
            headers = {"Authorization": f"Bearer {ELSEWHERE.make().text}"}
            response = await http.post(endpoint.mcp, content=b"{}", headers=headers)
            statuses.append(response.status_code)
            if response.status_code == 429:
                assert int(response.headers["Retry-After"]) >= 1
        over.set()

    async def be_honest(session: Wire) -> int:
        calls = 0
        while not over.is_set():
            assert (await session.request("tools/list"))["tools"]
            calls += 1
        return calls

    async with wire(endpoint) as session, httpx2.AsyncClient(timeout=30) as http:
        began = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(attack, http)
            calls = await be_honest(session)
        seconds = time.monotonic() - began
        async with wire(endpoint) as another:  # it is not only the open session that goes on
            await another.request("tools/list")
    assert calls > 0
    assert set(statuses) == {401, 429}
    assert AT_ONCE <= statuses.count(401) <= AT_ONCE + A_SECOND * (seconds + 1)
    limited = own_gateway.metrics()['trunkline_rate_limited_total{limit="bad_credentials"}']
    assert limited == statuses.count(429)


async def test_restarts_of_a_backend_are_slowed(own_gateway: Gateway) -> None:
    endpoint = own_gateway.endpoint(ECHO)
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:restart"
    key = own_gateway.key(endpoint.tenant, ["tenant:admin"])
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=f"{own_gateway.url}/api/v1", timeout=30, headers=headers) as http:
        statuses = [(await http.post(path)).status_code for _ in range(60)]
    assert set(statuses) == {204, 429}
    assert statuses.count(204) < 60
