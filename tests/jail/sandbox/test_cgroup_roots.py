"""Where a node makes its control groups: on the real kernel, as far as this machine lets us."""

import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.jail.sandbox import cgroup_roots
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.spawner import cgroups

ROOT = Path(__file__).resolve().parents[3]


MOUNTS, OWN = Path("/proc/self/mountinfo"), Path("/proc/self/cgroup")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed has to get a processor to end."""
    monkeypatch.setattr(cgroup_roots, "_END_S", 60.0)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """What a node reads to learn which groups it is in: groups of this test. So a fault in what is tested, such as a
    lock that is not taken, cannot end what other nodes of this machine have started."""
    name = f"test-{secrets.token_hex(4)}"
    made = [mount.own / name for mount in cgroup_roots._mounts(MOUNTS, OWN)]
    for each in made:
        with suppress(OSError):  # nor may a node make one here
            each.mkdir()
    file = tmp_path / "own"
    file.write_text("".join(f"{line.rstrip('/')}/{name}\n" for line in OWN.read_text().splitlines()))
    yield file
    for each in made:
        cgroups.remove(str(each))


@pytest.fixture
def roots(own: Path) -> Iterator[CgroupRoots]:
    roots = open_roots(own=own)
    yield roots
    roots.close()


def require(roots: CgroupRoots, *controllers: str) -> None:
    for name in controllers:
        if name not in roots.directories:
            pytest.skip(f"no control groups for {name}: {roots.missing[name]}")


def test_every_controller_has_a_directory_or_a_reason(roots):
    names = {"memory", "pids", "cpu", "freezer", "unified"}
    assert set(roots.directories) | set(roots.missing) >= names
    assert not set(roots.directories) & set(roots.missing)
    assert all(map(os.path.isdir, roots.directories.values()))


def test_a_node_says_why_it_can_freeze_nothing(roots, tmp_path):
    require(roots, "unified")
    assert roots.why_not_frozen == ""
    assert CgroupRoots({"freezer": "/anywhere"}).why_not_frozen == ""
    old = CgroupRoots({"unified": str(tmp_path)})
    assert old.why_not_frozen == "the kernel has no cgroup.freeze (Linux 5.2)"
    none = CgroupRoots(missing={"unified": "/sys/fs/cgroup: Permission denied", "freezer": "no such hierarchy"})
    assert none.why_not_frozen == "/sys/fs/cgroup: Permission denied"
    assert CgroupRoots().why_not_frozen == "no control groups"


def test_closing_removes_what_is_left(roots):
    require(roots, "unified")
    sleeper = member(roots.directories["unified"])
    roots.close()
    assert sleeper.wait(10) == -9
    assert not any(map(os.path.exists, roots.directories.values()))


def member(directory: str) -> "subprocess.Popen[bytes]":
    """A process in a group some levels below this directory."""
    group = f"{directory}/tenant-acme/abc/deeper"
    os.makedirs(group)
    process = subprocess.Popen(
        ["sh", "-c", f"echo 0 > {group}/cgroup.procs && exec sleep 1000"], stdout=subprocess.DEVNULL
    )
    while not cgroups.members(group) and process.poll() is None:
        time.sleep(0.005)
    return process


def run(code: str, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


NODE = """
import sys
from pathlib import Path
from app.jail.sandbox.cgroup_roots import open_roots
from tests.jail.sandbox.test_cgroup_roots import member
roots = open_roots(own=Path(sys.argv[1]))
print(roots.directories["unified"], member(roots.directories["unified"]).pid, flush=True)
sys.stdin.read()
"""


def test_what_a_dead_node_has_left_ends_and_what_a_living_one_has_stays(roots, own):
    require(roots, "unified")
    living, dead = run(NODE, str(own)), run(NODE, str(own))
    try:
        its, pid = (living.stdout.readline().split()) if living.stdout else ("", "")
        left, sleeper = (dead.stdout.readline().split()) if dead.stdout else ("", "")
        descriptor = os.pidfd_open(int(sleeper))
        dead.kill()
        dead.wait()
        assert os.path.isdir(left)
        open_roots(own=own).close()
        assert not os.path.exists(left)
        assert select.select([descriptor], [], [], 10)[0]
        os.close(descriptor)
        assert cgroups.members(f"{its}/tenant-acme/abc/deeper") == [int(pid)]
    finally:
        for each in (living, dead):
            each.kill()
            each.communicate()
    open_roots(own=own).close()
    assert not os.path.exists(its)


AS_AN_ORDINARY_USER = """
import os, sys, time
from app.domain import ProcessLimits
from app.jail.sandbox import cgroup_roots
from app.jail.sandbox.cgroup_roots import open_roots
from app.jail.spawner.cgroups import Group
cgroup_roots._END_S = 25.0
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
os.setgroups([])
os.setgid(60002)
os.setuid(60002)
roots = open_roots()
group = Group(roots.cgroup("acme", ProcessLimits()), "abc")
group.make()
said, say = os.pipe()
if os.fork() == 0:
    for path in group.joins:
        open(path, "w").write("0")
    os.setsid()
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            os.fork()
            os.write(say, b"x")
            time.sleep(1000)
    os._exit(0)
os.close(say)
seen = 0
while seen < 6:
    seen += len(os.read(said, 6))
while group.kill():
    time.sleep(0.01)
assert os.read(said, 1) == b""
assert group.remove()
print(sorted(roots.directories), roots.missing["pids"])
roots.close()
print(os.listdir(sys.argv[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can delegate a group to another user")
def test_an_ordinary_user_to_whom_a_group_is_delegated_can_end_whole_trees_there(roots):
    require(roots, "unified")
    delegated = Path(roots.directories["unified"]) / "delegated"
    delegated.mkdir()
    for each in (delegated, delegated / "cgroup.procs", delegated / "cgroup.subtree_control"):
        os.chown(each, 60002, 60002)
    user = run(AS_AN_ORDINARY_USER, str(delegated))
    said, _ = user.communicate(timeout=60)
    assert user.returncode == 0
    found, listing = said.splitlines()
    assert found.startswith("['unified'] /sys/fs/cgroup/")
    assert found.endswith("Permission denied")
    assert "trunkline" not in listing


WITH_CONTROLLERS = """
import os, sys
from pathlib import Path
from app.domain import ProcessLimits
from app.jail.sandbox import cgroup_roots
cgroup_roots._END_S = 25.0
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
cgroup_roots._LIMITING = cgroup_roots._CONTROLLERS = ("hugetlb",)
cgroup_roots._FILES["hugetlb"] = ("hugetlb.2MB.max",)
roots = cgroup_roots.open_roots()
group = cgroup_roots.Group(roots.cgroup("acme", ProcessLimits()), "abc")
group.make()
assert os.path.exists(group._directories[roots.directories["unified"]] + "/hugetlb.2MB.max")
again = cgroup_roots.open_roots()  # from inside the group that it has moved to
print(len({Path(each.directories[name]).parent for each in (roots, again) for name in ("hugetlb", "unified")}))
print(Path("/proc/self/cgroup").read_text().splitlines()[-1])
roots.close()
again.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can enable a controller")
def test_a_node_leaves_its_group_to_enable_controllers_for_the_groups_below(roots):
    require(roots, "unified")
    ours = Path(roots.directories["unified"]).parent
    top = ours.parent
    if "hugetlb" not in (top / "cgroup.controllers").read_text().split():
        pytest.skip("version 2 has no controller that is of no importance to other processes")
    was_enabled = "hugetlb" in (top / "cgroup.subtree_control").read_text().split()
    cgroups.write(f"{top}/cgroup.subtree_control", "+hugetlb")
    service = Path(roots.directories["unified"]) / "a.service"
    try:
        for each in (ours, service.parent):
            cgroups.write(f"{each}/cgroup.subtree_control", "+hugetlb")
        service.mkdir()
        node = run(WITH_CONTROLLERS, str(service))
        said, _ = node.communicate(timeout=60)
        assert node.returncode == 0
        assert said.splitlines()[0] == "1"
        assert said.splitlines()[1].endswith("/a.service/trunkline-nodes")
    finally:
        roots.close()
        if not was_enabled:
            cgroups.write(f"{ours}/cgroup.subtree_control", "-hugetlb")
            cgroups.write(f"{top}/cgroup.subtree_control", "-hugetlb")


def test_without_a_writable_hierarchy_there_are_only_reasons(tmp_path):
    mounts, own = tmp_path / "mountinfo", tmp_path / "cgroup"
    mounts.write_text(
        f"30 20 0:26 / {tmp_path}/no rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
        f"31 20 0:27 / {tmp_path}/no\\040memory rw - cgroup cgroup rw,memory\n"
        "33 20 0:29 / / rw - ext4 /dev/vda rw\n"
    )
    own.write_text("4:memory:/x/y\n0::/outside/of/the/mount\n")
    none = open_roots(mounts, own)
    assert not none.directories
    assert none.missing == {
        "memory": f"{tmp_path}/no memory/x/y: No such file or directory",
        "unified": f"{tmp_path}/no/outside/of/the/mount: Permission denied",
        "pids": "no such hierarchy is mounted",
        "cpu": "no such hierarchy is mounted",
        "freezer": "no such hierarchy is mounted",
    }
    none.close()


def test_a_controller_that_cannot_limit_is_none(tmp_path):
    """As that of CPU time, where the kernel was built without quotas: a directory is made, and has no such file."""
    mounts, own = tmp_path / "mountinfo", tmp_path / "cgroup"
    mounts.write_text(f"31 20 0:27 / {tmp_path} rw - cgroup cgroup rw,cpu,cpuacct\n")
    own.write_text("4:cpu,cpuacct:/\n")
    roots = open_roots(mounts, own)
    assert roots.missing["cpu"] == f"{tmp_path}: the kernel has no cpu.cfs_quota_us"
    roots.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cgroup", "mountinfo"]
