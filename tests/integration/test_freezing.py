"""Idle sessions of servers with state, whose processes stand still: over real sockets, processes and control groups."""

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from app.jail.sandbox.cgroup_roots import open_roots
from tests.console.browser import Browser
from tests.integration.gateway import ROOT, Endpoint, Gateway, running_gateway, until
from tests.integration.parked import COUNTING, WITHIN_S, opened, processes, sessions, states, use
from tests.integration.wire import Wire, listening, rpc

CLOCKWORK = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/clockwork.py")]
PARK_S = 1.0
UNIFIED = "/sys/fs/cgroup/unified"
# Without version 2 in sight a node uses the freezer of version 1.
ONLY_VERSION_1 = f"""
import ctypes
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0
assert libc.mount(None, b"/", None, 0x44000, None) == 0
assert libc.umount2({UNIFIED.encode()!r}, 2) == 0
"""

pytestmark = pytest.mark.timeout(300)


class WithVersion1(Gateway):
    FIRST = ONLY_VERSION_1


def require_freezer() -> None:
    roots = open_roots()
    why = roots.why_not_frozen
    roots.close()
    if why:
        pytest.skip(f"nothing can be frozen here: {why}")


@pytest.fixture(scope="module", params=["v2", "v1"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One with each version of control groups, where both are there."""
    require_freezer()
    if request.param == "v1" and not (os.geteuid() == 0 and os.path.ismount(UNIFIED)):
        pytest.skip("this machine has one version only")
    kind = WithVersion1 if request.param == "v1" else Gateway
    with running_gateway(tmp_path_factory.mktemp("gateway") / "data", kind) as gateway:
        yield gateway


def freezing(gateway: Gateway, argv: list[str] = CLOCKWORK, **fields: Any) -> Endpoint:
    timeouts = {"park_s": PARK_S, **fields.pop("timeouts", {})}
    return gateway.endpoint(argv, timeouts=timeouts, **fields)


async def is_frozen(endpoint: Endpoint, count: int = 1) -> None:
    await until(lambda: states(endpoint) == ["frozen"] * count, WITHIN_S, lambda: str(states(endpoint)))
    pids = [each["pid"] for each in processes(endpoint)]
    await until(lambda: all(map(stands_still, pids)), WITHIN_S, lambda: str(list(map(stands_still, pids))))


def stands_still(pid: int) -> bool:
    """As the kernel says."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, names, group = line.split(":", 2)
        tops = [UNIFIED, "/sys/fs/cgroup"] if number == "0" else ["/sys/fs/cgroup/freezer"]
        if number == "0" or names == "freezer":
            words = "".join(map(text_of, [Path(f"{top}{group}") for top in tops]))
            if "FROZEN" in words or "frozen 1" in words:
                return True
    return False


def text_of(group: Path) -> str:
    """What the group says of itself, in either version."""
    return "".join(each.read_text() for each in (group / "freezer.state", group / "cgroup.events") if each.exists())


async def everything(session: Wire) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await session.call("all"))
    return found


def count(gateway: Gateway, name: str) -> float:
    return gateway.metrics().get(name, 0.0)


async def test_an_idle_session_stands_still_until_its_next_call_and_has_lost_nothing(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = freezing(gateway)
    async with opened(http, endpoint) as session:
        await session.call("put", text="kept")
        before = await everything(session)
        await is_frozen(endpoint)
        (process,), (listed,) = processes(endpoint), sessions(endpoint)
        assert (process["state"], listed["process"]) == ("frozen", process["id"])
        assert (use(endpoint)["frozen_sessions"], use(endpoint)["parked_sessions"], use(endpoint)["processes"]) == (
            1,
            0,
            1,
        )
        assert count(gateway, "trunkline_sessions_frozen") == 1
        with Browser(gateway) as browser:
            browser.sign_in(gateway.admin_key)
            assert ">frozen<" in browser.page(f"/tenants/{endpoint.tenant}/sessions").text
        thawed = count(gateway, 'trunkline_session_thaws_total{result="thawed"}')
        after = await everything(session)
        assert (after["said"], after["process"]) == (["kept"], before["process"])
        assert after["ran_s"] - before["ran_s"] >= PARK_S  # its clock went on
        await until(lambda: states(endpoint) == ["open"], WITHIN_S)
        assert count(gateway, 'trunkline_session_thaws_total{result="thawed"}') == thawed + 1
    assert use(endpoint)["frozen_sessions"] == 0


async def test_it_takes_no_time_of_a_processor(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = freezing(gateway)
    async with opened(http, endpoint) as session:
        inode = (await everything(session))["process"]
        (server,) = gateway.processes_of(inode)
        await is_frozen(endpoint)
        turns = sum(server.cpu_times()[:2]), server.num_ctx_switches().voluntary
        await anyio.sleep(0.5)  # calm: a hundred turns would be made in it
        assert (sum(server.cpu_times()[:2]), server.num_ctx_switches().voluntary) == turns
        assert await session.call("turns")


async def test_what_a_server_would_say_by_itself_comes_when_it_goes_on(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = freezing(gateway)
    async with opened(http, endpoint) as session, listening(session) as heard:
        await session.call("later", ms=8000)  # a busy machine freezes it late
        await is_frozen(endpoint)
        await until(lambda: sessions(endpoint)[0]["idle_s"] > 9, WITHIN_S)
        assert heard == []
        response = await session.post(rpc("tools/call", 7, {"name": "all", "arguments": {}}))
        # Before the answer it goes where that goes.
        await until(lambda: '"later"' in response.text or heard, WITHIN_S)


async def test_calls_and_freezing_at_the_same_moment_lose_nothing_and_run_nothing_twice(
    gateway: Gateway, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """Clients whose calls come about when their sessions are frozen."""
    ledger = tmp_path / "ledger"
    endpoint = freezing(gateway, [*COUNTING, str(ledger)])
    tokens: list[str] = []

    async def client(number: int) -> None:
        async with opened(http, endpoint) as session:
            for turn in range(4):
                token = f"{number}-{turn}"
                tokens.append(token)
                await session.call("mark", token=token)
                await anyio.sleep(PARK_S + random.uniform(-0.1, 1.1))

    before = count(gateway, 'trunkline_session_thaws_total{result="thawed"}')
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(client, number)
    assert sorted(ledger.read_text().split()) == sorted(tokens)
    assert count(gateway, 'trunkline_session_thaws_total{result="thawed"}') > before
    assert count(gateway, 'trunkline_session_thaws_total{result="failed"}') == 0


async def test_a_backend_of_which_some_tools_are_shown_is_frozen_too(
    gateway: Gateway, http: httpx2.AsyncClient
) -> None:
    endpoint = freezing(gateway, include=["all", "put"])
    async with opened(http, endpoint) as session:
        await session.call("put", text="one")
        await is_frozen(endpoint)
        assert (await everything(session))["said"] == ["one"]


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_nothing_stands_still_for_ever_when_its_node_is_gone(
    tmp_path: Path, http: httpx2.AsyncClient, how: str, gateway: Gateway
) -> None:
    kind: Callable[..., Gateway] = type(gateway)
    with running_gateway(tmp_path / "data", kind) as own:  # type: ignore[arg-type]
        endpoint = freezing(own)
        session = Wire(http, endpoint)
        await session.open()
        await session.call("child")
        await is_frozen(endpoint)
        assert len(own.backends()) >= 2
        if how == "stop":
            await anyio.to_thread.run_sync(own.stop)
        else:
            own.kill()
        await until(lambda: not own.backends(), WITHIN_S)


async def test_where_nothing_can_be_frozen_the_backend_says_so(gateway: Gateway, http: httpx2.AsyncClient) -> None:
    endpoint = freezing(gateway, sandbox={"mode": "off"})
    path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
    async with opened(http, endpoint) as session:
        await until(lambda: sessions(endpoint)[0]["idle_s"] > 2 * PARK_S + 1, WITHIN_S)
        assert states(endpoint) == ["open"]
        assert await session.call("put", text="runs") == "null"
    (why,) = gateway.api("GET", path)["not_frozen_why"]
    assert why.endswith("the sandbox of this backend is off: its processes have no control group")
    gateway.api("PATCH", path, {"sandbox": None})
    assert gateway.api("GET", path)["not_frozen_why"] == []
