"""What a tenant's processes may use, over real sockets: how many it starts in a minute, and their memory."""

import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, is_alive, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.test_limits import INITIALIZE, limit_of
from tests.integration.wire import Wire, error_of, wire

STATELESS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/stateless.py")]
WAIT_S = "3"  # the wait for a process has its start in it


def use_of(gateway: Gateway, tenant: str) -> dict[str, Any]:
    use: dict[str, Any] = gateway.api("GET", f"/tenants/{tenant}")["use"]
    return use


def limited(
    gateway: Gateway,
    argv: list[str] = ECHO,
    *,
    limits: dict[str, Any],
    of_each: dict[str, Any] | None = None,
    **fields: Any,
) -> Endpoint:
    """A backend of a new tenant with these limits. `of_each`: those of each process."""
    return gateway.endpoint(argv, tenant=gateway.add_tenant(**limits), limits=of_each or {}, **fields)


def processes_of(endpoint: Endpoint, gateway: Gateway) -> list[dict[str, Any]]:
    """On all nodes."""
    found: list[dict[str, Any]] = gateway.api("GET", f"/tenants/{endpoint.tenant}/processes")["items"]
    return found


def is_gone(process: psutil.Process) -> bool:
    return not is_alive(process)


async def test_who_needs_a_process_over_the_rate_waits_and_then_is_told_when_to_come_again(
    start_gateway: Callable[..., Gateway],
) -> None:
    gateway = start_gateway(POOL_WAIT_S=WAIT_S)
    endpoint, other = limited(gateway, limits={"spawns_per_minute": 2}), gateway.endpoint(ECHO)
    async with wire(endpoint), wire(endpoint), httpx2.AsyncClient(timeout=30) as http:
        assert use_of(gateway, endpoint.tenant)["spawns_per_minute"] == 2
        response = await Wire(http, endpoint).post(INITIALIZE)
        assert (response.status_code, error_of(response).reason) == (503, "backend_busy")
        assert 0 < int(response.headers["retry-after"]) <= 38  # two a minute: half a minute, varied by a quarter
        limit = await limit_of(endpoint)
        assert (limit["name"], limit["of"], limit["allowed"]) == ("spawns_per_minute", "tenant", 2)
        check = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
        assert (check["ok"], check["failure"]["reason"]) == (False, "backend_busy")
        async with wire(other) as unharmed:
            assert await unharmed.call("echo", text="x") == "x"
        gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"limits": {"spawns_per_minute": 600}})
        async with wire(endpoint) as allowed:
            assert await allowed.call("echo", text="y") == "y"
    assert gateway.metrics()['trunkline_rate_limited_total{limit="spawns_per_minute"}'] == 3
    assert gateway.metrics()['trunkline_limits_hit_total{limit="spawns_per_minute"}'] >= 1


async def test_a_process_after_a_death_is_a_start(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway(POOL_WAIT_S=WAIT_S)
    endpoint = limited(gateway, STATELESS, limits={"spawns_per_minute": 2}, recovery="respawn")
    async with wire(endpoint) as session:
        for _ in range(2):
            await until(
                lambda: len(processes_of(endpoint, gateway)) == 1, 10
            )  # the dead one may be listed for a moment
            (shown,) = processes_of(endpoint, gateway)
            process = psutil.Process(shown["pid"])
            process.kill()
            await until(partial(is_gone, process))
            response = await after_the_death(session)
        # It waited for a process, of which there may be no more: it was not sent, or the session has ended meanwhile.
        assert error_of(response).reason in ("backend_busy", "session_ended")
    assert use_of(gateway, endpoint.tenant)["spawns_per_minute"] == 2


async def after_the_death(session: Wire) -> httpx2.Response:
    """The answer to the first request that is not written to the dead process, of which the gateway has yet to hear."""
    for number in range(100):
        response = await session.post({"jsonrpc": "2.0", "id": f"x{number}", "method": "tools/list"})
        if '"reason":"backend_exited"' not in response.text:
            return response
    raise AssertionError(response.text)


@pytest.fixture
async def impatient_nodes(tmp_path: Path, postgres_database: str) -> AsyncIterator[Nodes]:
    with running_nodes(tmp_path, postgres_database, 2, POOL_WAIT_S=WAIT_S) as nodes:
        await nodes.all_know_each_other()
        yield nodes


async def test_the_rate_is_one_over_all_nodes(impatient_nodes: Nodes) -> None:
    one, two = impatient_nodes.all
    endpoint = limited(one, limits={"spawns_per_minute": 4})
    opened = 0

    async def client(url: str) -> None:
        nonlocal opened
        async with httpx2.AsyncClient(timeout=60) as http:
            session = Wire(http, endpoint)
            session.url = url
            for _ in range(4):
                response = await session.post(INITIALIZE)
                opened += response.status_code == 200

    async with anyio.create_task_group() as tasks:
        for url in impatient_nodes.urls(endpoint):
            tasks.start_soon(client, url)
            await anyio.sleep(0.5)
    # Of eight: four at once, and one every fifteen seconds; a node may not know yet of the other's last one.
    assert 4 <= opened <= 6
    assert use_of(two, endpoint.tenant)["spawns_per_minute"] == use_of(one, endpoint.tenant)["spawns_per_minute"]


GLUTTON = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/trouble.py")]
MEMORY_FILES = ("memory.limit_in_bytes", "memory.max")  # of version 1, of version 2


async def eat(session: Wire, mib: int) -> dict[str, Any]:
    """The error of a call that makes the process take so much; empty if it may."""
    call = {"name": "eat", "arguments": {"mib": mib}}
    response = await session.post({"jsonrpc": "2.0", "id": "eat", "method": "tools/call", "params": call})
    error: dict[str, Any] = response.json().get("error", {})
    return error


async def test_a_process_over_its_memory_ends_alone_and_its_client_learns_at_which_limit(gateway: Gateway) -> None:
    endpoint = gateway.endpoint(GLUTTON, limits={"memory_mb": 100})
    async with wire(endpoint) as greedy, wire(endpoint) as other:
        assert await eat(other, 1) == {}
        await eat(greedy, 300)
        await until(lambda: len(processes_of(endpoint, gateway)) == 1, 30)
        assert await eat(other, 1) == {}


def memory_group(gateway: Gateway, process: psutil.Process) -> Path | None:
    """The control group of its tenant, if it has one that limits memory."""
    for line in Path(f"/proc/{process.pid}/cgroup").read_text().splitlines():
        path = line.split(":", 2)[2]
        for top in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
            group = Path(f"{top}{path}").parent
            if group.name.startswith("tenant-") and any((group / name).exists() for name in MEMORY_FILES):
                return group
    return None


def limit_in(group: Path) -> str:
    return next((group / name).read_text().strip() for name in MEMORY_FILES if (group / name).exists())


async def test_the_kernel_holds_a_tenant_to_its_memory_also_when_the_limit_has_changed(gateway: Gateway) -> None:
    endpoint, other = limited(gateway, GLUTTON, limits={"memory_mb": 128}), gateway.endpoint(GLUTTON)
    before = {each.pid for each in gateway.backends()}
    async with wire(endpoint) as small, wire(other) as unharmed:
        groups = [memory_group(gateway, each) for each in gateway.backends() if each.pid not in before]
        if None in groups:
            pytest.skip("the memory of control groups cannot be limited on this machine")
        async with wire(endpoint) as large:
            assert await eat(small, 30) == {}
            error = await eat(large, 110)
            assert (error["data"]["reason"], error["data"]["limit"]) == ("backend_exited", "tenant_memory")
        assert await eat(small, 1) == {}
        assert await eat(unharmed, 130) == {}
        gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"limits": {"memory_mb": 400}})
        await until(lambda: str(400 << 20) in {limit_in(each) for each in groups if each is not None})
        assert await eat(small, 150) == {}
    assert gateway.metrics()['trunkline_limits_hit_total{limit="memory_mb"}'] >= 1
    assert gateway.metrics()["trunkline_oom_kills_total"] >= 1


@pytest.mark.timeout(240)
async def test_a_tenants_memory_is_that_of_all_its_processes_on_all_nodes(own_nodes: Nodes) -> None:
    one = own_nodes.all[0]
    endpoint = limited(one, GLUTTON, limits={"memory_mb": 200}, of_each={"memory_mb": None})
    urls = own_nodes.urls(endpoint)
    async with httpx2.AsyncClient(timeout=60) as http:
        small, large = Wire(http, endpoint), Wire(http, endpoint)
        small.url, large.url = urls
        await small.open()
        await large.open()
        assert await eat(small, 90) == {}
        await eat(large, 140)
        await until(lambda: len(processes_of(endpoint, one)) == 1, 60)
        assert await eat(small, 1) == {}
