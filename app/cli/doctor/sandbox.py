"""Checks of the sandbox: the setting, and a probe in every tier, as a node runs it at its start."""

import asyncio
from collections.abc import Iterable, Sequence

from app.cli.doctor.findings import Check, State
from app.jail.egress.egress import Egress, EgressOptions
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.sandbox.composer import Composer
from app.jail.sandbox.machine import Machine, examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.probes.prober import TierReport, best_tier
from app.jail.sandbox.probes.probing import Probing
from app.jail.sandbox.probes.range import Targets
from app.jail.sandbox.probes.targets import targets_of
from app.jail.sandbox.tiers import WEAKER, Tier, promised
from app.jail.sandbox.uids import OF_PROBES
from app.jail.spawner.client import SpawnerClient, SpawnFailed
from app.processes.freezer import has_swap_now
from app.settings.settings import Settings
from app.telemetry.metrics import Metrics

PROBES_S = 180.0
_NAMES = {
    Tier.BASE: "limits of each process, no new privileges",
    Tier.KERNEL: "Landlock and seccomp",
    Tier.NAMESPACES: "namespaces, by bubblewrap",
    Tier.ASSISTED: "a user for each tenant",
}
_GROUPS = "Run as root, or in a delegated control group (systemd: Delegate=yes)."
_ADVICE = "Backends run in the highest tier that holds; docs/security.md says what each needs and protects."


def sandbox(settings: Settings | None) -> list[Check]:
    """A line for the setting, one for each tier, and one for each limit that needs control groups."""
    cgroups = open_roots()
    try:
        machine = examine(cgroups, lambda name: OF_PROBES)
        try:
            reports = asyncio.run(asyncio.wait_for(_probed(machine, settings), PROBES_S))
        except (SpawnFailed, OSError, TimeoutError) as error:
            return [Check("sandbox", State.MISSING, f"could not be probed: {error}", "Is there a limit on processes?")]
        must = settings is not None and settings.sandbox == "require"
        limits = _limits(cgroups, reports, must=must)
        return [_rule(reports, must=must), *_tiers(machine, reports), *limits, _freezer(cgroups)]
    finally:
        cgroups.close()


async def _probed(machine: Machine, settings: Settings | None) -> list[TierReport]:
    spawner, targets, forbidden = SpawnerClient(), Targets({}, {}), list[str]()
    if settings is not None:
        urls = {"the database": settings.database_url, "Redis": settings.redis_url}
        targets = targets_of((settings.host, settings.port), settings.data_dir, urls)
        forbidden = [str(settings.data_dir), str(settings.homes)]
    try:
        await spawner.start()
        async with Egress(Metrics("doctor"), EgressOptions(is_counted=False)) as egress:
            probing = Probing(spawner, Composer(machine, NeedsFinder(forbidden), egress), targets)
            return [report for tier in machine.tiers for report in await probing.probe(tier)]
    finally:
        await spawner.aclose()


def _rule(reports: Sequence[TierReport], *, must: bool) -> Check:
    """What the setting SANDBOX says, and what it comes to here."""
    tier = best_tier(reports)
    if not must:
        return Check("sandbox", State.OK, f"SANDBOX=auto: backends run in tier {tier.value}")
    what = f"SANDBOX=require: backends run in tier {tier.value}, or not where something is not enforced"
    if tier < Tier.KERNEL:
        return Check(
            "sandbox", State.MISSING, what, "No backend starts but those of exempt tenants: mend the tiers below."
        )
    return Check("sandbox", State.OK, what)


def _tiers(machine: Machine, reports: Sequence[TierReport]) -> Iterable[Check]:
    """A tier that holds without a network counts; what it is worth with another one is said."""
    for tier, what in _NAMES.items():
        name = f"sandbox tier {tier.value}"
        if tier in machine.without:
            yield Check(name, State.OPTIONAL, f"{what}: {machine.without[tier]}", _ADVICE)
            continue
        found = {report.network: report for report in reports if report.tier is tier}
        broken = {network: _broken(report) for network, report in found.items()}
        if broken["none"]:
            yield Check(name, State.OPTIONAL, f"{what}: {broken['none']}", _ADVICE)
            continue
        others = [f"with `{network}` {why}" for network, why in broken.items() if why]
        yield Check(name, State.OK, "; ".join([what, _denied(found["none"]), *others]))


def _denied(report: TierReport) -> str:
    kinds = promised(report.tier, report.network)
    count = len([each for each in report.attempts if each.guarantee in kinds])
    weaker = [words for kind, words in WEAKER.items() if not report.holds(kind)]
    but = f"; but {', '.join(weaker)}" if weaker else ""
    return f"all of {count} attempts were denied: {', '.join(sorted(kinds - WEAKER.keys()))}{but}"


def _broken(report: TierReport) -> str | None:
    reasons = (report.why_not(each) for each in sorted(promised(report.tier, report.network)))
    return next((why for why in reasons if why), None)


def _limits(cgroups: CgroupRoots, reports: Sequence[TierReport], *, must: bool) -> Iterable[Check]:
    """Memory and pids hold in every tier, or in none."""
    lacking = State.MISSING if must else State.OPTIONAL
    for guarantee in ("memory", "pids"):
        name, tried = f"sandbox {guarantee}", next((each for each in reports if each.error is None), None)
        why_not = tried.why_not(guarantee) if tried else "it was not tried"
        if guarantee not in cgroups.directories:
            why = f"not limited by the kernel: {cgroups.missing.get(guarantee, 'no control groups')}"
            yield Check(name, lacking, why, _GROUPS)
        elif why_not:
            yield Check(name, lacking, f"the limit did not hold: {why_not}", _ADVICE)
        else:
            yield Check(name, State.OK, f"limited in {cgroups.directories[guarantee]}")


def _freezer(cgroups: CgroupRoots) -> Check:
    """Whether idle sessions of servers with state can stand still."""
    if cgroups.why_not_frozen:
        what = f"idle sessions of servers with state keep running (timeouts.park_s): {cgroups.why_not_frozen}"
        return Check("freezer", State.OPTIONAL, what, _GROUPS)
    memory = "their memory goes to swap" if has_swap_now() else "they keep their memory, as there is no swap"
    return Check("freezer", State.OK, f"idle sessions of servers with state can be frozen; {memory}")
