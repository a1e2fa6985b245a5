"""Recipes: which tool clients see."""

import pytest

from app.protocol.recipes.recipe import definition
from tests.protocol.recipes.dishes import recipe, step

READS = {"readOnlyHint": True, "openWorldHint": False}
ADDS = {"destructiveHint": False, "openWorldHint": False, "idempotentHint": True}


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ([READS, READS], (True, False, True, False)),
        ([READS, ADDS], (False, False, True, False)),
        ([READS, {}], (False, True, False, True)),
        ([ADDS, {"readOnlyHint": True}], (False, False, True, True)),
        ([{"readOnlyHint": "yes", "destructiveHint": 0}], (False, True, False, True)),
    ],
)
def test_the_annotations_are_what_is_true_of_all_steps_together(hints, expected):
    made = recipe(*[step(f"s{number}", f"t{number}") for number in range(len(hints))])
    found = definition(made, {f"t{number}": each for number, each in enumerate(hints)})["annotations"]
    assert tuple(found.values()) == expected


def test_a_tool_that_is_not_there_may_do_anything():
    found = definition(recipe(step("a", "gone")), {})
    assert found == {
        "name": "cook",
        "title": "Cook",
        "description": "Cooks",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    }
