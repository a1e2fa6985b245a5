"""Sandboxes: how the processes of this node are confined, and what that is worth."""

import errno
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import anyio.to_thread

from app.domain import BackendSpec, Guarantee, Network, Sandbox
from app.jail.sandbox.composer import Composer, Confined, Place, group_name, unconfined
from app.jail.sandbox.machine import Machine
from app.jail.sandbox.probes.prober import TierReport, best_tier
from app.jail.sandbox.tiers import PORTS_ONLY, PROBED_AS, WEAKER, Profile, Tier, promised
from app.jail.spawner.client import SpawnFailed

Platform = Literal["auto", "require"]  # the setting SANDBOX


def effective(sandbox: Sandbox, platform: Platform, *, tenant_exempt: bool) -> Sandbox:
    """The sandbox of a backend under the rule of the platform.

    `require` of the platform turns `auto` and `off` into `require` of all guarantees. A backend that requires only
    some of them keeps its list, which a platform administrator wrote.
    """
    if platform == "auto" or tenant_exempt or sandbox.mode == "require":
        return sandbox
    return replace(sandbox, mode="require", require=())


GUARANTEES: tuple[Guarantee, ...] = ("files", "network", "memory", "pids", "processes")

CONTAINED = "a container engine confines it, which no probe has tried"
CONTAINER_STAGE = "container engine"  # of a report that no container was started

log = logging.getLogger(__name__)


class SandboxUnavailable(Exception):
    """This node does not enforce what the backend requires. The message says what, and why."""


Contain = Callable[[BackendSpec, Profile], Awaitable[Confined]]


async def no_containers(spec: BackendSpec, profile: Profile) -> Confined:
    """On a node without a container engine. Raises SpawnFailed."""
    words = f"{spec.name} runs in a container, and this node has no engine for those (CONTAINER_ENGINE)"
    raise SpawnFailed(errno.ENOENT, CONTAINER_STAGE, words)


class Sandboxes:
    """`reports`: what the probes found with each network, of at least every tier from the one that is used upwards.
    `memory_mb_of`: what all processes of a tenant may use together; None if there is no limit. `contain`: what starts
    an image."""

    def __init__(
        self,
        machine: Machine,
        composer: Composer,
        rule: Platform,
        reports: Sequence[TierReport],
        memory_mb_of: Callable[[str], int | None] = lambda tenant: None,
        contain: Contain = no_containers,
    ) -> None:
        self.machine, self.reports, self.rule = machine, reports, rule
        self._composer, self._memory_mb_of, self._contain = composer, memory_mb_of, contain
        self._by_tier: dict[tuple[Tier, Network], TierReport] = {(each.tier, each.network): each for each in reports}

    @property
    def tier(self) -> Tier:
        """That of a backend without a network."""
        return self.tier_of("none")

    def tier_of(self, network: Network) -> Tier:
        """That of a backend with this network."""
        return best_tier(self.reports, PROBED_AS.get(network, network))

    def failed(self) -> dict[Tier, str]:
        """Why the tiers above the one that is used are not, as far as this machine seemed to have them."""
        above = [tier for tier in self.machine.tiers if tier > self.tier]
        return {tier: self._why_not(tier, "none") for tier in above}

    def profile(self, spec: BackendSpec) -> Profile:
        """How this backend's processes are confined here, whether or not that is what it requires."""
        if spec.is_image:
            return Profile(Tier.NONE, spec.sandbox.network_kind, missing=dict.fromkeys(GUARANTEES, CONTAINED))
        sandbox = self._effective(spec)
        if sandbox.mode == "off":
            missing = dict.fromkeys(GUARANTEES, "the sandbox of this backend is off")
            return Profile(Tier.NONE, "host", missing=missing)
        network = sandbox.network_kind
        tier = self.tier_of(network)
        found = {each: self._missing(each, spec, tier) for each in GUARANTEES}
        missing = {each: why for each, why in found.items() if why is not None}
        weaker = self._weaker(tier, network)
        return Profile(tier, network, frozenset(GUARANTEES) - missing.keys(), missing, weaker)

    def _report(self, tier: Tier, network: Network) -> TierReport | None:
        return self._by_tier.get((tier, PROBED_AS.get(network, network)))

    def _weaker(self, tier: Tier, network: Network) -> tuple[str, ...]:
        report = self._report(tier, network)
        words = [each for name, each in WEAKER.items() if report is None or not report.holds(name)]
        return (*words, PORTS_ONLY[network]) if tier is Tier.KERNEL and network in PORTS_ONLY else tuple(words)

    def _missing(self, guarantee: Guarantee, spec: BackendSpec, tier: Tier) -> str | None:
        network = spec.sandbox.network_kind
        if guarantee in ("memory", "pids"):
            why = self._unlimited(guarantee, spec)
            if why is not None:
                return why
        elif guarantee not in promised(tier, network):
            return self._why_not_promised(guarantee, tier, network)
        report = self._report(tier, network)
        return "it was not probed" if report is None else report.why_not(guarantee)

    def _unlimited(self, guarantee: Guarantee, spec: BackendSpec) -> str | None:
        limit = spec.limits.memory_mb if guarantee == "memory" else spec.limits.pids
        if limit is None:
            return "the backend has no limit"
        return self.machine.limits(guarantee)

    def _why_not_promised(self, guarantee: Guarantee, tier: Tier, network: Network) -> str:
        if guarantee == "network" and network == "host":
            return "network is `host`"
        if guarantee == "network" and tier is Tier.KERNEL:
            return PORTS_ONLY[network]
        return self._why_not(Tier(tier + 1), network)

    def _why_not(self, tier: Tier, network: Network) -> str:
        if tier in self.machine.without:
            return self.machine.without[tier]
        report = self._report(tier, network)
        if report is None:
            return f"tier {tier.value} was not probed"
        reasons = (report.why_not(each) for each in sorted(promised(tier, network)))
        return f"tier {tier.value}: {next((why for why in reasons if why), 'it was not used')}"

    def _effective(self, spec: BackendSpec) -> Sandbox:
        return effective(spec.sandbox, self.rule, tenant_exempt=spec.sandbox_exempt)

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
        if spec.is_image:
            return await self._contain(spec, profile)
        memory_mb, is_asked = self._memory_mb_of(spec.tenant), self._may_ask_a_proxy(spec, profile)
        return await self._composer.compose(spec, place, profile, memory_mb, with_deaf_proxy=is_asked)

    def _may_ask_a_proxy(self, spec: BackendSpec, profile: Profile) -> bool:
        """Whether a check is to find out if the process would use the proxy of `web`, which is as confined here."""
        tier = profile.tier
        return (
            spec.missed_log is not None and profile.network == "none" and Tier.NAMESPACES <= tier <= self.tier_of("web")
        )

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
        return Confined(await unconfined(spec, place), self.profile(spec))


def refuse_without(required: Iterable[Guarantee], profile: Profile) -> None:
    """Raises SandboxUnavailable."""
    reasons = [f"{each} ({profile.missing[each]})" for each in required if each not in profile.enforced]
    if reasons:
        raise SandboxUnavailable(f"this node does not enforce {'; '.join(reasons)}")
