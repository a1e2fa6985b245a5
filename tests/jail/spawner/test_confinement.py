"""The steps between fork and exec: what a child has left, how a step that cannot be done is told, and what a start
costs. What is forbidden is tried in test_confinement_attempts.py."""

import errno
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.jail.spawner import _child as child
from app.jail.spawner import _seccomp as seccomp
from app.jail.spawner import landlock, syscalls
from app.jail.spawner._confinement import Clock, Prepared
from app.jail.spawner.client import End, SpawnerClient, SpawnFailed
from app.jail.spawner.wire import INNER_SECCOMP_FD, INNER_STATUS_FD, INNER_STDOUT_FD, Confinement, Order
from tests.jail.spawner.conftest import all_end, spawn, watch

USER = 60003
CAP_SETGID, CAP_SETUID, CAP_SETPCAP = 1 << 6, 1 << 7, 1 << 8
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_landlock = pytest.mark.skipif(landlock.abi() < landlock.SCOPES_ABI, reason="needs Landlock of ABI 6")

EVERY_FILTER = list(seccomp.FILTERS)
NODE_WORKS = """
const { Worker } = require("worker_threads"), os = require("os"), http = require("http")
const { spawnSync } = require("child_process"), crypto = require("crypto")
const worker = new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true })
worker.on("message", async answer => {
  const hash = await new Promise(resolve => crypto.pbkdf2("a", "b", 10, 8, "sha256", (e, key) => resolve(key.length)))
  const child = spawnSync("echo", ["hello"]).stdout.toString().trim()
  console.log(JSON.stringify([answer, hash, child, typeof os.networkInterfaces()]))
})
"""


async def told(client: SpawnerClient, confinement: Confinement, *argv: str) -> object:
    """What a program writes as JSON before it ends well."""
    child = await spawn(client, *argv, confinement=confinement, env={"PATH": os.environ["PATH"], "HOME": "/tmp"})
    text = b""
    while part := await child.read_line():
        text += part
    child.close()
    assert await child.end() == End("exited", 0)
    return json.loads(text)


async def rights(client: SpawnerClient, confinement: Confinement) -> dict:
    found = await told(client, confinement, "confined.py", "rights")
    assert isinstance(found, dict)
    return found


async def failure(client: SpawnerClient, confinement: Confinement) -> SpawnFailed:
    with pytest.raises(SpawnFailed) as caught:
        await spawn(client, "true", confinement=confinement)
    child = await spawn(client, "true")  # and the spawner goes on
    assert await child.end() == End("exited", 0)
    child.close()
    return caught.value


# --- what is left


async def test_a_child_without_confinement_keeps_its_user_and_loses_the_way_to_more_privileges(client):
    found = await rights(client, {})
    assert (found["uids"], found["no_new_privs"], found["filters"]) == ([os.geteuid()] * 3, "1", "0")
    assert found["limits"]["CORE"] == [0, 0]


@needs_root
async def test_another_uid_comes_without_groups_and_capabilities(client):
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no Python outside of /root")
    code = Path(__file__).parent.parent.with_name("servers").joinpath("confined.py").read_text()
    found = await told(client, {"uid": USER}, python, "-I", "-S", "-c", code, "rights")
    assert isinstance(found, dict)
    assert (found["uids"], found["gids"], found["groups"]) == ([USER] * 3, [USER] * 3, [])
    assert found["capabilities"] == [0] * 5


@needs_root
async def test_root_keeps_the_capabilities_that_are_named_and_no_others(client):
    none = await rights(client, {"capabilities": []})
    assert (none["uids"], none["capabilities"]) == ([0] * 3, [0] * 5)
    some = await rights(client, {"capabilities": ["CAP_SETUID", "CAP_SETGID"]})
    inheritable, permitted, effective, bounding, ambient = some["capabilities"]
    assert permitted == effective == bounding == CAP_SETUID | CAP_SETGID
    assert inheritable == ambient == 0


async def test_limits_are_set_and_never_raised(client):
    hard = resource.prlimit(client._spawner.pid, resource.RLIMIT_NOFILE)[1]
    assert (await rights(client, {"limits": {"NOFILE": 123}}))["limits"]["NOFILE"] == [123, 123]
    found = (await rights(client, {"limits": {"NOFILE": 1 << 40}}))["limits"]["NOFILE"]
    assert found == ([hard, hard] if hard != resource.RLIM_INFINITY else [1 << 40] * 2)


# --- real programs


async def test_python_works_under_every_filter(client):
    assert await told(client, {"seccomp": EVERY_FILTER}, "confined.py", "works") == {
        "threads": [0, 1, 4, 9], "processes": [1, 2], "subprocess": "42", "file": 1, "asyncio": "hello", "http": 200,
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_node_works_under_every_filter(client):
    found = await told(client, {"seccomp": EVERY_FILTER}, "node", "-e", NODE_WORKS)
    assert found == [42, 8, "hello", "object"]


# --- what cannot be done


@pytest.mark.parametrize(
    ("confinement", "stage", "number"),
    [
        ({"limits": {"NONSENSE": 1}}, "limits", errno.EINVAL),
        ({"capabilities": ["CAP_NONSENSE"]}, "capabilities", errno.EINVAL),
        ({"seccomp": ["nonsense"]}, "seccomp", errno.EOPNOTSUPP),
        pytest.param({"uid": 1 << 40}, "uid", errno.EINVAL, marks=needs_root),
        pytest.param({"landlock": {"bind": [1 << 20]}}, "landlock", errno.EINVAL, marks=needs_landlock),
        pytest.param({"landlock": {"read": ["/" + "x" * 5000]}}, "landlock", errno.ENAMETOOLONG, marks=needs_landlock),
    ],
)
async def test_a_step_that_cannot_be_done_ends_the_start_and_is_named(client, confinement, stage, number):
    error = await failure(client, confinement)
    assert (error.stage, error.errno) == (stage, number)
    assert stage in error.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
async def test_an_ordinary_user_becomes_nobody_else(client):
    assert (await failure(client, {"uid": USER})).stage == "uid"


# --- a wrapper, and the phases


WRAPPER = """
import os, sys
program = os.read({seccomp}, 65536)
os.write({status}, b"%d %s" % (len(program), program[:8].hex().encode()))
held = [name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)]
own = [os.readlink("/proc/self/fd/%d" % each) for each in (0, 1)]
print(*sorted(map(int, held)), *own, file=os.fdopen({stdout}, "w"))
"""


def order(argv: list[str], confinement: Confinement) -> Order:
    return Order(id="ab" * 8, argv=argv, env={}, cwd="/", sched_batch=False, confinement=confinement, is_watched=False)


def become(
    confinement: Confinement,
    prepared: Prepared,
    argv: list[str],
    stdout: int,
    first: Callable[[], None] = lambda: None,
) -> bytes:
    """Forks a child as the spawner does, which does something `first`; returns the error that it reports."""
    complaint, status = os.pipe()
    spawner = os.getpid()
    pid = os.fork()
    if pid == 0:
        first()
        child.become(
            order(argv, confinement), prepared, (os.open("/dev/null", os.O_RDONLY), stdout, 2), status, spawner
        )
    os.close(status)
    try:
        return os.read(complaint, 4096)
    finally:
        os.waitpid(pid, 0)
        os.close(complaint)


def test_a_wrapper_finds_the_inner_filter_and_the_way_to_tell_its_pid_wherever_they_were_before():
    """Whichever numbers the descriptors have: those of the inner ones are taken here by others."""
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(12)]
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    code = WRAPPER.format(seccomp=INNER_SECCOMP_FD, status=INNER_STATUS_FD, stdout=INNER_STDOUT_FD)
    confinement = Confinement(is_wrapped=True, inner_seccomp=["base", "no_internet"])
    for shift in range(12):
        os.close(held[shift])  # so that pipes get this number
        told, tell = os.pipe()
        said, say = os.pipe()
        argv = [os.path.realpath(sys.executable), "-I", "-S", "-c", code]
        assert become(confinement, Prepared(inner_status=tell), argv, say) == b""
        for each in (tell, say):
            os.close(each)
        program = seccomp.program(["base", "no_internet"])
        assert os.read(told, 100) == b"%d %s" % (len(program), program[:8].hex().encode())
        assert os.read(said, 100) == b"0 1 2 7 8 10 11 /dev/null /dev/null\n"
        for each in (told, said):
            os.close(each)
    os.close(leak)


def test_a_wrapper_without_a_way_to_tell_its_pid_does_not_start():
    complaint = json.loads(become({"is_wrapped": True}, Prepared(), ["/bin/true"], 1))
    assert (complaint["stage"], complaint["errno"]) == ("descriptors", errno.EBADF)


def status_of(confinement: Confinement, lines: str, first: Callable[[], None]) -> list[str]:
    """The words of these lines in the status of a child which did something first."""
    said, say = os.pipe()
    complaint = become(confinement, Prepared(), ["/bin/grep", "-E", lines, "/proc/self/status"], say, first)
    os.close(say)
    found = os.read(said, 4096).decode()
    os.close(said)
    assert complaint == b""
    return found.split()


@needs_root
def test_capabilities_go_where_the_bounding_set_may_not_be_cut() -> None:
    mine = int(re.search(r"CapEff:\s+(\w+)", Path("/proc/self/status").read_text())[1], 16)  # type: ignore[index]
    found = status_of({"capabilities": []}, "Cap[PE]", lambda: syscalls.keep_capabilities(mine & ~CAP_SETPCAP))
    assert found == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16]


@needs_root
def test_groups_of_the_spawner_do_not_stay_with_another_uid() -> None:
    assert status_of({"uid": USER}, "^Groups", lambda: os.setgroups([4, 24])) == ["Groups:"]


@needs_root
async def test_a_child_of_another_uid_dies_with_the_spawner():
    """The node would kill it too, but not at once, and not if it has died itself."""
    told, tell = os.pipe()
    asked, ask = os.pipe()
    spawner = os.fork()
    if spawner == 0:
        complaint, status = os.pipe()
        confinement = Confinement(uid=USER, seccomp=["base"])
        pid = os.fork()
        if pid == 0:
            child.become(order(["/bin/sleep", "60"], confinement), Prepared(), (asked, tell, 2), status, os.getppid())
        os.close(status)
        os.read(complaint, 1)  # it has executed that
        os.write(tell, b"%d" % pid)
        os.read(asked, 1)
        os._exit(0)
    ended = watch(int(os.read(told, 100)))
    os.write(ask, b"x")
    os.waitpid(spawner, 0)
    await all_end(ended)
    for each in (told, tell, asked, ask):
        os.close(each)


def test_a_child_joins_its_groups_or_does_not_start(tmp_path):
    procs = tmp_path / "cgroup.procs"
    procs.touch()
    assert become({}, Prepared(cgroup_procs=[str(procs)]), ["/bin/true"], 1) == b""
    assert procs.read_bytes() == b"0"
    complaint = json.loads(become({}, Prepared(cgroup_procs=[str(tmp_path / "missing")]), ["/bin/true"], 1))
    assert (complaint["stage"], complaint["errno"]) == ("cgroup", errno.ENOENT)


async def test_a_start_has_phases_that_add_up(client):
    for confinement in (Confinement(), Confinement(seccomp=["base"])):
        child = await spawn(client, "true", confinement=confinement)
        assert list(child.spawned.phases) == ["fork", "sandbox", "exec"]
        assert all(seconds > 0 for seconds in child.spawned.phases.values())
        assert sum(child.spawned.phases.values()) == pytest.approx(child.spawned.seconds)
        child.close()


def test_a_phase_that_was_not_reached_lasted_no_time():
    clock = Clock()
    assert clock.phases(1.0, 3.0) == {"fork": 2.0, "sandbox": 0.0, "exec": 0.0}
    clock.close()
