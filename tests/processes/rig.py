"""Real processes from tests/servers, and a listener that can be waited for."""

import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from app.domain import BackendSpec
from app.jail.sandbox.composer import Confined
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.spawner.client import Command
from app.processes.endings import Exit
from app.processes.homes import Homes
from app.processes.pipes import PipeLimits
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor, SupervisorOptions
from app.telemetry.metrics import Metrics

SERVERS = Path(__file__).resolve().parent.parent / "servers"
QUICK = {"eof_grace_s": 0.3, "term_grace_s": 0.3, "kill_wait_s": 5.0, "sweep_s": 0.02}


def spec_of(server: str, *args: object, **fields: Any) -> BackendSpec:
    """The backend that runs tests/servers/<server>.py."""
    command = ("-I", "-S", str(SERVERS / f"{server}.py"), *map(str, args))
    usual = BackendSpec("acme", server.replace("_", "-"), sys.executable, command, max_processes=100)
    return replace(usual, **fields)


def as_it_is(command: Command) -> Confined:
    """Of a command that a test has confined itself."""
    return Confined(command, Profile(Tier.NONE, "host"))


class Listener:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.overlong: list[tuple[bytes, bytes]] = []
        self.exits: list[Exit] = []
        self._heard = anyio.Event()

    def backend_sent(self, line: bytes) -> None:
        self.lines.append(line)
        self._wake()

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self.overlong.append((beginning, end))
        self._wake()

    def backend_exited(self, exit: Exit) -> None:
        self.exits.append(exit)
        self._wake()

    def _wake(self) -> None:
        heard, self._heard = self._heard, anyio.Event()
        heard.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(30):
            while not condition():
                await self._heard.wait()

    async def line(self, number: int = 1) -> bytes:
        """The last line, once so many have come."""
        await self.until(lambda: len(self.lines) >= number)
        return self.lines[-1]

    async def exit(self) -> Exit:
        await self.until(lambda: bool(self.exits))
        return self.exits[0]


async def eventually(condition: Callable[[], object], timeout_s: float = 30.0) -> float:
    """Waits for what sends no event; returns how long it took."""
    started = time.monotonic()
    with anyio.fail_after(timeout_s):
        while not condition():
            await anyio.sleep(0.002)
    return time.monotonic() - started


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("test")


class Running:
    """A supervisor whose processes are started by one word."""

    def __init__(self, supervisor: Supervisor, metrics: Metrics) -> None:
        self.supervisor = supervisor
        self.metrics = metrics
        self.gone: list[BackendProcess] = []

    async def start(self, server: str, *args: object, **fields: Any) -> tuple[BackendProcess, Listener]:
        process = await self.supervisor.spawn(spec_of(server, *args, **fields), self.gone.append)
        listener = Listener()
        process.attach(listener)
        return process, listener

    async def stop(self, process: BackendProcess) -> None:
        self.supervisor.stop_soon(process)
        await process.wait_gone()

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def options_of(tmp_path: Path, **fields: Any) -> SupervisorOptions:
    return SupervisorOptions(Homes(tmp_path), **{**QUICK, "limits": PipeLimits(), **fields})


@pytest.fixture
async def running(metrics, tmp_path) -> AsyncIterator[Running]:
    async with Supervisor(metrics, options_of(tmp_path)) as supervisor:
        yield Running(supervisor, metrics)
