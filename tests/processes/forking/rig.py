"""A supervisor whose processes are confined in one tier, and programs of Python for it."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from app.domain import BackendSpec
from app.jail.egress.egress import Egress, EgressOptions
from app.jail.sandbox.cgroup_roots import open_roots
from app.jail.sandbox.composer import Composer, Confined, Place
from app.jail.sandbox.machine import Machine, examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile, Tier
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor
from app.telemetry.metrics import Metrics
from tests.processes.rig import Listener, Running, eventually, options_of

BIN = Path(sys.executable).parent


class InTier:
    """Confines as a node does, in this tier. Fulfils Confiner."""

    def __init__(self, tier: Tier, composer: Composer) -> None:
        self._tier, self._composer = tier, composer

    def profile(self, spec: BackendSpec) -> Profile:
        return Profile(self._tier, spec.sandbox.network_kind)

    async def confine(self, spec: BackendSpec, place: Place) -> Confined:
        return await self._composer.compose(spec, place, self.profile(spec))


@asynccontextmanager
async def forking(tmp_path: Path, tier: Tier = Tier.KERNEL, **options: Any) -> AsyncIterator[Running]:
    metrics = Metrics("test")
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("app.processes.forking.start.FORK_S", 60.0)  # on a busy machine a fork takes seconds
        cgroups = await anyio.to_thread.run_sync(open_roots)
        stack.callback(cgroups.close)
        machine: Machine = examine(cgroups, lambda name: 60_123)
        egress = await stack.enter_async_context(Egress(metrics, EgressOptions()))
        homes = tmp_path / "homes"
        homes.mkdir()
        composer = Composer(machine, NeedsFinder([str(homes)]), egress)
        found = options_of(homes, confiner=InTier(tier, composer), **{"eof_grace_s": 10.0, **options})
        supervisor = await stack.enter_async_context(Supervisor(metrics, found))
        yield Running(supervisor, metrics)


def console_script(name: str, **fields: Any) -> BackendSpec:
    """The backend of a program that is installed beside the tests' own Python."""
    return BackendSpec("acme", name, str(BIN / name), start="fork", **fields)


def program(tmp_path: Path, code: str, *args: str, **fields: Any) -> BackendSpec:
    """The backend of a program that a test has written."""
    place = tmp_path / "program"
    place.mkdir(exist_ok=True)
    script = place / "server.py"
    script.write_text(code)
    return BackendSpec("acme", "program", sys.executable, (str(script), *args), **{"start": "fork", **fields})


async def known(running: Running, spec: BackendSpec) -> str:
    """Why its processes are not forked, once that is known."""
    process = await running.supervisor.spawn(spec, running.gone.append)
    await running.stop(process)
    forking = running.supervisor.forking
    await eventually(lambda: "being made" not in forking.why_not(spec), 100)
    return forking.why_not(spec)


async def forked(running: Running, spec: BackendSpec) -> tuple[BackendProcess, Listener]:
    """A process that is a fork; makes the template first."""
    if running.supervisor.forking.why_not(spec):
        assert await known(running, spec) == ""
    process = await running.supervisor.spawn(spec, running.gone.append)
    assert (process.origin.start, process.origin.reason) == ("fork", "")
    listener = Listener()
    process.attach(listener)
    return process, listener


async def asked(process: BackendProcess, listener: Listener, method: str, **params: Any) -> Any:
    """The result of one call."""
    number = len(listener.lines) + 1
    process.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
    answer = json.loads(await listener.line(number))
    return answer["result"]


HANDSHAKE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}

# A server that answers with what `evaluate` comes to, of the expression that it is asked.
SERVER = """
import json, sys

def serve(evaluate):
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("method") == "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "0"}}
        elif asked.get("method") == "ping":
            result = {}
        elif "id" in asked:
            result = {"value": evaluate(asked["params"]["expression"])}
        else:
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


async def value(process: BackendProcess, listener: Listener, expression: str) -> Any:
    return (await asked(process, listener, "evaluate", expression=expression))["value"]


def descriptors(pid: int) -> dict[int, str]:
    place = f"/proc/{pid}/fd"
    return {int(name): os.readlink(f"{place}/{name}") for name in os.listdir(place)}
