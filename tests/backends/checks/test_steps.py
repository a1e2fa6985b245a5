"""Steps: what is told of a check while it runs."""

import pytest

from app.backends.checks.backend_check import check_backend
from app.backends.checks.steps import Begun, Step, Steps
from tests.backends.rig import NO_LIMITS
from tests.processes.rig import spec_of


def test_steps_are_counted_as_far_as_is_known() -> None:
    told: list[Begun | Step] = []
    steps = Steps(told.append)
    steps.expect("start", "ask", "count")
    with steps.timed("start"):
        assert told == [Begun("start", 1, 3)]
        assert steps.taken == []
    steps.skip("count", "never expected")
    with pytest.raises(ValueError, match="no"), steps.timed("ask"):
        raise ValueError("no")
    with steps.timed("a surprise"):
        pass
    assert [each for each in told if isinstance(each, Begun)] == [
        Begun("start", 1, 3), Begun("ask", 2, 2), Begun("a surprise", 3, 3),
    ]  # fmt: skip
    assert [each for each in told if isinstance(each, Step)] == steps.taken
    assert [each.name for each in steps.taken] == ["start", "ask", "a surprise"]


async def test_a_step_is_told_before_it_is_taken(running, make_pool):
    """Of a real server, which has tools and prompts, and no resources."""
    told: list[Begun | Step] = []
    await check_backend(await make_pool(), spec_of("offers"), NO_LIMITS, Steps(told.append))
    assert [(each.name, each.number, each.of) for each in told if isinstance(each, Begun)] == [
        ("start", 1, 5), ("initialize", 2, 5), ("tools/list", 3, 4), ("prompts/list", 4, 4),
    ]  # fmt: skip
    assert [type(each) for each in told] == [Begun, Step] * 4
