"""What processes have on the disk is counted whatever they do to it, and who has too much is killed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.processes import _disk as disk
from app.processes._disk import DiskWatch
from app.processes.endings import Exit
from tests.processes.rig import spec_of

MIB = 1 << 20


def test_all_files_in_all_places_count_together(tmp_path: Path) -> None:
    for place in ("home", "tmp"):
        (tmp_path / place / "deep").mkdir(parents=True)
        (tmp_path / place / "deep" / "file").write_bytes(bytes(400 << 10))
    places = [str(tmp_path / "home"), str(tmp_path / "tmp")]
    assert disk.over(places, MIB) is None
    (tmp_path / "tmp" / "more").write_bytes(bytes(300 << 10))
    assert disk.over(places, MIB) == "wrote more than the 1 MiB of limits.disk_mb"
    assert disk.over(places[:1], MIB) is None


def test_what_is_not_there_and_what_a_link_names_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(MIB))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file").symlink_to(tmp_path / "big")
    (tmp_path / "home" / "directory").symlink_to(tmp_path)
    assert disk.over([str(tmp_path / "home"), str(tmp_path / "missing")], MIB) is None


def test_holes_and_blocks_beyond_the_end_count(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2 * MIB)
    assert disk.over([str(tmp_path)], MIB) is not None


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])  # a directory has a block of its own on some file systems
def test_empty_files_and_directories_count_so_that_a_look_is_bounded(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    for number in range(1100):
        make(tmp_path / str(number))
    assert disk.over([str(tmp_path)], MIB) is not None


def test_directories_deeper_than_can_be_measured_are_too_much(tmp_path: Path) -> None:
    (tmp_path / "d").joinpath(*["d"] * 100).mkdir(parents=True)
    descriptors = len(os.listdir("/proc/self/fd"))
    assert disk.over([str(tmp_path)], 1 << 30) == "made more than 100 directories in each other"
    assert disk.over([str(tmp_path / "d" / "d" / "d")], 1 << 30) is None
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # garbage of earlier tests may have gone meanwhile


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_directory_that_is_closed_is_too_much(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    try:
        assert disk.over([str(tmp_path)], MIB) == "closed a directory, so that its size cannot be measured"
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_a_look_that_takes_long_is_not_repeated_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.look([str(tmp_path)], MIB)[:3] == (None, disk.LOOK_EVERY_S, disk.LOOK_EVERY_S)
    monkeypatch.setattr("app.processes._disk.LOOKING_SHARE", 1e-9)
    assert disk.look([str(tmp_path)], MIB).again_s > 100
    assert disk.look([str(tmp_path)], MIB).soonest_s == disk.LOOK_EVERY_S


class Process:
    """One whose home is removed in the middle of a look, as it has ended; or for another reason."""

    is_being_killed = False

    def __init__(self, exit: Exit | None) -> None:
        self.spec, self.exit = spec_of("echo"), exit


@pytest.mark.parametrize("exit", [None, Exit("exited", "exit status 0")], ids=["lives", "has ended"])
async def test_a_home_that_goes_with_its_process_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, exit: Exit | None
) -> None:
    process: Any = Process(exit)
    assert process.spec.limits.disk_mb is not None
    await DiskWatch().sweep({process: [str(tmp_path / "gone")]})
    assert bool(caplog.records) == (exit is None)
