"""Probes the tiers of this node: at its start down to the first that holds, for `trunkline doctor` all of them."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from app.domain import Network
from app.sandbox.composer import Composer, Confined, Place
from app.sandbox.probes.prober import Targets, TierReport, run, shooting_range, spec_of
from app.sandbox.tiers import Profile, Tier
from app.spawner.client import SpawnerClient, SpawnFailed


class Probing:
    """Starts probes through this spawner, in sandboxes that this composer makes."""

    def __init__(self, spawner: SpawnerClient, composer: Composer, targets: Targets) -> None:
        self._spawner, self._composer, self._targets = spawner, composer, targets

    async def until_one_holds(self, tiers: Sequence[Tier]) -> list[TierReport]:
        """From the highest tier down."""
        reports: list[TierReport] = []
        for tier in sorted(tiers, reverse=True):
            reports.append(await self.probe(tier, "none"))
            if reports[-1].holds_all():
                break
        return reports

    async def probe(self, tier: Tier, network: Network) -> TierReport:
        """Never raises SpawnFailed: that is a result."""
        with ExitStack() as stack:
            try:
                goals = await asyncio.to_thread(stack.enter_context, shooting_range(self._targets))
                confined, neighbour = [await self._confined(stack, tier, network) for _ in range(2)]
                attempts = await run(self._spawner, confined, neighbour, goals)
            except SpawnFailed as error:
                return TierReport(tier, network, error=f"{error.stage}: {error.message}")
            except OSError as error:
                return TierReport(tier, network, error=str(error))
        return TierReport(tier, network, tuple(attempts))

    async def _confined(self, stack: ExitStack, tier: Tier, network: Network) -> Confined:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-probe-home-")))
        (directory / "tmp").mkdir()
        place = Place(str(directory), str(directory / "tmp"))
        confined = await self._composer.compose(spec_of(network), place, Profile(tier, network))
        stack.callback(confined.close)
        return confined
