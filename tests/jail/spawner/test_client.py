"""The spawner with its client: real processes."""

import asyncio
import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from app.jail.spawner import tree
from app.jail.spawner.client import Command, End, SpawnerClient, SpawnFailed
from tests.jail.spawner.conftest import SERVERS, Child, all_end, is_alive, spawn, watch

ROOT = Path(__file__).resolve().parents[3]


async def test_a_process_runs_and_its_exit_status_is_told(client):
    child = await spawn(client, "sh", "-c", "read x; exit 7")
    assert 0 < child.spawned.seconds < 60
    os.write(child.stdin, b"go\n")
    assert await child.end() == End("exited", 7)
    child.close()


async def test_death_by_a_signal_is_told(client):
    child = await spawn(client, "echo.py")
    os.kill(child.spawned.pid, signal.SIGKILL)
    assert await child.end() == End("signaled", signal.SIGKILL)
    child.close()


@pytest.mark.parametrize(
    ("argv", "number", "message"),
    [
        (("no-such-command",), errno.ENOENT, "No such file or directory: 'no-such-command'"),
        (("/etc/hostname/x",), errno.ENOTDIR, "Not a directory: '/etc/hostname/x'"),
        (("/etc/passwd",), errno.EACCES, "Permission denied: '/etc/passwd'"),
        (("/",), errno.EACCES, "Permission denied: '/'"),
        (("sh", "a\0b"), errno.EINVAL, "Invalid argument: 'sh'"),
        (("sh", "x" * 200_000), errno.E2BIG, "Argument list too long: 'sh'"),
        (("sh", *["x" * 100_000] * 20), errno.E2BIG, "Argument list too long"),
    ],
)
async def test_what_cannot_be_executed_is_a_result(client, argv, number, message):
    with pytest.raises(SpawnFailed) as caught:
        await spawn(client, *argv)
    assert (caught.value.errno, caught.value.message) == (number, message)
    child = await spawn(client, "true")  # and the spawner goes on
    assert await child.end() == End("exited", 0)
    child.close()


async def test_a_missing_working_directory_is_a_result(client):
    with pytest.raises(SpawnFailed, match="No such file or directory: '/no/such/place'") as caught:
        await spawn(client, "true", cwd="/no/such/place")
    assert caught.value.stage == "chdir"


async def test_no_descriptors_left_in_the_spawner_is_a_result(client):
    resource.prlimit(client._spawner.pid, resource.RLIMIT_NOFILE, (8, 8))
    with pytest.raises(SpawnFailed) as caught:
        await spawn(client, "true")
    assert caught.value.errno == errno.EMFILE


CANNOT_FORK = """
import errno, os, sys
sys.path.insert(0, {root!r})
from app.jail.spawner._server import serve

def fork():
    raise OSError(errno.{name}, os.strerror(errno.{name}))

os.fork = fork
serve(int(sys.argv[1]))
"""


@pytest.mark.parametrize("name", ["EAGAIN", "ENOMEM"])  # root is exempt from the limits that would cause them
async def test_a_failing_fork_is_a_result(tmp_path, monkeypatch, name):
    main = tmp_path / "main.py"
    main.write_text(CANNOT_FORK.format(root=str(ROOT), name=name))
    monkeypatch.setattr("app.jail.spawner.client._MAIN", main)
    client = SpawnerClient()
    await client.start()
    before = len(os.listdir(f"/proc/{client._spawner.pid}/fd"))
    for _ in range(5):
        with pytest.raises(SpawnFailed) as caught:
            await spawn(client, "true")
        assert (caught.value.errno, caught.value.stage) == (getattr(errno, name), "fork")
    with anyio.fail_after(20):  # the answer comes before the descriptors of the failed start are closed
        while len(os.listdir(f"/proc/{client._spawner.pid}/fd")) > before:
            await anyio.sleep(0.01)
    await client.aclose()


async def test_a_spawner_that_does_not_start_is_an_error(tmp_path, monkeypatch):
    main = tmp_path / "main.py"
    main.write_text("raise SystemExit(1)")
    monkeypatch.setattr("app.jail.spawner.client._MAIN", main)
    client = SpawnerClient()
    with pytest.raises(SpawnFailed, match="the spawner is gone"):
        await client.start()
    await client.aclose()


async def test_a_child_gets_what_it_should_and_nothing_else(client, monkeypatch):
    monkeypatch.setenv("GATEWAY_SECRET", "hunter2")
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    child = await spawn(client, "report.py", env={"PATH": os.environ["PATH"], "DECLARED": "yes \udcff"}, cwd="/tmp")
    report = json.loads(await child.read_line())
    os.close(leak)
    assert report["descriptors"] == [0, 1, 2]
    assert report["environment"].pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own
    assert report["environment"] == {
        "PATH": os.environ["PATH"], "DECLARED": "yes \udcff", tree.MARKER: child.spawned.id,
    }  # fmt: skip
    assert report["no_new_privs"] == "1"
    pythons = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    # 32 and 33 are glibc's own: nobody can set them, and what posix_spawn has started (of Python 3.13) ignores them.
    assert report["ignored_signals"] & ~(pythons | 0b11 << 31) == 0
    assert report["blocked_signals"] == 0
    assert report["pid"] == report["session"] == report["group"] == child.spawned.pid
    assert report["cwd"] == "/tmp"
    assert report["scheduler"] == os.SCHED_OTHER
    assert report["core"] == [0, 0]
    assert report["locks"] == [tree.mark(child.spawned.id)] * 2
    child.close()


async def test_a_broken_pipe_kills_a_child_that_does_not_care(client):
    child = await spawn(client, "sh", "-c", "read x; while :; do echo y; done")
    os.close(child.stdout)
    os.write(child.stdin, b"\n")
    assert await child.end() == End("signaled", signal.SIGPIPE)
    os.close(child.stdin)


async def test_batch_scheduling_is_an_option(client):
    child = await spawn(client, "report.py", sched_batch=True)
    assert json.loads(await child.read_line())["scheduler"] == os.SCHED_BATCH
    child.close()


async def test_a_signal_goes_to_the_whole_group(client):
    child = await spawn(client, "sh", "-c", "sleep 1000 & echo $!; wait")
    sleeper = watch(int(await child.read_line()))
    client.signal(child.spawned.id, signal.SIGTERM)
    assert await child.end() == End("signaled", signal.SIGTERM)
    await all_end(sleeper)
    child.close()


@pytest.mark.parametrize("how", ["kill", "exit", "die"])
async def test_no_descendant_outlives_its_backend(client, how):
    child = await spawn(client, "family.py")
    pids = json.loads(await child.read_line())
    family = watch(*pids.values())
    if how == "kill":
        client.kill(child.spawned.id)
    elif how == "exit":
        os.close(child.stdin)
        child.stdin = os.dup(child.stdout)
    else:
        os.kill(child.spawned.pid, signal.SIGKILL)
    await child.end()
    await all_end(family)
    child.close()


async def family_of(client: SpawnerClient, *kinds: str) -> tuple[Child, dict[str, int]]:
    """A backend, and the pids of what it has started."""
    child = await spawn(client, "family.py", *kinds)
    return child, json.loads(await child.read_line())


async def end(client: SpawnerClient, child: Child) -> None:
    """Ends it, and another after it: by then the spawner has looked for what it left behind often enough."""
    client.kill(child.spawned.id)
    await child.end()
    child.close()
    for _ in range(2):
        later = await spawn(client, "sh", "-c", "sleep 0.01 & read x")
        client.kill(later.spawned.id)
        await later.end()
        later.close()


async def test_ending_one_backend_leaves_the_others_descendants_alone(client):
    doomed, family = await family_of(client)
    spared, others = await family_of(client)
    gone = watch(*family.values())
    await end(client, doomed)
    await all_end(gone)
    assert {kind for kind, pid in others.items() if is_alive(pid)} == {"child", "session", "daemon", "nameless"}
    rest = watch(*others.values())
    await end(client, spared)
    await all_end(rest)


async def test_a_daemon_that_hides_whose_it_is_stays_while_it_may_be_anothers_and_goes_with_the_last(client):
    first, its = await family_of(client, "stranger")
    second, others = await family_of(client, "stranger")
    strangers = watch(its["stranger"], others["stranger"])
    await end(client, second)
    assert is_alive(its["stranger"])
    assert is_alive(others["stranger"])  # the first one was there before it, and could have started it
    await end(client, first)
    await all_end(strangers)


async def test_a_backend_that_is_younger_than_a_daemon_cannot_have_started_it(client):
    old, family = await family_of(client, "stranger")
    stranger = watch(family["stranger"])
    with anyio.fail_after(20):
        while ticks() <= (tree.born(family["stranger"]) or 0):
            await anyio.sleep(0.005)
    young = await spawn(client, "echo.py")
    await end(client, old)
    await all_end(stranger)
    assert is_alive(young.spawned.pid)
    young.close()


def ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def test_no_two_backends_wear_the_same_mark_and_a_lower_limit_is_left_alone():
    assert tree.mark("0" * 16) != tree.mark("8".rjust(16, "0"))
    assert tree.mark("f" * 16) < 2**62
    assert tree.born(os.getpid()) is not None
    assert tree.born(2**22 + 1) is tree.mark_of(2**22 + 1) is None  # no such process


async def test_zombies_of_orphans_are_reaped(client):
    child = await spawn(client, "sh", "-c", "(sh -c 'sleep 0.01; echo $$' &) ; read x")
    orphan = int(await child.read_line())
    with anyio.fail_after(20):
        while os.path.exists(f"/proc/{orphan}"):
            await anyio.sleep(0.005)
    child.close()
    await child.end()


async def test_a_cancelled_spawn_leaves_no_process(client):
    marks = [f"mark-{number}" for number in range(20)]
    for number, mark in enumerate(marks):
        with anyio.move_on_after(number * 0.0003):
            child = await spawn(client, "sh", "-c", "read x", mark)
            client.kill(child.spawned.id)
            child.close()
    with anyio.fail_after(20):
        while client._processes or any(mark in _commands_below(client._spawner.pid) for mark in marks):
            await anyio.sleep(0.005)


def _commands_below(pid: int) -> str:
    commands = ""
    for child in tree.children(pid):
        with suppress(OSError):  # it has ended meanwhile
            commands += Path(f"/proc/{child}/cmdline").read_text() + _commands_below(child)
    return commands


async def test_two_hundred_spawns_leak_no_descriptor(client):
    async def once() -> None:
        child = await spawn(client, "true")
        await child.end()
        child.close()

    await once()
    ours, its = (len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", client._spawner.pid))
    for _ in range(20):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(once())
    assert len(os.listdir("/proc/self/fd")) <= ours  # garbage of earlier tests may have gone meanwhile
    with anyio.fail_after(30):  # the news of an end comes before all of it is done
        while len(os.listdir(f"/proc/{client._spawner.pid}/fd")) > its or tree.children(client._spawner.pid):
            await anyio.sleep(0.01)


async def test_orders_wait_for_a_spawner_that_is_busy(client):
    os.kill(client._spawner.pid, signal.SIGSTOP)
    children: list[object] = []

    async def start() -> None:
        child = await spawn(client, "true", env={"PATH": os.environ["PATH"], "FILLER": "x" * 100_000})
        children.append(child)
        await child.end()
        child.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(40):  # more than the socket's buffer holds
            tasks.create_task(start())
        with anyio.fail_after(20):
            while not client._outgoing:
                await anyio.lowlevel.checkpoint()
        os.kill(client._spawner.pid, signal.SIGCONT)
    assert len(children) == 40


async def test_closing_ends_everything_and_may_be_repeated(client):
    child = await spawn(client, "family.py")
    family = watch(*json.loads(await child.read_line()).values())
    spawner = watch(client._spawner.pid)
    await client.aclose()
    await all_end(family)
    await all_end(spawner)
    await client.aclose()
    assert await child.end() == End("spawner_lost")
    with pytest.raises(SpawnFailed, match="closed"):
        await spawn(client, "true")
    child.close()


async def test_a_killed_spawner_is_reported_and_replaced_and_leaves_nothing(client):
    child = await spawn(client, "family.py")
    pids = json.loads(await child.read_line())
    family = watch(*pids.values(), child.spawned.pid)
    first = client._spawner.pid
    os.kill(first, signal.SIGKILL)
    assert await child.end() == End("spawner_lost")
    await all_end(family)
    again = await spawn(client, "true")
    assert await again.end() == End("exited", 0)
    assert client._spawner.pid != first
    with anyio.fail_after(20):
        while any(os.path.exists(f"/proc/{pid}") for pid in (first, child.spawned.pid, *pids.values())):
            await anyio.sleep(0.005)  # reaped as well
    child.close()
    again.close()


async def test_one_that_is_ready_and_dead_when_the_node_looks_is_replaced_too(client):
    """As after a standstill of the node, even if nobody wants a process."""
    first = client._spawner.pid
    os.kill(first, signal.SIGKILL)
    while client._spawner is None or client._spawner.pid == first:
        await anyio.lowlevel.checkpoint()
    second = client._spawner.pid
    assert select.select([client._socket], [], [], 20)[0]
    os.kill(second, signal.SIGKILL)
    os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
    with anyio.fail_after(20):
        while client._spawner is None or client._spawner.pid == second:
            await anyio.sleep(0.005)


async def test_spawns_under_way_fail_when_the_spawner_dies(client):
    os.kill(client._spawner.pid, signal.SIGSTOP)
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(_expect_failure(client))
        await anyio.lowlevel.checkpoint()
        os.kill(client._spawner.pid, signal.SIGKILL)
    assert starting.result().errno == errno.ECHILD


async def _expect_failure(client: SpawnerClient) -> SpawnFailed:
    with pytest.raises(SpawnFailed) as caught:
        await spawn(client, "true")
    return caught.value


NODE = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from app.jail.spawner.client import *

async def main():
    client = SpawnerClient()
    for _ in range(3):
        stdin, keep = os.pipe2(os.O_CLOEXEC)
        out = os.dup(1)
        await client.spawn(Command([sys.executable, "-I", "-S", sys.argv[2]], {"PATH": "/bin"}),
                           (stdin, out, os.dup(2)), print)
    print("spawner", client._spawner.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


async def test_when_the_node_is_killed_nothing_is_left_after_two_seconds():
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, str(ROOT), str(SERVERS / "family.py")], stdout=subprocess.PIPE, text=True
    )
    assert node.stdout is not None
    lines = [node.stdout.readline() for _ in range(4)]
    pids = [int(line.split()[1]) for line in lines if line.startswith("spawner")]
    pids += [pid for line in lines if line.startswith("{") for pid in json.loads(line).values()]
    assert len(pids) == 13
    descriptors = watch(*pids)
    node.kill()
    node.wait()
    await all_end(descriptors, within_s=12)  # less than two seconds, on a machine that is not busy
    node.stdout.close()


async def test_the_spawner_has_a_session_and_an_environment_of_its_own(client):
    assert os.getsid(client._spawner.pid) == client._spawner.pid
    assert Path(f"/proc/{client._spawner.pid}/environ").read_bytes() in (b"", b"LANG=C.UTF-8\0")
    os.kill(client._spawner.pid, signal.SIGTERM)
    os.kill(client._spawner.pid, signal.SIGINT)
    child = await spawn(client, "true")
    assert await child.end() == End("exited", 0)
    child.close()


def test_the_spawner_imports_nothing_but_itself_and_the_standard_library():
    code = "import sys, app.jail.spawner._server; print(sorted({m.split('.')[0] for m in sys.modules}))"
    out = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    foreign = set(json.loads(out.stdout.replace("'", '"'))) - sys.stdlib_module_names - {"app", "__main__"}
    assert foreign == set()


def test_a_command_is_a_value():
    assert Command(("a",), {}) == Command(("a",), {}, "/", False)
