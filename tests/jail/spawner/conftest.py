"""A spawner with its client, and a shorthand for starting tests/servers on pipes."""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from app.jail.spawner.client import Command, End, Spawned, SpawnerClient
from app.jail.spawner.wire import Confinement

SERVERS = Path(__file__).resolve().parent.parent.parent / "servers"


@dataclass
class Child:
    """A spawned process and our ends of its pipes."""

    spawned: Spawned
    stdin: int
    stdout: int
    ends: list[End]
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def end(self) -> End:
        with anyio.fail_after(30):
            await self.ended.wait()
        return self.ends[0]

    async def read_line(self) -> bytes:
        with anyio.fail_after(30):
            await anyio.wait_readable(self.stdout)
        return os.read(self.stdout, 65536)

    def close(self) -> None:
        os.close(self.stdin)
        os.close(self.stdout)


async def spawn(
    client: SpawnerClient,
    *argv: str,
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
    sched_batch: bool = False,
    confinement: Confinement | None = None,
) -> Child:
    """Starts this command; a name without a slash and with .py is one of tests/servers."""
    if argv[0].endswith(".py"):
        argv = (sys.executable, "-I", "-S", str(SERVERS / argv[0]), *argv[1:])
    stdin, to_child = os.pipe2(os.O_CLOEXEC)
    from_child, stdout = os.pipe2(os.O_CLOEXEC)
    stderr = os.dup(2)
    ends: list[End] = []
    ended = anyio.Event()

    def on_end(end: End) -> None:
        ends.append(end)
        ended.set()

    env = {"PATH": os.environ["PATH"]} if env is None else env
    command = Command(argv, env, cwd, sched_batch, confinement or {})
    try:
        spawned = await client.spawn(command, (stdin, stdout, stderr), on_end)
    except BaseException:
        os.close(to_child)
        os.close(from_child)
        raise
    return Child(spawned, to_child, from_child, ends, ended)


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def watch(*pids: int) -> list[int]:
    """Descriptors that become readable when these processes end."""
    return [os.pidfd_open(pid) for pid in pids]


async def all_end(descriptors: list[int], within_s: float = 30.0) -> None:
    try:
        with anyio.fail_after(within_s):
            for descriptor in descriptors:
                await anyio.wait_readable(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.fixture
async def client() -> AsyncIterator[SpawnerClient]:
    client = SpawnerClient()
    await client.start()
    yield client
    await client.aclose()
