"""A fork is kept from all that a process is kept from that is executed in the same tier."""

import json
from contextlib import AsyncExitStack
from dataclasses import replace

import anyio
import pytest

from app.jail.egress.egress import Egress, EgressOptions
from app.jail.sandbox.cgroup_roots import open_roots
from app.jail.sandbox.composer import Composer, Confined, Place
from app.jail.sandbox.machine import examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.probes.prober import spec_of, started
from app.jail.sandbox.probes.probing import Probing
from app.jail.sandbox.probes.targets import targets_of
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.sandbox.uids import OF_PROBES
from app.jail.spawner import wire
from app.jail.spawner.client import SpawnerClient
from app.processes.forking._entry import entry_of
from app.processes.forking.start import Start, Task
from app.telemetry.metrics import Metrics


class ForkedProbing(Probing):
    """Starts a template for each probe, and has the probe be its fork."""

    def __init__(self, spawner, composer, targets, directory) -> None:
        super().__init__(spawner, composer, targets)
        self._made, self._directory = 0, directory

    async def _confined(self, stack: AsyncExitStack, tier, network) -> tuple[str, Confined]:
        self._made += 1
        place = self._directory / str(self._made)
        for name in ("tmp", "forks", "forks/one", "forks/one/tmp"):
            (place / name).mkdir(parents=True)
        spec, profile = spec_of(network), Profile(tier, network)
        confined = await self._composer.compose(
            spec, Place(str(place), str(place / "tmp"), forks=str(place / "forks"), is_template=True), profile
        )
        ours, theirs = wire.socket_pair()
        stack.enter_context(ours)
        entry = entry_of(spec.command, spec.args, "/usr/bin", None)
        has_rooms = tier >= Tier.NAMESPACES
        start = Start("template", task=Task("template", entry, has_rooms=has_rooms), channel=theirs.fileno())
        await stack.enter_async_context(started(self._spawner, start.applied(confined)))
        theirs.close()
        ours.setblocking(False)
        await anyio.wait_readable(ours)
        assert json.loads(ours.recv(wire.MAX_PACKET_BYTES))["findings"] == []
        home = place / "forks/one"
        confined = await self._composer.compose(spec, Place(str(home), str(home / "tmp")), profile)
        return str(home), Start("fork", channel=ours.fileno()).applied(confined)


@pytest.mark.parametrize("network", ["none", "web", "host"])
@pytest.mark.parametrize(
    "tier", [Tier.ASSISTED, Tier.NAMESPACES, Tier.KERNEL, Tier.BASE], ids=lambda tier: tier.name.lower()
)
async def test_the_probe_set_is_denied_alike(tmp_path, tier, network):
    data = tmp_path / "data"
    data.mkdir()
    targets = targets_of(("127.0.0.1", 1), data, {})
    async with AsyncExitStack() as stack:
        cgroups = await anyio.to_thread.run_sync(open_roots)
        stack.callback(cgroups.close)
        egress = await stack.enter_async_context(Egress(Metrics("test"), EgressOptions()))
        spawner = SpawnerClient()
        await spawner.start()
        stack.push_async_callback(spawner.aclose)
        composer = Composer(examine(cgroups, lambda name: OF_PROBES), NeedsFinder([str(data)]), egress)
        (executed,) = await Probing(spawner, composer, targets).probe(tier, [network])
        (forked,) = await ForkedProbing(spawner, composer, targets, tmp_path).probe(tier, [network])
    assert executed.error is forked.error is None
    tried = {each.name: each for each in executed.attempts}
    assert tried.keys() == {each.name for each in forked.attempts}
    assert len(tried) > 5
    for each in forked.attempts:
        assert each.was_denied >= tried[each.name].was_denied, each
    assert replace(forked, attempts=()) == replace(executed, attempts=())
