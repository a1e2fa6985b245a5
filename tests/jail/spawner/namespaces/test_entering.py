"""Who can enter a namespace: a fork that is led in, and nobody by itself."""

import errno
from pathlib import Path

import pytest

from app.jail.sandbox.tiers import Tier
from tests.jail.sandbox.inside import needs_bubblewrap
from tests.processes.forking.rig import SERVER, forked, forking, known, program, value

EVALUATES = "import helper\n" + SERVER + "\nserve(lambda text: eval(text))\n"
# Everything that would let imports make or enter a namespace, tried once while the template imports.
TRIES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)

def number_of(call, *arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if call(*arguments) < 0 else 0

def tried():
    descriptor = os.open("/proc/self/ns/user", os.O_RDONLY)
    try:
        numbers = [number_of(libc.setns, descriptor, 0x10000000), number_of(libc.unshare, 0x10000000)]
    finally:
        os.close(descriptor)
    return [*numbers, number_of(libc.ptrace, 0, 0, 0, 0), number_of(libc.mount, b"x", b"/tmp", b"tmpfs", 0, None)]

found = tried()
"""
WITH_THREAD = """
fork = os.fork
def later():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return 0
os.fork = lambda: fork() or later()
"""
DENIED = [errno.EPERM] * 3


@needs_bubblewrap
@pytest.mark.parametrize("tier", [Tier.ASSISTED, Tier.NAMESPACES], ids=lambda tier: tier.name.lower())
async def test_a_template_enters_no_namespace_by_itself_nor_does_its_fork(tmp_path: Path, tier: Tier) -> None:
    spec = program(tmp_path, EVALUATES)
    (tmp_path / "program/helper.py").write_text(TRIES)
    async with forking(tmp_path, tier) as running:
        process, listener = await forked(running, spec)
        assert await value(process, listener, "helper.found") == [errno.ENOSYS, *DENIED]
        assert await value(process, listener, "helper.tried()") == [errno.EPERM, *DENIED]


@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.fork = lambda: 0", "not in its room"),
        (WITH_THREAD, "system call 308"),
        ("socket.socket.recvmsg = None", ""),
    ],
    ids=["a template that does not fork", "a fork with a thread", "a fork that does not listen"],
)
async def test_a_fork_that_its_imports_have_made_another_one_is_refused(tmp_path: Path, code: str, why: str) -> None:
    spec = program(tmp_path, EVALUATES)
    (tmp_path / "program/helper.py").write_text("import os, socket, threading, time\n" + code)
    async with forking(tmp_path, Tier.NAMESPACES) as running:
        told = await known(running, spec)
        assert told
        assert why in told
