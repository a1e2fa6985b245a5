"""What is counted as a process's: real trees that leave their session, their parents and their pid namespace."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from app.processes.measuring import measure, proportional_bytes
from tests.processes.rig import Running

NAMESPACES = ("--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc")
KINDS = ("child", "session", "daemon", "nameless")
HELD = 32 << 20
# In a pid namespace: a daemon that has left its session and holds memory. It says so, then lines are sent back.
INSIDE = f"""
import os, sys
hear, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    held = bytearray(b"x") * {HELD}
    os.write(tell, b"x")
    sys.stdin.read()
os.read(hear, 1)
print("held", flush=True)
sys.stdin.read()
"""
SHARES = f"""
import os, sys
held = bytearray(b"x") * {HELD}
for _ in range(3):
    if os.fork() == 0:
        break
else:
    print("held", flush=True)
sys.stdin.read()
"""

# A child in a session of its own, without the mark that all it starts would have.
STRANGER = """
import os, resource, sys, time
hear, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    resource.setrlimit(10, (7, 7))
    os.write(tell, b"x")
    time.sleep(1000)
os.read(hear, 1)
print("there", flush=True)
sys.stdin.read()
"""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_what_has_left_its_session_or_its_parents_is_counted(running: Running) -> None:
    process, listener = await running.start("family", *KINDS)
    other, _ = await running.start("echo")
    family = {process.pid, *json.loads(await listener.line()).values()}
    measured = measure({process.pid: process.id, other.pid: other.id})
    with anyio.fail_after(30):  # a parent goes, and they use more, a moment after the line
        while set(measured[process.pid].pids) != family or measured[process.pid].resident_bytes != pytest.approx(
            sum(map(resident, family)), abs=1 << 20
        ):
            await anyio.sleep(0.05)
            measured = measure({process.pid: process.id, other.pid: other.id})
    assert measured[other.pid].pids == (other.pid,)


async def test_what_has_lost_its_mark_too_is_counted_with_its_parent(running: Running) -> None:
    process, listener = await running.start("echo", command=sys.executable, args=("-I", "-S", "-c", STRANGER))
    await listener.line()
    assert len(measure({process.pid: process.id})[process.pid].pids) == 2


async def test_a_process_that_has_ended_is_not_in_the_result(running: Running) -> None:
    process, _ = await running.start("echo")
    await running.stop(process)
    assert measure({process.pid: process.id}) == {}
    assert measure({}) == {}


@pytest.fixture(scope="module")
def bubblewrap() -> str:
    command = shutil.which("bwrap")
    if command is None or subprocess.run([command, *NAMESPACES, "true"], check=False, capture_output=True).returncode:
        pytest.skip("bubblewrap does not work here")
    return command


async def test_what_runs_in_a_pid_namespace_is_counted(running: Running, bubblewrap: str) -> None:
    inner = (sys.executable, "-I", "-S", "-c", INSIDE)
    process, listener = await running.start("echo", command=bubblewrap, args=(*NAMESPACES, *inner))
    await listener.line()
    measured = measure({process.pid: process.id})[process.pid]
    assert len(measured.pids) >= 4  # bubblewrap, its first process inside, the server and the daemon
    assert measured.resident_bytes > HELD


async def test_pages_that_processes_share_count_once_in_proportion(running: Running) -> None:
    process, listener = await running.start("echo", command=sys.executable, args=("-I", "-S", "-c", SHARES))
    await listener.line()
    measured = measure({process.pid: process.id})[process.pid]
    assert len(measured.pids) == 4
    assert measured.resident_bytes > 4 * HELD
    assert HELD < (proportional_bytes(measured.pids) or 0) < 2 * HELD
    assert proportional_bytes([2**22 - 1]) == 0  # gone, or never there
