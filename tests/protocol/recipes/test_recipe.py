"""Recipes: how they are stored, and which tool clients see."""

import pytest

from app.protocol.recipes.recipe import as_json, definition, from_json
from tests.protocol.recipes.dishes import question, recipe, step


def test_a_method_comes_back_as_it_was_stored():
    steps = step("a", arguments={"x": ["input.y", 1]}, condition="input.z", question=question(if_declined="skip"))
    made = recipe((steps, step("b")), step("c"), output={"k": "steps.a.text"}, deadline_s=3)
    assert from_json(as_json(made.method)) == made.method


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
