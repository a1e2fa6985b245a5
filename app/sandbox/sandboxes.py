"""Sandboxes: how the processes of this node are confined, and what that is worth."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import anyio.to_thread

from app.domain import BackendSpec, Guarantee, Network, Sandbox
from app.sandbox.composer import Composer, Confined, Place, group_name, unconfined
from app.sandbox.machine import Machine
from app.sandbox.probes.prober import TierReport, best_tier
from app.sandbox.rule import Platform, effective
from app.sandbox.tiers import PROMISES, Profile, Tier

GUARANTEES: tuple[Guarantee, ...] = ("files", "network", "memory", "pids", "processes")
_PORTS_ONLY = "`web` is by ports: private addresses on 80 and 443 can be reached, and any address with datagrams"
_PROCESSES_SEEN = "names and arguments of other processes can be seen"


log = logging.getLogger(__name__)


class SandboxUnavailable(Exception):
    """This node does not enforce what the backend requires. The message says what, and why."""


class Sandboxes:
    """`reports`: what the probes found, of at least every tier from the one that is used upwards. `memory_mb_of`: what
    all processes of a tenant may use together; None if there is no limit."""

    def __init__(
        self,
        machine: Machine,
        composer: Composer,
        rule: Platform,
        reports: Sequence[TierReport],
        memory_mb_of: Callable[[str], int | None] = lambda tenant: None,
    ) -> None:
        self.machine, self.reports = machine, reports
        self._composer, self._rule, self._memory_mb_of = composer, rule, memory_mb_of
        self._by_tier = {(report.tier, report.network): report for report in reports}
        self.tier = best_tier(reports)

    def failed(self) -> dict[Tier, str]:
        """Why the tiers above the one that is used are not, as far as this machine seemed to have them."""
        above = [tier for tier in self.machine.tiers if tier > self.tier]
        return {tier: self._why_not(tier) for tier in above}

    def profile(self, spec: BackendSpec) -> Profile:
        """How this backend's processes are confined here, whether or not that is what it requires."""
        sandbox = self._effective(spec)
        tier = Tier.NONE if sandbox.mode == "off" else self.tier
        missing = {each: why for each in GUARANTEES if (why := self._missing(each, spec, tier)) is not None}
        weaker = []
        if tier == Tier.KERNEL:
            weaker = [_PROCESSES_SEEN] if sandbox.network != "web" else [_PROCESSES_SEEN, _PORTS_ONLY]
        return Profile(tier, sandbox.network, frozenset(GUARANTEES) - missing.keys(), missing, tuple(weaker))

    def _missing(self, guarantee: Guarantee, spec: BackendSpec, tier: Tier) -> str | None:
        if tier is Tier.NONE:
            return "the sandbox of this backend is off"
        if guarantee in ("memory", "pids"):
            return self._unlimited(guarantee, spec)
        if guarantee not in PROMISES[tier]:
            return self._why_lower(tier)
        network: Network = spec.sandbox.network
        if guarantee == "network":
            if network == "host":
                return "network is `host`"
            if network == "web" and tier == Tier.KERNEL:
                return _PORTS_ONLY
        report = self._by_tier.get((tier, network)) or self._by_tier.get((tier, "none"))
        if report is None or report.error is not None:
            return f"the probe could not run: {report.error}" if report else "it was not probed"
        done = report.first_success(guarantee)
        return None if done is None else f"the probe could {done}"

    def _unlimited(self, guarantee: Guarantee, spec: BackendSpec) -> str | None:
        limit = spec.limits.memory_mb if guarantee == "memory" else spec.limits.pids
        if limit is None:
            return "the backend has no limit"
        return self.machine.limits(guarantee)

    def _why_lower(self, tier: Tier) -> str:
        """Why the next tier is not used."""
        return self._why_not(Tier(tier + 1))

    def _why_not(self, tier: Tier) -> str:
        if tier in self.machine.without:
            return self.machine.without[tier]
        report = self._by_tier.get((tier, "none"))
        if report is None:
            return f"tier {tier.value} was not probed"
        if report.error is not None:
            return f"tier {tier.value}: {report.error}"
        done = [report.first_success(each) for each in sorted(PROMISES[tier])]
        return f"tier {tier.value}: the probe could {next((each for each in done if each), 'try nothing')}"

    def _effective(self, spec: BackendSpec) -> Sandbox:
        return effective(spec.sandbox, self._rule, tenant_exempt=spec.sandbox_exempt)

    async def confine(self, spec: BackendSpec, place: Place) -> Confined:
        """
        Raises:
            SandboxUnavailable: this node does not enforce what the backend requires.
            SpawnFailed: the command, or something that it needs, is not there or must not be opened.
            OSError: there is no descriptor for its line to the egress proxy.
        """
        sandbox = self._effective(spec)
        profile = self.profile(spec)
        if sandbox.mode == "require":
            refuse_without(sandbox.require or GUARANTEES, profile)
        return await self._composer.compose(spec, place, profile, self._memory_mb_of(spec.tenant))

    async def limit_tenants(self, specs: Iterable[BackendSpec]) -> None:
        """Gives the control groups of running processes the limits that their tenants have now."""
        wanted = {group_name(spec): self._memory_mb_of(spec.tenant) for spec in specs}
        if "memory" in self.machine.cgroups.directories:
            await anyio.to_thread.run_sync(self._limit_tenants, wanted)

    def _limit_tenants(self, wanted: Mapping[str, int | None]) -> None:
        for name, memory_mb in wanted.items():
            try:
                self.machine.cgroups.limit_tenant(name, memory_mb)
            except OSError as error:
                log.warning("Could not limit the memory of a tenant: %s", error, extra={"group": name})


class Unconfined:
    """In the place of Sandboxes: no process is confined, but for what the spawner does for every process."""

    def profile(self, spec: BackendSpec) -> Profile:
        return Profile(Tier.NONE, "host")

    async def confine(self, spec: BackendSpec, place: Place) -> Confined:
        return Confined(unconfined(spec, place), self.profile(spec))


def refuse_without(required: Iterable[Guarantee], profile: Profile) -> None:
    """Raises SandboxUnavailable."""
    reasons = [f"{each} ({profile.missing[each]})" for each in required if each not in profile.enforced]
    if reasons:
        raise SandboxUnavailable(f"this node does not enforce {'; '.join(reasons)}")
