"""Backends that do not read, do not answer, do not start or do not end: what their callers get, and how soon."""

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest

from app.domain import ProcessLimits
from tests.integration.arena import Arena, open_arena
from tests.integration.gateway import Endpoint, Gateway, running_gateway, until
from tests.integration.stopwatch import stopwatch
from tests.integration.wire import RpcError, Wire, rpc, wire

CALL, CALLS = 1 << 20, 8
ACCEPTED = 4  # one is in the pipe in part, and no further one fits into 4 MiB with the rest of it
BUSY_WITHIN_S, BUSY_BYTES = 5.0, 16 << 20
TOLD_WITHIN_S = 1.0  # by the stopwatch
TIMES, LONG_TIMES = 2, 20
FILES = 64
FORKS_EACH = 20  # of an attack, each time

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    directory = tmp_path_factory.mktemp("arena")
    with running_gateway(directory / "data") as gateway, open_arena(gateway, directory / "calls") as arena:
        yield arena


async def begin(session: Wire) -> None:
    """The attack of a server that answers it first."""
    assert await session.call("attack") == "done"


async def test_who_does_not_read_gets_four_megabytes_and_every_other_call_is_refused_at_once(arena: Arena) -> None:
    endpoint = arena.endpoint("deaf")
    large = {"name": "x", "arguments": {"text": "x" * CALL}}
    async with arena.attack() as cost, wire(endpoint) as session:
        await begin(session)
        async with anyio.create_task_group() as tasks:
            for number in range(ACCEPTED):
                tasks.start_soon(session.post, rpc("tools/call", f"a{number}", large))
            await until(lambda: in_flight(endpoint) == ACCEPTED, 20)
            for _ in range(CALLS - ACCEPTED):
                began_at = time.monotonic()
                assert (await session.ask("x", text="x" * CALL)).reason == "backend_busy"
                assert time.monotonic() - began_at < BUSY_WITHIN_S
            tasks.cancel_scope.cancel()
    assert cost.peak_bytes < BUSY_BYTES


def in_flight(endpoint: Endpoint) -> int:
    sessions = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    return sum(each["calls"] for each in sessions)


@pytest.mark.parametrize("mode", ["dies", "kills-itself", "half-a-line", "dies-with-a-daemon"])
async def test_who_waits_for_a_call_hears_of_the_death_at_once(arena: Arena, mode: str) -> None:
    async with arena.attack(), wire(arena.endpoint(mode)) as session, stopwatch(arena.gateway) as watch:
        errors = await asyncio.gather(session.ask("attack"), session.ask("anything"), return_exceptions=True)
        assert watch.seconds < TOLD_WITHIN_S
    first, second = errors
    assert isinstance(first, RpcError)
    assert first.reason == "backend_exited"
    # The other one may have been too late for the session, or lucky and the first.
    assert isinstance(second, AssertionError) or getattr(second, "reason", "") in ("backend_exited", "session_ended")


async def test_a_family_that_ignores_everything_is_gone_soon_after_its_session(arena: Arena) -> None:
    others = len(arena.gateway.backends())
    async with arena.attack():
        async with wire(arena.endpoint("stubborn", 3)) as session:
            await begin(session)
            await arena.gateway.wait_for_backends(others + 1 + 3 * 3, 30.0)
        async with stopwatch(arena.gateway) as watch:
            await arena.gateway.wait_for_backends(others, 20.0)
            assert watch.seconds < 6.0  # the stop ladder is four

    def zombies() -> list[psutil.Process]:
        return [each for each in psutil.process_iter(["ppid", "status"]) if is_zombie_of(each, arena.gateway)]

    await until(lambda: not zombies(), 10, zombies)


def is_zombie_of(process: psutil.Process, gateway: Gateway) -> bool:
    family = {gateway.pid, *(each.pid for each in gateway.family())}
    return process.info["status"] == psutil.STATUS_ZOMBIE and process.info["ppid"] in family


async def opening(endpoint: Endpoint) -> tuple[str, float]:
    """Why no session was opened, and how long that took."""
    async with httpx2.AsyncClient(timeout=60) as http, stopwatch(endpoint.gateway) as watch:
        with pytest.raises(RpcError) as failed:
            await Wire(http, endpoint).open()
        return str(failed.value), watch.seconds


@pytest.mark.parametrize(
    ("command", "says"),
    [("no-such-command", "No such file or directory"), ("/etc/passwd", "Permission denied")],
)
async def test_what_cannot_be_started_is_an_answer(arena: Arena, command: str, says: str) -> None:
    async with arena.attack():
        why, seconds = await opening(arena.gateway.endpoint([command]))
    assert says in why
    assert seconds < TOLD_WITHIN_S


async def test_a_spawner_without_descriptors_is_an_answer_and_goes_on_when_it_has_some(arena: Arena) -> None:
    own = {each.pid for each in arena.gateway.backends()}
    (spawner,) = [each for each in psutil.Process(arena.gateway.pid).children() if each.pid not in own]
    limits = resource.prlimit(spawner.pid, resource.RLIMIT_NOFILE)
    async with arena.attack():
        resource.prlimit(spawner.pid, resource.RLIMIT_NOFILE, (8, limits[1]))
        why, seconds = await opening(arena.endpoint("dies"))
        assert "Too many open files" in why
        assert seconds < TOLD_WITHIN_S
        resource.prlimit(spawner.pid, resource.RLIMIT_NOFILE, limits)
        async with wire(arena.endpoint("banner")) as session:
            await begin(session)


# --- what it takes


def own_cgroup(pid: int, controller: str) -> str:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    return ""


def is_limited(gateway: Gateway, process: psutil.Process, what: str) -> bool:
    """Whether the kernel limits it: it has a cgroup, a limit of descriptors or a disk of its own."""
    if what == "descriptors":
        limits = Path(f"/proc/{process.pid}/limits").read_text()  # prlimit() does not answer about other users'
        return f"Max open files {FILES} " in " ".join(limits.split())
    if what == "disk":
        try:
            return os.readlink(f"/proc/{process.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        except PermissionError:
            return True  # it is another user's
    controller = {"memory": "memory", "forks": "pids", "spin": "cpu"}[what]
    return own_cgroup(process.pid, controller) != own_cgroup(gateway.pid, controller)


TAKING: dict[str, tuple[dict[str, Any], int]] = {  # limits, and how far it comes at most
    "forks": ({"pids": 16}, 15),
    "spin": ({"cpu": 0.1}, 1000),  # so little that it reaches it on a busy machine too
    "descriptors": ({"files": FILES}, FILES - 1),
    "disk": ({"disk_mb": 16}, 32),
}


COUNTED = {  # where control groups limit it
    "forks": ('trunkline_limits_hit_total{limit="pids"}',),
    "spin": ('trunkline_limits_hit_total{limit="cpu"}', "trunkline_cpu_throttled_seconds_total"),
}
TIERS = ("base", "kernel", "namespaces", "assisted")


@asynccontextmanager
async def limited(arena: Arena, what: str, times: int, **limits: Any) -> AsyncIterator[Wire]:
    """A session of a server that will take so much; skips where nothing limits it."""
    endpoint = arena.endpoint(what, times, limits=limits)
    before = {each.pid for each in arena.gateway.backends()}
    async with wire(endpoint) as session:
        own = [each for each in arena.gateway.backends() if each.pid not in before]
        # The namespaces of a process begin below bubblewrap, its wrapper.
        if not any(is_limited(arena.gateway, each, what) for each in own):
            pytest.skip(f"{what} is not limited on this machine")
        yield session


@pytest.mark.parametrize("what", TAKING)
async def test_what_one_takes_others_do_not_miss(arena: Arena, what: str, *, full: bool) -> None:
    limits, most = TAKING[what]
    counted = {name: arena.gateway.metrics()[name] for name in COUNTED.get(what, ())}
    async with arena.attack(), limited(arena, what, LONG_TIMES if full else TIMES, **limits) as session:
        assert float(await session.call("attack")) <= most
    await until(lambda: all(arena.gateway.metrics()[name] > before for name, before in counted.items()), 15)


def test_metrics_say_how_processes_are_confined_and_how_they_started(arena: Arena) -> None:
    metrics = arena.gateway.metrics()
    tier = TIERS[int(metrics["trunkline_sandbox_tier"])]
    tiers = {name: metrics[f'trunkline_processes_by_tier{{tier="{name}"}}'] for name in ("none", *TIERS)}
    assert {name for name, count in tiers.items() if count} == {tier}
    for phase in ("fork", "sandbox", "exec"):
        assert metrics[f'trunkline_process_spawn_phase_seconds_count{{phase="{phase}"}}'] >= 1


async def test_a_fork_bomb_ends_at_the_limit_that_every_backend_has(arena: Arena) -> None:
    pids = ProcessLimits().pids
    assert pids is not None
    async with arena.attack(), limited(arena, "forks", 4 * pids // FORKS_EACH + 1) as session:
        assert int(await session.call("attack")) < pids


async def test_who_takes_more_memory_than_its_limit_is_killed_alone(arena: Arena, *, full: bool) -> None:
    async with arena.attack(), limited(arena, "memory", LONG_TIMES if full else TIMES, memory_mb=64) as session:
        error = await session.ask("attack")
        assert (error.reason, error.data.get("limit")) == ("backend_exited", "memory")
