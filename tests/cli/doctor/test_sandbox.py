"""What `trunkline doctor` says of the setting SANDBOX, by what the probes found."""

import pytest

from app.cli.doctor.findings import State
from app.cli.doctor.sandbox import _freezer, _rule
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.probes.prober import Attempt, TierReport
from app.jail.sandbox.tiers import Tier


def report(tier: Tier, *, holds: bool) -> TierReport:
    attempts = [Attempt("try it", each, holds, "") for each in ("files", "network", "processes")]
    return TierReport(tier, "none", attempts)


BASE = report(Tier.BASE, holds=True)
NO_TIER_HOLDS = [report(Tier.KERNEL, holds=False), BASE]
ONE_HOLDS = [TierReport(Tier.NAMESPACES, "none", error="no namespaces"), report(Tier.KERNEL, holds=True), BASE]


@pytest.mark.parametrize(
    ("reports", "must", "state", "words"),
    [
        (ONE_HOLDS, False, State.OK, "SANDBOX=auto: backends run in tier 1"),
        (ONE_HOLDS, True, State.OK, "SANDBOX=require: backends run in tier 1"),
        (NO_TIER_HOLDS, False, State.OK, "SANDBOX=auto: backends run in tier 0"),
        (NO_TIER_HOLDS, True, State.MISSING, "SANDBOX=require: backends run in tier 0"),
        ([], True, State.MISSING, "SANDBOX=require: backends run in tier 0"),
    ],
)
def test_the_setting_is_shown_with_the_tier_that_it_comes_to(reports, must, state, words):
    check = _rule(reports, must=must)
    assert check.name == "sandbox"
    assert check.state is state
    assert check.detail.startswith(words)
    assert bool(check.advice) is (state is State.MISSING)


def test_it_is_said_whether_idle_processes_can_stand_still():
    can = _freezer(CgroupRoots({"freezer": "/anywhere"}))
    assert (can.state, can.detail.split(";")[0]) == (State.OK, "idle sessions of servers with state can be frozen")
    cannot = _freezer(CgroupRoots(missing={"unified": "/sys/fs/cgroup: Permission denied"}))
    assert cannot.state is State.OPTIONAL
    assert cannot.detail.endswith("/sys/fs/cgroup: Permission denied")
    assert "Delegate=yes" in cannot.advice
