"""A node and the parent of a fleet hold secrets: processes of the same user cannot look into them."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
NOBODY = 65534

# Runs the function until it would do something, and says whether its process can be inspected by then.
STOPPED_EARLY = """
import ctypes
from app.node import {module} as module
from app.settings.settings import Settings

settings = Settings.from_env({{
    "TRUNKLINE_REDIS_URL": "redis://127.0.0.1:1", "TRUNKLINE_SECRET_KEY": "ab" * 32, "TRUNKLINE_PORT": "0",
    "TRUNKLINE_DATA_DIR": "{data_dir}",
}})

class Stopped(Exception):
    pass

def stop(*_):
    raise Stopped

module.migrate.prepare = module.migrate.check = stop
try:
    module.{call}
except Stopped:
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("serve", "serve(settings)"),
        ("serve", "serve(settings, member=1)"),
        ("fleet", "serve_nodes(settings, 2)"),
    ],
)
def test_whoever_serves_is_not_to_be_inspected_before_anything_else(tmp_path: Path, module: str, call: str) -> None:
    code = STOPPED_EARLY.format(module=module, call=call, data_dir=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "0\n", done.stderr


def as_nobody(look: str) -> int:
    """The exit status of a child of another user without privileges, who reads that file."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            with open(look, "rb") as file:
                os._exit(0 if file.read() else 2)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two processes of one other user")
def test_nobody_of_the_same_user_reads_the_environment_and_one_still_sees_ones_own_descriptors() -> None:
    from app.jail.spawner.syscalls import refuse_inspection

    prctl = ctypes.CDLL(None).prctl
    told, asked = os.pipe(), os.pipe()
    inspected = os.fork()
    if inspected == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after an exec; a change of user takes it away
            os.write(told[1], b"1")
            os.read(asked[0], 1)
            refuse_inspection()
            status = 0 if os.listdir("/proc/self/fd") and Path("/proc/self/statm").read_text() else 3
            os.write(told[1], b"2")
            os.read(asked[0], 1)
        finally:
            os._exit(status)
    environment = f"/proc/{inspected}/environ"
    assert os.read(told[0], 1) == b"1"
    before = as_nobody(environment)
    os.write(asked[1], b"x")
    assert os.read(told[0], 1) == b"2"
    after = as_nobody(environment)
    os.write(asked[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(inspected, 0)[1]) == 0
    for descriptor in (*told, *asked):
        os.close(descriptor)
    assert (before, after) == (0, 1)
