"""Trees of processes that try to outlive their sessions, their spawner and their node, in every tier of the sandbox.

Afterwards nothing of them is there: no process, control group, home, mount or descriptor. `--long` does the acceptance
counts and prints the figures.
"""

import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import psutil
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, is_alive, running_gateway, until
from tests.integration.wire import Wire

CLINGS = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/clings.py")]
OF_EACH = 5  # processes of one tree
SESSIONS, LONG_SESSIONS = 20, 1000
AT_ONCE, LONG_AT_ONCE = 20, 40
KILLS, LONG_KILLS = 2, 100
GONE_S, ORPHANS_S = 6.0, 1.0
BUSY_S = 6.0  # more, where the whole suite runs beside
SETTLED_S = 20.0
MEMORY_BYTES = 64 << 20
DESCRIPTORS = 8  # connections that stay open for the next request

_NONE = "def none(*_):\n    raise FileNotFoundError('not in this test')\n"
_NO_BUBBLEWRAP = f"import app.jail.sandbox.machine as machine\n{_NONE}machine.find_bubblewrap = none\n"
_NO_LANDLOCK = (
    "import app.jail.sandbox.available as available\n"
    "available.landlock = lambda: available.Layer('landlock', False, 'not in this test')\n"
)
_NO_GROUPS = (
    "import app.node.parts.sandboxing as sandboxing\n"
    "from app.jail.sandbox.cgroup_roots import CgroupRoots\n"
    "sandboxing.open_roots = CgroupRoots\n"
)


class Best(Gateway):
    """Confines as well as this machine can."""


class Unwrapped(Gateway):
    """On a machine without bubblewrap."""

    FIRST = _NO_BUBBLEWRAP


class Bare(Gateway):
    """Without bubblewrap and Landlock."""

    FIRST = _NO_BUBBLEWRAP + _NO_LANDLOCK


class Groupless(Gateway):
    """Without bubblewrap, Landlock and control groups: only marks tell whose an orphan is."""

    FIRST = _NO_BUBBLEWRAP + _NO_LANDLOCK + _NO_GROUPS


KINDS: dict[type[Gateway], int | None] = {Best: None, Unwrapped: 1, Bare: 0, Groupless: 0}  # with their tier


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__.lower())
def kind(request: pytest.FixtureRequest) -> type[Gateway]:
    made: type[Gateway] = request.param
    return made


@pytest.fixture
def clung(kind: type[Gateway], tmp_path: Path) -> Iterator[Gateway]:
    with running_gateway(tmp_path / "data", kind) as gateway:
        tier = KINDS[kind]
        assert tier is None or gateway.metrics()["trunkline_sandbox_tier"] <= tier
        yield gateway


def endpoint_of(gateway: Gateway, network: str = "none") -> Endpoint:
    return gateway.endpoint([*CLINGS, gateway.mark], sandbox={"network": network})


def tree(gateway: Gateway) -> set[psutil.Process]:
    """Every process that was started for a backend: those with the mark as an argument."""
    mark, found = gateway.mark.encode(), set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{name}/cmdline").read_bytes():
                found.add(psutil.Process(int(name)))
        except (OSError, psutil.NoSuchProcess):
            continue
    return {each for each in found if is_alive(each)}


async def gone(gateway: Gateway, within_s: float) -> float:
    """Seconds until no process of the trees is left."""
    began_at = time.monotonic()
    await until(lambda: not tree(gateway), within_s, lambda: [each.cmdline() for each in tree(gateway)])
    return time.monotonic() - began_at


@asynccontextmanager
async def sessions(endpoint: Endpoint, count: int) -> AsyncIterator[list[Wire]]:
    """So many sessions with their trees; they are left open."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(timeout=60, limits=limits) as http:
        opened = [Wire(http, endpoint) for _ in range(count)]
        async with anyio.create_task_group() as tasks:
            for each in opened:
                tasks.start_soon(each.open)
        await until(lambda: len(tree(endpoint.gateway)) >= count * OF_EACH, SETTLED_S)  # one is being executed
        yield opened


async def close_all(opened: list[Wire]) -> None:
    async with anyio.create_task_group() as tasks:
        for each in opened:
            tasks.start_soon(each.close)


def groups(pid: int) -> list[Path]:
    """The control groups of this node, with those of its tenants and processes."""
    walked = os.walk("/sys/fs/cgroup")  # other nodes may be starting and ending
    return sorted(Path(path) for path, _, _ in walked if f"/trunkline-{pid}-" in path)


def of_processes(gateway: Gateway) -> list[Path]:
    """The control groups of this node's processes. Those of tenants stay."""
    return [each for each in groups(gateway.pid) if each.parent.name.startswith("tenant-")]


def private_homes(gateway: Gateway) -> list[Path]:
    """Homes of single processes. The data directory has those of all tenants."""
    return list(gateway.data_dir.glob("homes/*/private/*"))


def held(gateway: Gateway) -> dict[str, object]:
    """What this node has outside of its processes' memory."""
    family = [psutil.Process(gateway.pid), *psutil.Process(gateway.pid).children()]
    return {
        "mounts": [mounts(each.pid) for each in family],
        "groups": groups(gateway.pid),
        "homes": private_homes(gateway),
        "processes": len(family),
    }


def mounts(pid: int) -> int:
    try:
        return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    except OSError:  # it has ended, and is not reaped yet
        return 0


def descriptors(gateway: Gateway) -> int:
    """Of the node and of its spawner."""
    return sum(each.num_fds() for each in [psutil.Process(gateway.pid), *psutil.Process(gateway.pid).children()])


@pytest.mark.alone
@pytest.mark.timeout(900)
async def test_trees_are_gone_soon_after_their_sessions_and_leave_nothing(clung: Gateway, *, full: bool) -> None:
    seconds: list[float] = []
    at_once = LONG_AT_ONCE if full else AT_ONCE
    endpoints = [endpoint_of(clung, network) for network in ("none", "web")]
    for endpoint in endpoints:  # what is made once is made now
        async with sessions(endpoint, at_once) as opened:
            await close_all(opened)
        await gone(clung, GONE_S + BUSY_S)
    process = psutil.Process(clung.pid)
    await until(lambda: not private_homes(clung), SETTLED_S, lambda: private_homes(clung))
    await until(lambda: not of_processes(clung), SETTLED_S, lambda: of_processes(clung))
    before, opened_before, resident = held(clung), descriptors(clung), process.memory_info().rss
    for number in range((LONG_SESSIONS if full else SESSIONS) // at_once):
        async with sessions(endpoints[number % 2], at_once) as opened:
            began_at = time.monotonic()
            await close_all(opened)
            await gone(clung, GONE_S + BUSY_S)
            seconds.append(time.monotonic() - began_at)
    print(f"{len(seconds) * at_once} trees: gone in median {statistics.median(seconds):.2f} s, max {max(seconds):.2f}")
    await until(lambda: held(clung) == before, SETTLED_S, lambda: (before, held(clung)))
    await until(lambda: descriptors(clung) < opened_before + DESCRIPTORS, SETTLED_S, lambda: descriptors(clung))
    grown = process.memory_info().rss - resident
    print(f"memory {grown / 2**20:+.1f} MiB, tier {clung.metrics()['trunkline_sandbox_tier']:.0f}")
    assert grown < MEMORY_BYTES
    assert not full or max(seconds) <= GONE_S, sorted(seconds)[-5:]


@pytest.mark.timeout(900)
async def test_a_killed_spawner_leaves_no_orphan(clung: Gateway, *, full: bool) -> None:
    seconds: list[float] = []
    endpoint, before = endpoint_of(clung), held(clung)
    for _ in range(LONG_KILLS if full else KILLS):
        own = clung.process.pid
        async with sessions(endpoint, 2):
            (spawner,) = [each for each in psutil.Process(own).children() if each.name() != "bwrap"]
            spawner.kill()
            seconds.append(await gone(clung, ORPHANS_S + BUSY_S))
        await until(lambda: held(clung)["processes"] == before["processes"], SETTLED_S)
    print(f"{len(seconds)} spawners killed: gone in median {statistics.median(seconds):.2f} s, max {max(seconds):.2f}")
    await until(lambda: held(clung) == before, SETTLED_S, lambda: (before, held(clung)))
    assert not full or max(seconds) <= ORPHANS_S, sorted(seconds)[-5:]


@pytest.mark.timeout(1800)
async def test_a_killed_node_leaves_no_orphan_and_the_next_one_tidies_up(
    kind: type[Gateway], tmp_path: Path, *, full: bool
) -> None:
    seconds: list[float] = []
    keys: dict[str, str] = {}
    for _ in range(LONG_KILLS if full else KILLS):
        with running_gateway(tmp_path / "data", kind, **keys) as gateway:
            keys = {"admin_key": gateway.admin_key}
            async with sessions(endpoint_of(gateway), 2):
                gateway.kill()
                seconds.append(await gone(gateway, ORPHANS_S + BUSY_S))
        dead = gateway
    print(f"{len(seconds)} nodes killed: gone in median {statistics.median(seconds):.2f} s, max {max(seconds):.2f}")
    with running_gateway(tmp_path / "data", kind, **keys) as gateway:
        assert groups(dead.pid) == []
        assert private_homes(gateway) == []
    assert groups(gateway.pid) == []
    assert not full or max(seconds) <= ORPHANS_S, sorted(seconds)[-5:]
