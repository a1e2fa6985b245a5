"""A limit that a process meets says so: which, its value, and what to write. Real processes in control groups."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.domain import ProcessLimits
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.sandbox.tiers import Tier
from tests.jail.sandbox.inside import SYSTEM_PYTHON, needs_bubblewrap
from tests.jail.sandbox.tried import trial

LIMITS = ProcessLimits(pids=32, memory_mb=64)
THREADS = """
import sys, threading
try:
    for _ in range(100): threading.Thread(target=threading.Event().wait, daemon=True).start()
except RuntimeError:
    if sys.argv[1] == 'fail': raise
print('{}', flush=True)
sys.stdin.read()
"""
FED = """
import subprocess, sys
subprocess.run([sys.executable, '-c', 'bytearray(256 << 20)'])
print('{}', flush=True)
sys.stdin.read()
"""
WRITE = "For twice as much: `trunkline backends set trial --tenant acme limits."


@pytest.fixture
def cgroups() -> Iterator[CgroupRoots]:
    roots = open_roots()
    yield roots
    roots.close()


def needs(cgroups: CgroupRoots, controller: str) -> None:
    if controller not in cgroups.directories:
        pytest.skip(f"control groups do not limit this here: {cgroups.missing.get(controller)}")


@needs_bubblewrap
@pytest.mark.parametrize("tier", [Tier.BASE, Tier.NAMESPACES])
async def test_the_end_at_a_limit_is_logged_with_its_value_and_what_to_write(tier, tmp_path: Path, cgroups, caplog):
    needs(cgroups, "pids")
    async with trial(tier, tmp_path, cgroups) as here:
        done = await here.run([SYSTEM_PYTHON, "-c", THREADS, "fail"], limits=LIMITS)
    assert done.description == "exit status 1, at the limit of its 32 processes and threads (limits.pids)"
    (line,) = [each for each in caplog.records if each.message.startswith("Backend process ended: ")]
    assert (line.limit, f"{WRITE}pids=64`" in line.hint) == ("pids", True)
    assert done.process.exit is not None
    assert done.process.exit.error().hint == line.hint


@pytest.mark.parametrize(
    ("code", "limit", "words", "write"),
    [
        (THREADS, "pids", "it could start no more than its 32 processes and threads (limits.pids)", "pids=64"),
        (FED, "memory", "it lost a process of its own, which needed more memory than its 64 MiB", "memory_mb=128"),
    ],
)
async def test_a_limit_that_a_process_survives_is_logged_once(
    code, limit, words, write, tmp_path: Path, cgroups, caplog
):
    needs(cgroups, limit)
    if limit == "memory" and cgroups.directories["memory"] == cgroups.directories.get("unified"):
        pytest.skip("version 2 of control groups ends all processes of the group together")
    async with trial(Tier.BASE, tmp_path, cgroups) as here, here.started(
        [SYSTEM_PYTHON, "-c", code, "live"], limits=LIMITS
    ) as (process, listener):  # fmt: skip
        await listener.line()
        for _ in range(2):
            await process.measure()
    (line,) = [each for each in caplog.records if each.levelno == logging.WARNING and " at a limit: " in each.message]
    assert words in line.message
    assert (line.limit, f"{WRITE}{write}`" in line.hint, line.backend_process) == (limit, True, process.id)
