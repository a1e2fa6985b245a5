"""Which tier a backend gets, what is said of it, and which backends are refused: from what probes found."""

from dataclasses import replace

import pytest

from app.domain import BackendSpec, Package, ProcessLimits, Sandbox
from app.jail.egress.egress import Egress
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.composer import Composer, Place
from app.jail.sandbox.machine import Machine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.probes.prober import Attempt, TierReport
from app.jail.sandbox.report import of_backend, view_of
from app.jail.sandbox.sandboxes import (
    CONTAINED,
    CONTAINER_STAGE,
    GUARANTEES,
    Sandboxes,
    SandboxUnavailable,
    Unconfined,
)
from app.jail.sandbox.tiers import PORTS_ONLY, WEAKER, Tier, promised
from app.jail.spawner.client import SpawnFailed
from app.telemetry.metrics import Metrics

NETWORKS = ("none", "web", "host")
MACHINE = Machine(
    is_root=False,
    landlock_abi=7,
    bubblewrap=None,
    cgroups=CgroupRoots({"memory": "/memory", "pids": "/pids"}, {}),
    without={Tier.ASSISTED: "it is not root"},
)


def report(tier: Tier, network="none", *done: str, error: str | None = None) -> TierReport:
    """A probe that was denied all that the tier promises, and the limits, but for the guarantees in `done`."""
    if error is not None:
        return TierReport(tier, network, error=error)
    tried = {*promised(tier, network), *done, "memory", "pids"}
    return TierReport(tier, network, [Attempt(f"break {each}", each, each not in done, "") for each in sorted(tried)])


def sandboxes(*reports: TierReport, machine: Machine = MACHINE, rule="auto") -> Sandboxes:
    composer = Composer(machine, NeedsFinder([]), Egress(Metrics("test")))
    return Sandboxes(machine, composer, rule, reports)


def spec(network="none", **fields) -> BackendSpec:
    return BackendSpec("acme", "echo", "true", sandbox=Sandbox(network=network), **fields)


HELD = tuple(report(Tier.NAMESPACES, network) for network in NETWORKS)


@pytest.mark.parametrize(
    ("network", "missing"), [("none", {}), ("web", {}), ("host", {"network": "network is `host`"})]
)
def test_what_held_is_enforced(network, missing):
    profile = sandboxes(*HELD).profile(spec(network))
    assert (profile.tier, profile.network, profile.missing, profile.weaker) == (Tier.NAMESPACES, network, missing, ())
    assert profile.enforced == set(GUARANTEES) - missing.keys()


def test_the_next_tier_is_used_where_one_attempt_has_succeeded():
    found = sandboxes(report(Tier.NAMESPACES, "none", "files"), report(Tier.KERNEL))
    profile = found.profile(spec())
    assert (found.tier, profile.tier, profile.weaker) == (Tier.KERNEL, Tier.KERNEL, tuple(WEAKER.values()))
    assert found.failed() == {Tier.NAMESPACES: "tier 2: the probe could break files"}


def test_a_tier_is_left_whose_probe_tried_nothing_or_could_not_run():
    assert sandboxes(TierReport(Tier.NAMESPACES, "none"), report(Tier.KERNEL)).tier is Tier.KERNEL
    broken = sandboxes(report(Tier.NAMESPACES, error="exec: no"), report(Tier.KERNEL))
    assert (broken.tier, broken.failed()) == (
        Tier.KERNEL,
        {Tier.NAMESPACES: "tier 2: the probe could not run: exec: no"},
    )


def test_each_network_rests_on_its_own_probe():
    found = sandboxes(HELD[0], report(Tier.NAMESPACES, "web", "network"), report(Tier.KERNEL, "web"))
    assert found.profile(spec()).tier is Tier.NAMESPACES
    profile = found.profile(spec("web"))
    assert (profile.tier, profile.missing) == (Tier.KERNEL, {"network": PORTS_ONLY["web"]})
    assert profile.weaker == (*WEAKER.values(), PORTS_ONLY["web"])


def test_nothing_is_claimed_that_was_not_tried():
    profile = sandboxes().profile(spec())
    assert (profile.tier, profile.enforced) == (Tier.BASE, frozenset())
    assert profile.missing["files"] == "tier 1 was not probed"
    assert profile.missing["memory"] == "it was not probed"
    untried = TierReport(Tier.BASE, "none", report(Tier.BASE).attempts[:1])
    assert "memory" not in sandboxes(untried).profile(spec()).enforced


def test_the_base_says_why_it_is_no_more():
    machine = replace(MACHINE, without=dict.fromkeys([Tier.KERNEL, Tier.NAMESPACES, Tier.ASSISTED], "no Landlock"))
    profile = sandboxes(report(Tier.BASE), machine=machine).profile(spec())
    assert profile.enforced == {"memory", "pids"}
    assert profile.missing == dict.fromkeys(["files", "network", "processes"], "no Landlock")


@pytest.mark.parametrize("guarantee", ["memory", "pids"])
def test_a_limit_that_the_probe_passed_is_not_enforced(guarantee):
    profile = sandboxes(report(Tier.NAMESPACES, "none", guarantee)).profile(spec())
    assert profile.tier is Tier.NAMESPACES
    assert profile.missing == {guarantee: f"the probe could break {guarantee}"}


def test_limits_need_control_groups_and_a_number():
    machine = replace(MACHINE, cgroups=CgroupRoots({}, {"memory": "read-only"}))
    assert sandboxes(*HELD, machine=machine).profile(spec()).missing == {
        "memory": "read-only",
        "pids": "no control groups",
    }
    unlimited = spec(limits=ProcessLimits(memory_mb=None, pids=None))
    assert set(sandboxes(*HELD).profile(unlimited).missing) == {"memory", "pids"}


OFF = BackendSpec("acme", "echo", "true", sandbox=Sandbox("off"))


@pytest.mark.parametrize("rule", ["auto", "require"])
@pytest.mark.parametrize("is_exempt", [False, True])
def test_off_is_off_but_for_the_platforms_rule(rule, is_exempt):
    found, off = sandboxes(*HELD, rule=rule), replace(OFF, sandbox_exempt=is_exempt)
    is_confined = rule == "require" and not is_exempt
    profile, shown = found.profile(off), of_backend(view_of("n1", found), off)
    assert profile.tier is (Tier.NAMESPACES if is_confined else Tier.NONE)
    assert (shown.tier, sorted(shown.enforced)) == (profile.tier, sorted(profile.enforced))
    assert set(shown.missing) == set(profile.missing) == (set() if is_confined else set(GUARANTEES))


async def test_a_backend_that_requires_more_than_is_enforced_is_refused_with_the_reasons():
    found = sandboxes(report(Tier.NAMESPACES, "none", "memory"), HELD[2])
    place = Place("/tmp", "/tmp")
    with pytest.raises(SandboxUnavailable, match=r"enforce memory \(the probe could break memory\)$"):
        await found.confine(BackendSpec("acme", "x", "true", sandbox=Sandbox("require")), place)
    required = Sandbox("require", ("files", "network"), network="host")
    with pytest.raises(SandboxUnavailable, match=r"enforce network \(network is `host`\)$"):
        await found.confine(BackendSpec("acme", "x", "true", sandbox=required), place)


async def test_the_rule_of_the_platform_refuses_where_the_backend_does_not():
    found = sandboxes(report(Tier.BASE), machine=replace(MACHINE, without={}), rule="require")
    with pytest.raises(SandboxUnavailable, match="files"):
        await found.confine(OFF, Place("/tmp", "/tmp"))
    confined = await found.confine(replace(OFF, sandbox_exempt=True), Place("/tmp", "/tmp"))
    assert (confined.profile.tier, confined.command.confinement) == (Tier.NONE, {})


@pytest.mark.parametrize(
    ("network", "is_check", "tier_of_web", "has_proxy"),
    [
        ("none", True, Tier.NAMESPACES, True),
        ("none", False, Tier.NAMESPACES, False),
        ("none", True, Tier.KERNEL, False),  # `web` is a matter of ports there
        ("host", True, Tier.NAMESPACES, False),
    ],
)
async def test_only_a_check_has_a_proxy_that_refuses_everything(monkeypatch, network, is_check, tier_of_web, has_proxy):
    told = []

    async def compose(*arguments, **options):
        told.append(options)

    found = sandboxes(report(Tier.NAMESPACES), report(tier_of_web, "web"), report(Tier.NAMESPACES, "host"))
    monkeypatch.setattr(Composer, "compose", compose)
    await found.confine(spec(network, missed_log=1 if is_check else None), Place("/home", "/tmp"))
    assert told == [{"with_deaf_proxy": has_proxy}]


async def test_unconfined_is_said_to_be_nothing():
    confined = await Unconfined().confine(spec(), Place("/tmp", "/tmp"))
    assert (confined.profile.tier, confined.profile.network, confined.profile.enforced) == (
        Tier.NONE,
        "host",
        frozenset(),
    )


# --- images


def image(**sandbox) -> BackendSpec:
    package = Package("oci", "mcp/time", "latest", "", "a" * 64)
    return BackendSpec("acme", "time", "docker", args=("run", "mcp/time"), package=package, sandbox=Sandbox(**sandbox))


def test_of_a_container_nothing_is_claimed():
    for found in (sandboxes(*HELD), sandboxes(*HELD, rule="require")):
        profile = found.profile(image())
        assert (profile.tier, profile.network, profile.enforced) == (Tier.NONE, "none", frozenset())
        assert profile.missing == dict.fromkeys(GUARANTEES, CONTAINED)


@pytest.mark.parametrize(("rule", "spec"), [("require", image()), ("auto", image(mode="require", require=("files",)))])
async def test_no_image_starts_where_a_guarantee_is_required(rule, spec):
    with pytest.raises(SandboxUnavailable, match="a container engine confines it, which no probe has tried"):
        await sandboxes(*HELD, rule=rule).confine(spec, Place("/h", "/t"))


async def test_a_node_without_an_engine_starts_no_image():
    with pytest.raises(SpawnFailed, match="this node has no engine") as caught:
        await sandboxes(*HELD).confine(image(), Place("/h", "/t"))
    assert caught.value.stage == CONTAINER_STAGE
