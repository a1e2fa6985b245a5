"""A hundred ways to poison a tool that was approved: none passes, whichever tool it is."""

import pytest

from app.protocol.approval import Kind, Minor, Policy, Status, ToolNames, classify, is_passed, pin
from tests.protocol.approval.ordinary import NAMES
from tests.protocol.approval.poisonings import HELD, OPEN, poisonings

OTHERS = ToolNames(NAMES)
SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hundred_of_a_hundred_are_stopped(seed: int) -> None:
    all_of_them = poisonings([*OPEN, *HELD], seed)
    missed = [each.way for each in all_of_them if classify(each.before, each.after, OTHERS).kind is not Kind.SUSPICIOUS]
    assert len(all_of_them) == 100
    assert missed == []


@pytest.mark.parametrize("minor", ["accept", "ask"])
@pytest.mark.parametrize(("policy", "is_listed"), [("block", False), ("warn", True), ("off", True)])
def test_they_are_marked_and_the_policy_decides(policy: Policy, is_listed: bool, minor: Minor) -> None:
    for each in poisonings([*OPEN, *HELD], 0):
        found = pin(each.before, each.after, OTHERS, minor=minor)
        assert found.status is Status.CHANGED
        assert is_passed(found.status, policy) is is_listed
