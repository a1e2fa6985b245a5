"""Checks of the machine: open files, memory, starting processes, and the programs that backends use."""

import asyncio
import os
import platform
import re
import resource
import shutil
import sys
from pathlib import Path

from app import __version__
from app.backends.packages.registries import ToolMissing, uv_program
from app.cli.doctor.findings import Check, State
from app.jail.spawner.client import Command, SpawnerClient, SpawnFailed

SPAWN_S = 10.0
LEAST_FILES = 256  # a node with a few sessions
ENGINE = "container engine"
FILES_PER_PROCESS = 4  # three pipes and the client's connection
LEAST_MEMORY_MIB = 256
MEMINFO = Path("/proc/meminfo")


def python() -> Check:
    """With the version of the gateway: reports of faults have this output."""
    this = f"{platform.machine()}, Linux {platform.release()}; trunkline {__version__}"
    return Check("python", State.OK, f"{platform.python_version()}, {this}")


def open_files(max_processes: int) -> Check:
    """Compares the limit with what `max_processes` processes need."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LEAST_FILES + FILES_PER_PROCESS * max_processes
    detail = f"{limit} open files allowed; {max_processes} processes (MAX_PROCESSES) need {wanted}"
    if limit in (resource.RLIM_INFINITY, -1) or limit >= wanted:
        return Check("open files", State.OK, detail)
    state = State.OPTIONAL if limit >= LEAST_FILES else State.MISSING
    return Check("open files", state, detail, "Raise it (LimitNOFILE=, ulimit -n), or lower TRUNKLINE_MAX_PROCESSES.")


def memory(max_processes: int) -> Check:
    fields = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
    available = int(fields["MemAvailable"].removesuffix("kB")) // 1024
    detail = f"{available} MiB available; up to {max_processes} backend processes (MAX_PROCESSES)"
    if available >= LEAST_MEMORY_MIB:
        return Check("memory", State.OK, detail)
    return Check("memory", State.OPTIONAL, detail, f"A node needs {LEAST_MEMORY_MIB} MiB and what its backends use.")


def engine(name: str | None) -> Check:
    """What starts images. Asks it for its version, and for containers, which its daemon has where it has one."""
    if name is None:
        return Check(ENGINE, State.OK, "none: images are not started (TRUNKLINE_CONTAINER_ENGINE)")
    from app.backends.images.engine import Engine, EngineFailed  # noqa: PLC0415 - few nodes have one

    try:
        found = Engine(name)
        detail = f"{found.version}, {found.program}"
        found.containers("0")
    except EngineFailed as error:
        return Check(ENGINE, State.OPTIONAL, str(error), "Only backends that are images need it (docs/images.md).")
    return Check(ENGINE, State.OK, detail)


def spawner() -> list[Check]:
    """Starts one process the way backends are started, and checks that it has dropped its privileges."""
    try:
        status = asyncio.run(asyncio.wait_for(_status_of_a_child(), SPAWN_S))
    except (SpawnFailed, OSError, TimeoutError) as error:
        advice = "Is there a limit on processes (ulimit -u, pids.max)?"
        return [Check("spawner", State.MISSING, f"cannot start a process: {error}", advice)]
    value = re.search(r"^NoNewPrivs:\s*(\d)", status, re.MULTILINE)
    if value is not None and value[1] == "1":
        privileges = Check("no_new_privs", State.OK, "backends cannot gain privileges")
    else:
        privileges = Check("no_new_privs", State.MISSING, "is not set in a child process", "Needs Linux 3.5 or later.")
    return [Check("spawner", State.OK, "can start a process"), privileges]


async def _status_of_a_child() -> str:
    spawner, ended = SpawnerClient(), asyncio.Event()
    code = "print(open('/proc/self/status').read())"
    command = Command([sys.executable, "-I", "-S", "-c", code], {"PATH": os.defpath, "LANG": "C.UTF-8"})
    ours, theirs = os.pipe()
    try:
        stdio = [os.open(os.devnull, os.O_RDWR), theirs, os.open(os.devnull, os.O_RDWR)]
        await spawner.spawn(command, stdio, lambda _: ended.set())
        await ended.wait()
        return os.read(ours, 65536).decode()  # fits into a pipe, and the writer has ended
    finally:
        os.close(ours)
        await spawner.aclose()


_NEEDED_BY = {
    "node": "a backend that runs it, or a package of npm,",
    "npm": "the installation of packages of npm (`npx NAME`)",
    "uv": "the installation of packages of PyPI (`uvx NAME`)",
    "git": "a backend that runs it",
}


def programs() -> list[Check]:
    """What backends, and the installation of their packages, are run with."""
    return [_program(name) for name in _NEEDED_BY]


def _program(name: str) -> Check:
    try:
        path = uv_program() if name == "uv" else shutil.which(name)
    except ToolMissing:
        path = None
    if path:
        return Check(name, State.OK, path)
    return Check(name, State.OPTIONAL, "is not on PATH", f"Only {_NEEDED_BY[name]} needs it.")
