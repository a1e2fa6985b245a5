"""Limits, counts and ends of process trees by control groups: the real kernel's, where this machine lets us."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from app.domain import ProcessLimits
from app.jail.sandbox import cgroup_roots
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.spawner import tree
from app.jail.spawner.cgroups import UNIFIED, Group, write
from app.jail.spawner.client import End, SpawnerClient
from tests.jail.spawner.conftest import Child, all_end, is_alive, spawn, watch


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> Iterator[CgroupRoots]:
    monkeypatch.setattr(cgroup_roots, "_END_S", 60.0)  # who is killed has to get a processor to end
    roots = open_roots()
    yield roots
    roots.close()
    assert not any(map(os.path.exists, roots.directories.values()))


def require(roots: CgroupRoots, *controllers: str) -> None:
    for name in controllers:
        if name not in roots.directories:
            pytest.skip(f"no control groups for {name}: {roots.missing[name]}")


async def start(client: SpawnerClient, roots: CgroupRoots, *argv: str, tenant: str = "acme", **fields: Any) -> Child:
    tenant_mb = fields.pop("tenant_memory_mb", None)
    limits = ProcessLimits(**{"memory_mb": None, "pids": None, "cpu": None, **fields})
    return await spawn(client, *argv, confinement={"cgroup": roots.cgroup(tenant, limits, tenant_mb)})


async def ask(child: Child, what: str, amount: int) -> Any:
    os.write(child.stdin, f"{what} {amount}\n".encode())
    return json.loads(await child.read_line())


def directories(roots: CgroupRoots) -> list[str]:
    """Those of tenants and processes."""
    found = [each for root in set(roots.directories.values()) for each, _, _ in os.walk(root)]
    return sorted(set(found).difference(roots.directories.values()))


async def all_removed(roots: CgroupRoots) -> None:
    with anyio.fail_after(30):
        while directories(roots):
            await anyio.sleep(0.01)


async def test_a_process_over_its_memory_is_killed_alone(client, roots):
    require(roots, "memory")
    bystander = await start(client, roots, "glutton.py", memory_mb=64)
    glutton = await start(client, roots, "glutton.py", memory_mb=64)
    assert await ask(glutton, "memory", 10) == 10
    os.write(glutton.stdin, b"memory 200\n")
    end = await glutton.end()
    assert end == End("signaled", signal.SIGKILL, "memory")
    assert end.usage.oom_kills == 1
    assert await ask(bystander, "memory", 10) == 10
    glutton.close()
    bystander.close()


async def test_a_wrappers_exit_status_tells_of_the_limit_as_well(client, roots):
    require(roots, "memory")
    script = "python3 -c 'x = bytes(1) * (200 << 20)'; exit $?"
    child = await start(client, roots, "sh", "-c", script, memory_mb=64)
    end = await child.end()
    if "memory.oom.group" not in os.listdir(roots.directories["memory"]):  # else the shell is killed with it
        assert end == End("exited", 137, "memory")
    assert end.limit == "memory"
    child.close()


async def test_who_ends_by_itself_after_one_of_its_processes_was_killed_tells_of_the_limit(client, roots):
    require(roots, "memory")
    script = "python3 -c 'x = bytes(1) * (200 << 20)'; exit 3"
    child = await start(client, roots, "sh", "-c", script, memory_mb=64)
    end = await child.end()
    if "memory.oom.group" not in os.listdir(roots.directories["memory"]):  # else the shell is killed with it
        assert end == End("exited", 3, "memory")
    child.close()


async def test_a_killed_process_is_not_said_to_have_reached_a_limit(client, roots):
    require(roots, "memory")
    script = "python3 -c 'x = bytes(1) * (200 << 20)'; echo over; read x"
    child = await start(client, roots, "sh", "-c", script, memory_mb=64)
    if "memory.oom.group" in os.listdir(roots.directories["memory"]):
        pytest.skip("the whole group ends at its limit")
    await child.read_line()
    client.kill(child.spawned.id)
    assert await child.end() == End("signaled", signal.SIGKILL)
    child.close()


async def test_a_process_that_had_used_all_its_memory_for_files_and_dies_of_something_else(client, roots, tmp_path):
    require(roots, "memory")
    script = f"head -c 100000000 /dev/zero > {tmp_path}/file; echo full; read x"
    child = await start(client, roots, "sh", "-c", script, memory_mb=32)
    assert await child.read_line() == b"full\n"
    os.kill(child.spawned.pid, signal.SIGKILL)
    assert await child.end() == End("signaled", signal.SIGKILL)
    child.close()


async def test_a_tenant_over_its_memory_loses_a_process_and_others_none(client, roots):
    require(roots, "memory")
    other = await start(client, roots, "glutton.py", tenant="other", tenant_memory_mb=100)
    two = [await start(client, roots, "glutton.py", memory_mb=96, tenant_memory_mb=100) for _ in range(2)]
    assert await ask(two[0], "memory", 30) == 30
    assert await ask(other, "memory", 30) == 30
    os.write(two[1].stdin, b"memory 75\n")
    assert await two[1].end() == End("signaled", signal.SIGKILL, "tenant_memory")
    assert await ask(two[0], "memory", 1) == 31
    assert await ask(other, "memory", 1) == 31
    for each in (*two, other):
        each.close()


async def test_a_tenants_limit_is_changed_while_its_processes_run(client, roots):
    require(roots, "memory")
    child = await start(client, roots, "glutton.py", tenant_memory_mb=64)
    roots.limit_tenant("acme", 300)
    assert await ask(child, "memory", 100) == 100
    roots.limit_tenant("acme", None)
    assert await ask(child, "memory", 300) == 400
    child.close()


async def test_forks_stop_at_the_limit(client, roots):
    require(roots, "pids")
    child = await start(client, roots, "glutton.py", pids=8)
    assert await ask(child, "forks", 50) == 7
    usage = roots.usage("acme", child.spawned.id)
    assert (usage.pids, usage.refused_forks) == (8, 1)
    other = await start(client, roots, "glutton.py", pids=8)
    assert await ask(other, "forks", 3) == 3
    for each in (child, other):
        each.close()


async def test_a_process_gets_no_more_than_its_cpu_time(client, roots):
    require(roots, "cpu")
    child = await start(client, roots, "glutton.py", cpu=0.05)
    assert await ask(child, "spin", 2) < 0.2
    usage = roots.usage("acme", child.spawned.id)
    assert usage.throttled_us > 0
    assert usage.cpu_us > 0 or UNIFIED not in roots.directories
    child.close()


KILLING = {"unified": ("unified",), "freezer": ("freezer", "memory"), "neither": ("pids", "memory")}


@pytest.mark.parametrize("how", KILLING)
async def test_what_hides_whose_it_is_goes_with_its_session_and_nobody_elses(client, roots, how):
    require(roots, *KILLING[how])
    only = CgroupRoots({name: roots.directories[name] for name in KILLING[how]})
    old = await start(client, only, "family.py", "stranger")
    young = await start(client, only, "family.py", "stranger", tenant="other")
    olds, youngs = json.loads(await old.read_line()), json.loads(await young.read_line())
    descriptors = watch(*youngs.values())
    client.kill(young.spawned.id)
    await all_end(descriptors)
    assert is_alive(olds["stranger"])
    client.kill(old.spawned.id)
    for each in (old, young):
        await each.end()
        each.close()
    await all_removed(roots)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can put a process into another group")
@pytest.mark.parametrize("how", KILLING)
async def test_what_is_in_the_group_ends_with_it_whoever_has_started_it(client, roots, how):
    require(roots, *KILLING[how])
    child = await start(client, CgroupRoots({name: roots.directories[name] for name in KILLING[how]}), "echo.py")
    stranger = await anyio.open_process(["sleep", "1000"])
    for name in KILLING[how]:
        write(f"{roots.directories[name]}/tenant-acme/{child.spawned.id}/cgroup.procs", str(stranger.pid))
    client.kill(child.spawned.id)
    with anyio.fail_after(30):
        assert await stranger.wait() == -signal.SIGKILL
    await stranger.aclose()
    child.close()
    await all_removed(roots)


async def test_a_thousand_short_processes_leave_no_group_and_no_descriptor(client, roots):
    require(roots, "pids")

    async def some() -> None:
        for _ in range(50):
            child = await start(client, roots, "true", pids=8, memory_mb=64, cpu=1.0)
            await child.end()
            child.close()

    await some()
    await all_removed(roots)
    ours, its = (len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", client._spawner.pid))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(some())
    await all_removed(roots)
    assert len(os.listdir("/proc/self/fd")) <= ours  # garbage of earlier tests may have gone meanwhile
    with anyio.fail_after(30):  # the news of an end comes before all of it is done
        while len(os.listdir(f"/proc/{client._spawner.pid}/fd")) > its or tree.children(client._spawner.pid):
            await anyio.sleep(0.01)


def test_memory_of_a_frozen_group_of_version_2_may_go_to_swap_although_its_limit_forbids_that(tmp_path):
    """As files: on this machine version 2 may have no controllers."""
    directory = tmp_path / "tenant-acme" / "p1"
    directory.mkdir(parents=True)
    for name in ("cgroup.freeze", "memory.reclaim", "memory.swap.max"):
        (directory / name).touch()
    group = Group(
        {"roots": dict.fromkeys((UNIFIED, "memory"), str(tmp_path)), "tenant": "acme", "memory_bytes": 1}, "p1"
    )
    group.freeze()
    assert group.push_out(4096)
    texts = {each.name: each.read_text() for each in directory.iterdir()}
    assert texts == {"cgroup.freeze": "1", "memory.reclaim": "4096", "memory.swap.max": "max"}
    for each in directory.iterdir():
        each.write_text("")
    group.thaw()
    texts = {each.name: each.read_text() for each in directory.iterdir()}
    assert texts == {"cgroup.freeze": "0", "memory.reclaim": "", "memory.swap.max": "0"}
    unlimited = Group({"roots": dict.fromkeys((UNIFIED, "memory"), str(tmp_path)), "tenant": "acme"}, "p1")
    (directory / "memory.swap.max").write_text("max")
    unlimited.push_out(4096)
    unlimited.thaw()
    assert (directory / "memory.swap.max").read_text() == "max"
    assert not Group({"roots": {UNIFIED: str(tmp_path)}, "tenant": "acme"}, "p1").push_out(4096)
