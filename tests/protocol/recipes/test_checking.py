"""Whether a recipe can work: each error names the step."""

from typing import Any

import pytest

from app.domain.resources.recipes import MAX_AT_ONCE, Recipe
from app.protocol.recipes.checking import checking
from app.protocol.search.work import finished
from tests.protocol.recipes.dishes import question, recipe, step

SCHEMAS: dict[str, dict[str, Any]] = {
    "say": {"type": "object", "properties": {"text": {}, "loud": {}}, "required": ["text"]},
    "any": {"type": "object"},
    "wide": {"type": "object", "properties": {"text": {}}, "additionalProperties": True},
}
NAMED = {"type": "object", "properties": {"name": {}}}


def schema_of(tool: str) -> dict[str, Any] | str:
    return SCHEMAS.get(tool, f"the toolset shows no tool {tool}")


def words(made: Recipe) -> list[str]:
    return [each.words for each in finished(checking(made, schema_of))]


def test_what_can_work_has_no_problem():
    made = recipe(
        step("a", "say", arguments={"text": "[input.name, steps.a.answer.x]"}, question=question("input.name")),
        (
            step("b", "any", condition="steps.a.result"),
            step("c", "wide", arguments={"more": 1, "text": "steps.a.text"}),
        ),
        output="[steps.b, steps.c.answer.x, input]",
        schema=NAMED,
    )
    assert words(made) == []


SAID = {"text": "'x'"}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([step("a", "gone")], "step a: the toolset shows no tool gone"),
        ([step("a", "say")], "step a: its tool needs the argument text"),
        ([step("a", "say", arguments={**SAID, "txt": 1})], "step a: its tool has no argument txt; it has text, loud"),
        ([step("a", "any", arguments={"x": "foo("})], "step a: `foo(` cannot be read"),
        ([step("a", "any", arguments={"x": ["y(input)"]})], "step a: there is no function y()"),
        ([step("a", "any", arguments={"x": "hello"})], "step a: there is no `hello`: an expression sees `input` and"),
        ([step("a", "any", condition="input.nam")], "step a: the input has no nam; it has name"),
        (
            [step("a", "any", condition="steps.b.text"), step("b", "any")],
            "step a: it needs the step b, which has not run",
        ),
        ([step("a", "any", condition="steps.a.text")], "step a: it needs the step a, which has not run"),
        (
            [(step("a", "any"), step("b", "any", condition="steps.a.text"))],
            "step b: it needs the step a, which has not",
        ),
        ([step("a", "any", arguments={"x": "steps.a.answer"})], "step a: it needs the step a, which has not run"),
        (
            [step("a", "any", arguments={"x": "steps.a.text"}, question=question())],
            "step a: it needs the step a, which has not run",
        ),
        ([step("a", "any", condition="steps.z.text")], "step a: there is no step z"),
        (
            [step("a", "any"), step("b", "any", condition="steps.a.resul")],
            "step b: a step has no `resul`; it has result",
        ),
        ([step("a", "any"), step("a", "any")], "two steps have the id a"),
        ([step("a-b", "any")], "step a-b: an id begins with a letter"),
        (
            [tuple(step(f"s{n}", "any") for n in range(MAX_AT_ONCE + 1))],
            "a recipe has 1 to 32 steps, at most 8 of them",
        ),
        ([step(f"s{n}", "any") for n in range(33)], "a recipe has 1 to 32 steps"),
        ([], "a recipe has 1 to 32 steps"),
        ([step("a", "any", arguments={"x": ["'y'"] * 201})], "a recipe has at most 200 expressions; this one has 201"),
        ([step("a", "any", question=question("steps.b"))], "step a: there is no step b"),
        ([step("a", "any", question=question(requested_schema={"type": "string"}))], "step a: a form is"),
        (
            [
                step(
                    "a",
                    "any",
                    question=question(requested_schema={"type": "object", "properties": {"f": {"type": "object"}}}),
                )
            ],
            "step a: the field f of the form",
        ),
    ],
)
def test_a_problem_names_its_step(groups, expected):
    found = words(recipe(*groups, schema=NAMED))
    assert any(each.startswith(expected) for each in found), found


def test_a_problem_says_where_it_is():
    made = recipe(step("a", "any"), (step("b", "any"), step("c", "say")), output="steps.d", schema=NAMED)
    assert [each.where for each in finished(checking(made, schema_of))] == ["steps/1/1/arguments", "output"]


def test_templates_that_are_nested_too_deeply_are_a_problem():
    nested: Any = "x"
    for _ in range(30):
        nested = {"a": nested}
    assert words(recipe(step("a", "any", arguments=nested))) == ["step a: it is nested more than 20 levels deep"]
