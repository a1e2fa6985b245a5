"""Processes inside bubblewrap, as the spawner starts, signals and ends them: real processes in real namespaces."""

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from app.jail.sandbox._bubblewrap import CAPABILITIES, HOME, TEMPORARY
from app.jail.spawner.client import End, SpawnFailed
from app.jail.spawner.wire import INNER_VARIABLES_FD, Confinement
from tests.jail.sandbox.inside import SYSTEM_PYTHON, Inside, needs_bubblewrap, open_directory, ways
from tests.jail.spawner.conftest import SERVERS, Child, all_end, spawn, watch

pytestmark = needs_bubblewrap
ROOT = Path(__file__).resolve().parents[3]
OWN_WAYS = [way for way in ways() if way.outer_uid == os.geteuid()]  # the spawner is started as the user of the tests
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": HOME, "TMPDIR": TEMPORARY}
CONFINEMENT: Confinement = {"is_wrapped": True}
if os.geteuid() == 0:
    CONFINEMENT["capabilities"] = list(CAPABILITIES)


@pytest.fixture(params=OWN_WAYS, ids=lambda way: way.name)
def inside(request) -> Inside:
    return request.param


async def start(client, inside: Inside, *argv: str, **room) -> Child:
    if argv[0].endswith(".py"):
        argv = (SYSTEM_PYTHON, "-I", "-S", str(SERVERS / argv[0]), *argv[1:])
    return await spawn(client, *inside.command(*argv, **room), env=ENVIRONMENT, confinement=CONFINEMENT)


def tree_of(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for each in found:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            for thread in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, thread.read_text().split())
    return found


async def test_it_runs_and_its_exit_status_is_told(client, inside):
    child = await start(client, inside, "sh", "-c", "echo $$; read x; exit 7")
    assert await child.read_line() == b"2\n"
    assert 0 < child.spawned.seconds < 60
    assert sum(child.spawned.phases.values()) == pytest.approx(child.spawned.seconds)
    os.write(child.stdin, b"go\n")
    assert await child.end() == End("exited", 7)
    child.close()


async def test_death_by_a_signal_is_told_as_without_a_wrapper(client, inside):
    child = await start(client, inside, "sh", "-c", "kill -SEGV $$")
    assert await child.end() == End("signaled", signal.SIGSEGV)
    child.close()


async def test_programs_that_end_at_once_were_started(client, inside):
    for _ in range(20):
        child = await start(client, inside, "true")
        assert await child.end() == End("exited", 0)
        child.close()


async def test_a_signal_reaches_the_program_and_not_the_wrapper(client, inside):
    child = await start(
        client, inside, "sh", "-c", "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    )
    assert await child.read_line() == b"ready\n"
    client.signal(child.spawned.id, signal.SIGTERM)
    assert await child.read_line() == b"caught\n"
    assert await child.end() == End("exited", 3)
    child.close()


async def test_a_signal_reaches_what_the_program_has_started_too(client, inside):
    child = await start(client, inside, "sh", "-c", "sleep 1000 | sleep 1000; echo over; read x")
    descriptors = watch(*await below(child, 4))
    client.signal(child.spawned.id, signal.SIGTERM)
    await all_end(descriptors)
    assert await child.end() == End("signaled", signal.SIGTERM)
    child.close()


async def below(child: Child, count: int) -> list[int]:
    """Its processes, once there are so many below the wrapper and none comes or goes any more."""
    before: list[int] = []
    with anyio.fail_after(30):
        while len(pids := tree_of(child.spawned.pid)) <= count or pids != before:
            before = pids
            await anyio.sleep(0.1)
    return pids


async def test_a_kill_ends_daemons_that_have_left_the_session(client, inside):
    daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n os.fork()\n time.sleep(1000)\ntime.sleep(1000)"
    child = await start(client, inside, SYSTEM_PYTHON, "-c", daemon)
    descriptors = watch(*await below(child, 4))
    client.kill(child.spawned.id)
    await all_end(descriptors)
    assert await child.end() == End("signaled", signal.SIGKILL)
    child.close()


async def test_an_end_of_the_program_ends_its_daemons(client, inside):
    daemon = (
        "import os, time, sys\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(1000)\nelse:\n input()"
    )
    child = await start(client, inside, SYSTEM_PYTHON, "-c", daemon)
    descriptors = watch(*await below(child, 3))
    os.write(child.stdin, b"\n")
    await all_end(descriptors)
    assert await child.end() == End("exited", 0)
    child.close()


async def test_the_death_of_the_wrapper_ends_everything(client, inside):
    child = await start(client, inside, "sh", "-c", "sleep 1000 & sleep 1000")
    descriptors = watch(*await below(child, 4))
    os.kill(child.spawned.pid, signal.SIGKILL)
    await all_end(descriptors)
    assert await child.end() == End("signaled", signal.SIGKILL)
    child.close()


async def test_the_death_of_the_spawner_ends_everything(client, inside):
    child = await start(client, inside, "sh", "-c", "sleep 1000 & sleep 1000")
    descriptors = watch(*await below(child, 4))
    os.kill(client._spawner.pid, signal.SIGKILL)
    await all_end(descriptors, within_s=12)  # at once, on a machine that is not busy
    assert await child.end() == End("spawner_lost")
    child.close()


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015])
async def test_a_start_that_is_given_up_leaves_nothing(client, inside, delay_s):
    before = set(tree_of(client._spawner.pid))
    with anyio.move_on_after(delay_s):
        child = await start(client, inside, "sleep", "1000")
        client.kill(child.spawned.id)
        child.close()
    with anyio.fail_after(30):
        while set(tree_of(client._spawner.pid)) != before:
            await anyio.sleep(0.01)


def is_broken(pipe: int) -> bool:
    """Whether nobody reads it any more."""
    try:
        return not os.write(pipe, b"x")
    except BrokenPipeError:
        return True


async def test_the_pipes_are_the_programs_alone(client, inside):
    """So that whoever calls it learns at once that it has closed one."""
    child = await start(client, inside, "sh", "-c", "exec <&-; echo deaf; exec >&-; sleep 1000")
    assert await child.read_line() == b"deaf\n"
    with anyio.fail_after(30):
        while not is_broken(child.stdin):
            await anyio.sleep(0.01)
    assert await child.read_line() == b""
    assert not child.ends
    client.kill(child.spawned.id)
    await child.end()
    child.close()


# --- what cannot be started


async def test_a_path_that_is_not_there_is_a_failure_of_the_sandbox(client, inside, capfd):
    with open_directory() as path:
        command = inside.command("true", read=[str(path)])
    with pytest.raises(SpawnFailed) as caught:
        await spawn(client, *command, env=ENVIRONMENT, confinement=CONFINEMENT)
    failed = caught.value
    assert (failed.stage, failed.errno, failed.message) == ("bubblewrap", errno.EIO, "the sandbox cannot be made")
    assert str(path) in capfd.readouterr().err


async def test_a_program_that_cannot_be_executed_inside_is_a_failure(client, inside):
    if inside.uid is None:
        pytest.skip("this user may execute it")
    with open_directory() as path:
        program = path / "closed"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o700)
        with pytest.raises(SpawnFailed) as caught:
            await start(client, inside, str(program))
    assert (caught.value.stage, caught.value.errno) == ("bubblewrap", errno.EACCES)


async def test_what_prepares_the_program_does_not_count_as_it_however_long_it_takes(client, inside):
    with open_directory() as path:
        program = path / "program"
        program.touch(0o755)
        command = inside.command(str(program), read=[str(path)], has_variables=True)
        program.unlink()
        confinement: Confinement = {**CONFINEMENT, "inner_texts": {str(INNER_VARIABLES_FD): "sleep 0.3"}}
        with pytest.raises(SpawnFailed) as caught:
            await spawn(client, *command, env=ENVIRONMENT, confinement=confinement)
    assert (caught.value.stage, caught.value.errno) == ("bubblewrap", errno.ENOENT)


async def test_a_wrapper_that_is_not_there_is_no_failure_of_the_sandbox(client):
    with pytest.raises(SpawnFailed) as caught:
        await spawn(client, "/no/such/bwrap", confinement=CONFINEMENT)
    assert (caught.value.stage, caught.value.errno) == ("exec", errno.ENOENT)
    child = await spawn(client, "true")  # and the spawner goes on
    assert await child.end() == End("exited", 0)
    child.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into the spawner")
async def test_no_descriptor_is_left_in_the_spawner(client, inside):
    before = len(os.listdir(f"/proc/{client._spawner.pid}/fd"))
    for _ in range(3):
        child = await start(client, inside, "true")
        await child.end()
        child.close()
        with pytest.raises(SpawnFailed):
            await spawn(client, "/no/such/bwrap", confinement=CONFINEMENT)
    with anyio.fail_after(30):  # the last failure is reported before its process is reaped
        while len(os.listdir(f"/proc/{client._spawner.pid}/fd")) > before:
            await anyio.sleep(0.01)


# --- inside


async def test_the_filter_of_system_calls_is_in_force_inside(client, inside):
    code = "import socket\ntry: socket.socket(socket.AF_UNIX)\nexcept OSError as error: print(error.errno)"
    command = inside.command(SYSTEM_PYTHON, "-c", code, is_filtered=True)
    confinement: Confinement = {**CONFINEMENT, "inner_seccomp": ["base", "no_unix_sockets"]}
    child = await spawn(client, *command, env=ENVIRONMENT, confinement=confinement)
    line = await child.read_line()
    assert line.strip().isdigit(), line
    client.kill(child.spawned.id)
    await child.end()
    child.close()


NODE = """
import asyncio, json, os, sys
from app.jail.spawner.client import Command, SpawnerClient

async def main():
    client = SpawnerClient()
    await client.start()
    argv, env, confinement = json.loads(sys.argv[1])
    stdin, to_program = os.pipe()
    from_program, stdout = os.pipe()
    spawned = await client.spawn(Command(argv, env, "/", False, confinement), [stdin, stdout, os.dup(2)], print)
    said = await asyncio.to_thread(os.read, from_program, 100)
    print(said.decode().strip(), client._spawner.pid, spawned.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


async def test_the_death_of_the_node_ends_everything(inside):
    command = inside.command("sh", "-c", "sleep 1000 & echo started; sleep 1000")
    order = json.dumps([command, ENVIRONMENT, CONFINEMENT])
    with subprocess.Popen([sys.executable, "-c", NODE, order], stdout=subprocess.PIPE, text=True, cwd=ROOT) as node:
        assert node.stdout is not None
        try:
            said, spawner, wrapper = node.stdout.readline().split()
            assert said == "started"
            descriptors = watch(int(spawner), *tree_of(int(wrapper)))
            assert len(descriptors) >= 5  # the spawner, the wrapper, the first process inside, the program, its child
        finally:
            node.kill()
        await all_end(descriptors, within_s=12)  # at once, on a machine that is not busy
