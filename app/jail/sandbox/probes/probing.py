"""Probes the tiers of this node: at its start down to the first that holds, for `trunkline doctor` all of them."""

import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from app.domain.resources.backends import NetworkMode
from app.jail.sandbox.composer import Composer, Confined, Place
from app.jail.sandbox.probes.prober import Attempt, Neighbour, TierReport, run, spec_of, started
from app.jail.sandbox.probes.range import Targets, shooting_range, stand_ins
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.spawner.client import SpawnerClient, SpawnFailed

NETWORKS: tuple[NetworkMode, ...] = ("none", "web", "host")


class Probing:
    """Starts probes through this spawner, in sandboxes that this composer makes."""

    def __init__(self, spawner: SpawnerClient, composer: Composer, targets: Targets) -> None:
        self._spawner, self._composer, self._targets = spawner, composer, targets

    async def until_one_holds(self, tiers: Iterable[Tier]) -> list[TierReport]:
        """From the highest tier down, with each network until a tier holds."""
        reports: list[TierReport] = []
        for tier in sorted(tiers, reverse=True):
            held = {report.network for report in reports if report.holds_all()}
            left = [network for network in NETWORKS if network not in held]
            if not left:
                break
            reports += await self.probe(tier, left)
        return reports

    async def probe(self, tier: Tier, networks: Sequence[NetworkMode] = NETWORKS) -> list[TierReport]:
        """At the same time, beside one neighbour. Never raises SpawnFailed: that is a result."""
        neighbour: asyncio.Future[Neighbour] = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, stand_ins(self._targets.addresses))
            probes = asyncio.gather(*(self._report(tier, network, neighbour) for network in networks))
            stack.callback(probes.cancel)
            try:
                home, confined = await self._confined(stack, tier, networks[0])
                beside = await stack.enter_async_context(started(self._spawner, confined))
                neighbour.set_result(Neighbour(beside.pid, home))
            except (SpawnFailed, OSError) as error:
                neighbour.set_exception(error)
            return await probes

    async def _report(self, tier: Tier, network: NetworkMode, neighbour: "asyncio.Future[Neighbour]") -> TierReport:
        try:
            return TierReport(tier, network, await self._attempts(tier, network, neighbour))
        except SpawnFailed as error:
            return TierReport(tier, network, error=f"{error.stage}: {error.message}")
        except OSError as error:
            return TierReport(tier, network, error=str(error))

    async def _attempts(
        self, tier: Tier, network: NetworkMode, neighbour: "asyncio.Future[Neighbour]"
    ) -> Sequence[Attempt]:
        async with AsyncExitStack() as stack:
            targets = await asyncio.to_thread(stack.enter_context, shooting_range(self._targets))
            _, confined = await self._confined(stack, tier, network)
            return tuple(await run(self._spawner, confined, asyncio.shield(neighbour), targets))

    async def _confined(self, stack: AsyncExitStack, tier: Tier, network: NetworkMode) -> tuple[str, Confined]:
        """With the home outside, which is removed at the end."""
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-probe-home-")))
        (directory / "tmp").mkdir()
        place = Place(str(directory), str(directory / "tmp"))
        confined = await self._composer.compose(spec_of(network), place, Profile(tier, network))
        stack.callback(confined.close)
        return str(directory), confined
