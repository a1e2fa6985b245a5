"""Which tier is used: the highest that holds, and a part of the sandbox rather than nothing."""

import pytest

from app.jail.sandbox.probes.prober import Attempt, TierReport, best_tier
from app.jail.sandbox.tiers import PROMISES, Tier


def report(tier: Tier, broken: str = "", error: str | None = None) -> TierReport:
    names = () if error else (*PROMISES[Tier.KERNEL], "memory")
    return TierReport(tier, "none", [Attempt(each, each, each != broken, "") for each in names], error)


BASE = report(Tier.BASE)


@pytest.mark.parametrize(
    ("reports", "tier"),
    [
        ([report(Tier.ASSISTED)], Tier.ASSISTED),
        ([report(Tier.ASSISTED, "files"), report(Tier.NAMESPACES)], Tier.NAMESPACES),
        ([report(Tier.NAMESPACES, error="no namespaces"), report(Tier.KERNEL), BASE], Tier.KERNEL),
        ([report(Tier.KERNEL, "memory"), BASE], Tier.KERNEL),  # which no tier promises
        ([report(Tier.NAMESPACES, error="none"), report(Tier.KERNEL, "processes"), BASE], Tier.KERNEL),  # Linux 6.11
        ([report(Tier.NAMESPACES, "files"), report(Tier.KERNEL, "files"), BASE], Tier.NAMESPACES),
        ([report(Tier.KERNEL, error="no Landlock"), BASE], Tier.BASE),
        ([BASE], Tier.BASE),
        ([], Tier.BASE),
    ],
)
def test_the_best_tier_is_used_also_where_none_holds_all_that_it_promises(reports, tier):
    assert best_tier(reports) is tier


def test_what_a_tier_holds_is_what_it_promises_and_was_denied():
    assert set(report(Tier.KERNEL).held()) == PROMISES[Tier.KERNEL]
    assert set(report(Tier.KERNEL, "processes").held()) == PROMISES[Tier.KERNEL] - {"processes"}
    assert not report(Tier.KERNEL, error="no Landlock").held()
    assert not report(Tier.KERNEL, "processes").holds_all()
