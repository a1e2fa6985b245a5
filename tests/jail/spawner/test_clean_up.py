"""A spawner that dies: another is there at once, and what it has left ends."""

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from app.domain import ProcessLimits
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.spawner import _clean_up as clean_up
from app.jail.spawner._clean_up import BackOff
from app.jail.spawner.client import End, SpawnerClient
from app.jail.spawner.wire import Confinement
from tests.jail.spawner.conftest import Child, all_end, is_alive, spawn, watch

KINDS = ("child", "session", "daemon", "nameless")


@pytest.fixture
def roots() -> Iterator[CgroupRoots]:
    roots = open_roots()
    yield roots
    roots.close()


@pytest.fixture
async def restarts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When another spawner was ready."""
    monkeypatch.setattr(clean_up, "_LONGEST_DELAY_S", 0.05)
    return []


@pytest.fixture
async def client(restarts: list[float]) -> AsyncIterator[SpawnerClient]:
    client = SpawnerClient(lambda: restarts.append(time.monotonic()))
    await client.start()
    yield client
    await client.aclose()


async def kill_spawner(client: SpawnerClient, restarts: list[float]) -> None:
    """Returns when another is ready, which nobody has asked for."""
    assert client._spawner is not None
    count = len(restarts)
    os.kill(client._spawner.pid, signal.SIGKILL)
    with anyio.fail_after(30):
        while len(restarts) == count:
            await anyio.sleep(0.005)


async def family(client: SpawnerClient, *kinds: str, confinement: Confinement | None = None) -> tuple[Child, list[int]]:
    child = await spawn(client, "family.py", *kinds, confinement=confinement)
    return child, [child.spawned.pid, *json.loads(await child.read_line()).values()]


@pytest.mark.parametrize("has_groups", [True, False])
async def test_dead_spawners_leave_no_process_and_take_nobody_elses(client, restarts, roots, has_groups, pytestconfig):
    if has_groups and "unified" not in roots.directories and "freezer" not in roots.directories:
        pytest.skip(f"no control groups: {roots.missing}")
    confinement: Confinement = {"cgroup": roots.cgroup("acme", ProcessLimits())} if has_groups else {}
    other = SpawnerClient()
    await other.start()
    bystander, its = await family(other)
    for _ in range(20 if pytestconfig.getoption("long") else 4):
        some = [await family(client, *KINDS, *["stranger"] * has_groups, confinement=confinement) for _ in range(3)]
        descriptors = watch(*(pid for _, pids in some for pid in pids))
        await kill_spawner(client, restarts)
        await all_end(descriptors)
        for child, _ in some:
            assert await child.end() == End("spawner_lost")
            child.close()
    assert all(map(is_alive, its))
    await other.aclose()
    bystander.close()
    with anyio.fail_after(30):
        while client._clean_ups:
            await anyio.sleep(0.01)


async def test_processes_of_the_next_spawner_are_left_alone(client, restarts, roots):
    confinement: Confinement = {"cgroup": roots.cgroup("acme", ProcessLimits())}
    old, pids = await family(client, confinement=confinement)
    descriptors = watch(*pids)
    await kill_spawner(client, restarts)
    new, its = await family(client, *KINDS, "stranger", confinement=confinement)
    await all_end(descriptors)
    with anyio.fail_after(30):
        while client._clean_ups:
            await anyio.sleep(0.01)
    assert all(map(is_alive, its))
    for each in (old, new):
        each.close()


async def test_the_end_of_a_client_is_not_that_of_processes_of_another(client, roots):
    """The installation of a package has a spawner of its own beside that of sessions."""
    if "unified" not in roots.directories and "freezer" not in roots.directories:
        pytest.skip(f"no control groups: {roots.missing}")
    confinement: Confinement = {"cgroup": roots.cgroup("acme", ProcessLimits())}
    bystander, its = await family(client, *KINDS, confinement=confinement)
    other = SpawnerClient()
    ended, pids = await family(other, *KINDS, "stranger", confinement=confinement)
    descriptors = watch(*pids)
    await other.aclose()
    await all_end(descriptors)
    assert all(map(is_alive, its))
    for each in (bystander, ended):
        each.close()


def test_the_first_deaths_delay_nothing_and_further_ones_more_and_more():
    back_off = BackOff()
    delays = []
    for _ in range(20):
        back_off.died(100.0)
        delays.append(back_off.delay_s(100.0))
    assert delays[:6] == pytest.approx([0.0, 0.0, 0.0, 0.05, 0.1, 0.2])
    assert max(delays) == delays[-1] == 5.0
    assert back_off.delay_s(103.0) == pytest.approx(2.0)
    assert back_off.delay_s(111.0) == 0.0


async def test_a_spawner_that_never_starts_again_is_tried_again_until_the_node_closes(client, tmp_path, monkeypatch):
    main, tries = tmp_path / "main.py", tmp_path / "tries"
    main.write_text(f"open({str(tries)!r}, 'a').write('x'); raise SystemExit(1)")
    monkeypatch.setattr("app.jail.spawner.client._MAIN", main)
    os.kill(client._spawner.pid, signal.SIGKILL)
    with anyio.fail_after(60):
        while not tries.exists() or tries.stat().st_size < 5:
            await anyio.sleep(0.01)
    with anyio.fail_after(20):
        await client.aclose()
