"""Runs programs as processes of a backend, in a tier and with a network that a test names."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain import BackendSpec, Sandbox
from app.domain.resources.backends import AllowList, NetworkMode
from app.jail.egress.egress import Egress
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.composer import Composer, Confined, Place
from app.jail.sandbox.machine import examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile, Tier
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor
from app.telemetry.metrics import Metrics
from tests.jail.sandbox.inside import NOBODYS_UID, SYSTEM_PYTHON
from tests.processes.rig import Listener, options_of


@dataclass
class InTier:
    """Confines every process by this tier, whatever the probes of this machine would say of it."""

    tier: Tier
    composer: Composer

    def profile(self, spec: BackendSpec) -> Profile:
        return Profile(self.tier, "host" if self.tier is Tier.NONE else spec.sandbox.network_kind)

    async def confine(self, spec: BackendSpec, place: Place) -> Confined:
        return await self.composer.compose(spec, place, self.profile(spec))


@dataclass
class Ended:
    """What a program has printed as JSON, the last line of it, and how it ended."""

    said: Any
    description: str
    stderr: str
    process: BackendProcess


@dataclass
class Trial:
    """A node's processes in one tier."""

    tier: Tier
    supervisor: Supervisor

    @asynccontextmanager
    async def started(
        self, argv: Sequence[str], *, network: NetworkMode | AllowList = "none", read: Sequence[str] = (), **fields: Any
    ) -> AsyncIterator[tuple[BackendProcess, Listener]]:
        """A process that runs this command."""
        sandbox = Sandbox(network=network, read=tuple(read))
        spec = BackendSpec("acme", "trial", argv[0], tuple(argv[1:]), sandbox=sandbox, **fields)
        process = await self.supervisor.spawn(spec, lambda gone: None)
        listener = Listener()
        process.attach(listener)
        try:
            yield process, listener
        finally:
            self.supervisor.stop_soon(process)
            await process.wait_gone()

    async def run(self, argv: Sequence[str], **fields: Any) -> Ended:
        """Runs a command to its end."""
        async with self.started(argv, **fields) as (process, listener):
            ended = await listener.exit()
        said = json.loads(listener.lines[-1]) if listener.lines else None
        return Ended(said, ended.description, "\n".join(ended.stderr), process)

    async def python(self, code: str, *arguments: str, program: str = SYSTEM_PYTHON, **fields: Any) -> Any:
        """What this code prints as JSON. Fails if it ends with an error."""
        done = await self.run([program, "-c", code, *arguments], **fields)
        assert done.description == "exit status 0", (done.description, done.stderr)
        return done.said


@asynccontextmanager
async def trial(tier: Tier, directory: Path, cgroups: CgroupRoots | None = None) -> AsyncIterator[Trial]:
    """`cgroups`: where its processes have groups; else they have none."""
    metrics = Metrics("test")
    machine = examine(cgroups or CgroupRoots(), lambda name: NOBODYS_UID)
    async with Egress(metrics) as egress:
        confiner = InTier(tier, Composer(machine, NeedsFinder([]), egress))
        async with Supervisor(metrics, options_of(directory, confiner=confiner, eof_grace_s=20.0)) as supervisor:
            yield Trial(tier, supervisor)
