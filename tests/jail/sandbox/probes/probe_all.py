"""Probes every tier of this machine as whoever runs it, and prints what was found: `python probe_all.py TARGETS`.

TARGETS is a JSON object of `files` and `addresses`. The answer has the attempts in each tier and network, the profile
of a backend there, what the tier promises, and which limits the machine can enforce.
"""

import asyncio
import json
import sys
from dataclasses import replace
from typing import Literal

from app.domain import BackendSpec, Sandbox
from app.jail.egress.egress import Egress
from app.jail.sandbox.cgroup_roots import open_roots
from app.jail.sandbox.composer import Composer
from app.jail.sandbox.machine import Machine, examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.probes.prober import TierReport
from app.jail.sandbox.probes.probing import Probing
from app.jail.sandbox.probes.range import Targets
from app.jail.sandbox.report import view_of
from app.jail.sandbox.sandboxes import Sandboxes
from app.jail.sandbox.tiers import Tier, promised
from app.jail.sandbox.uids import OF_PROBES
from app.jail.spawner.client import SpawnerClient
from app.telemetry.metrics import Metrics


async def main() -> None:
    targets = Targets(**json.loads(sys.argv[1]))
    cgroups, spawner = open_roots(), SpawnerClient()
    try:
        machine = examine(cgroups, lambda name: OF_PROBES)
        await spawner.start()
        async with Egress(Metrics("probe")) as egress:
            composer = Composer(machine, NeedsFinder([]), egress)
            probing = Probing(spawner, composer, targets)
            tiers = {tier.value: await told(machine, composer, probing, tier) for tier in [*machine.tiers, Tier.NONE]}
        without = {tier.value: why for tier, why in machine.without.items()}
        limits = {name: machine.limits(name) for name in ("memory", "pids")}
        print(json.dumps({"tiers": tiers, "without": without, "limits": limits}))
    finally:
        await spawner.aclose()
        cgroups.close()


async def told(machine: Machine, composer: Composer, probing: Probing, tier: Tier) -> dict[str, dict]:
    """By network."""
    reports = await probing.probe(tier)
    higher = {each: "not here" for each in Tier if each > tier}
    sandboxes = Sandboxes(replace(machine, without=higher), composer, "auto", reports)
    mode: Literal["off", "auto"] = "off" if tier is Tier.NONE else "auto"
    profiles = {
        each.network: sandboxes.profile(BackendSpec("", "", "", sandbox=Sandbox(mode, network=each.network)))
        for each in reports
    }
    shown = {(each.network, each.name): each.was_denied for each in view_of("n1", sandboxes).attempts}
    return {each.network: one(each, profiles[each.network], shown) for each in reports}


def one(report: TierReport, profile, shown) -> dict:
    assert all(shown[report.network, each.name] == each.was_denied for each in report.attempts)
    return {
        "error": report.error,
        "holds_all": report.holds_all(),
        "promised": sorted(promised(report.tier, report.network)),
        "attempts": [[each.name, each.guarantee, each.was_denied, each.detail] for each in report.attempts],
        "tier": profile.tier.value,
        "enforced": sorted(profile.enforced),
        "missing": dict(profile.missing),
        "weaker": list(profile.weaker),
    }


if __name__ == "__main__":
    asyncio.run(main())
