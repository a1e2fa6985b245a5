"""Machine: what the kernel says of memory and descriptors, here and in containers of both kinds."""

import os
from pathlib import Path

import psutil
import pytest

from app.limits._machine import Machine, Use

MEMINFO = "MemTotal:       1000000 kB\nMemFree:  1 kB\nMemAvailable:    250000 kB\nHugePages_Total:       0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/self/fd").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    return tmp_path / "proc"


def files(directory: Path, **texts: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name.replace("_dot_", ".")).write_text(text)


def test_this_machine_has_memory_and_descriptors() -> None:
    memory, before = Machine().memory(), Machine().descriptors()
    assert 0 < memory.used < memory.limit <= psutil.virtual_memory().total
    assert 0 < memory.share < 1
    assert 0 < before.used < before.limit
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
    try:
        assert Machine().descriptors().used == before.used + 10
    finally:
        for each in opened:
            os.close(each)


def test_without_a_limit_it_is_the_machine_that_counts(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    (proc / "self/cgroup").write_text("0::/system.slice/trunkline.service\n")
    files(groups / "system.slice/trunkline.service", memory_dot_max="max\n", memory_dot_current="5\n")
    assert Machine(proc, groups).memory() == Use(750_000 * 1024, 1_000_000 * 1024)


def test_the_limit_of_a_service_counts_without_what_is_only_cached(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    (proc / "self/cgroup").write_text("0::/system.slice/trunkline.service\n")
    statistics = "anon 1\ninactive_file 100\nactive_file 7\n"
    files(
        groups / "system.slice/trunkline.service",
        memory_dot_max="1000\n",
        memory_dot_current="900\n",
        memory_dot_stat=statistics,
    )
    assert Machine(proc, groups).memory() == Use(800, 1000)


def test_the_limit_of_a_service_counts_for_a_group_within_it(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    (proc / "self/cgroup").write_text("0::/system.slice/trunkline.service/trunkline-nodes\n")
    files(groups / "system.slice/trunkline.service/trunkline-nodes", memory_dot_max="max\n", memory_dot_current="5\n")
    files(groups / "system.slice/trunkline.service", memory_dot_max="1000\n", memory_dot_current="900\n")
    assert Machine(proc, groups).memory() == Use(900, 1000)


def test_a_container_that_sees_its_group_as_the_root(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    (proc / "self/cgroup").write_text("0::/../somewhere/else\n")
    files(groups, memory_dot_max="1000\n", memory_dot_current="300\n")
    assert Machine(proc, groups).memory() == Use(300, 1000)


def test_control_groups_of_the_first_version(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    (proc / "self/cgroup").write_text("9:name=systemd:/\n4:memory:/docker/abc\n")
    files(
        groups / "memory/docker/abc",
        memory_dot_limit_in_bytes="2000\n",
        memory_dot_usage_in_bytes="1500\n",
        memory_dot_stat="cache 900\ntotal_inactive_file 500\n",
    )
    assert Machine(proc, groups).memory() == Use(1000, 2000)
    files(groups / "memory/docker/abc", memory_dot_limit_in_bytes="9223372036854771712\n")
    assert Machine(proc, groups).memory() == Use(750_000 * 1024, 1_000_000 * 1024)


def test_where_nothing_is_known_nothing_is_full(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "none", tmp_path / "none")
    assert machine.memory().share == 0
    assert machine.descriptors() == Use(0, 0)


def test_a_process_that_cannot_look_any_more_has_used_all(proc: Path, tmp_path: Path) -> None:
    (proc / "self/fd").rmdir()  # as good as EMFILE
    assert Machine(proc, tmp_path).descriptors().share == 1
