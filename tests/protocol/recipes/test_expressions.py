"""Expressions: JMESPath whose work is bounded, and what it reads."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.recipes.expressions import (
    FUEL,
    MAX_EXPRESSION,
    BadExpression,
    Fuel,
    expressions_in,
    filled,
    is_true,
    paths_in,
    value_of,
)

SCOPE = {
    "input": {"name": "a", "many": list(range(50_000)), "rows": [{"x": n, "s": "y" * 50} for n in range(3000)]},
    "steps": {"one": {"result": {"items": [1, 2, 3]}, "text": "t", "answer": None, "skipped": False}},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("input.name", "a"),
        ("'input.name'", "input.name"),
        ("steps.one.result.items[-1]", 3),
        ("sum(steps.one.result.items)", 6),
        ("sort_by(input.rows, &x)[-1].x", 2999),
        ("max_by(input.rows[:5], &x).x", 4),
        ("length(input.many)", 50_000),
        ("input.none", None),
        ("input.rows == input.rows", True),
        ("steps.one.result.items[] | [?@ > `1`]", [2, 3]),
        ("{n: input.name, l: [input.name]}", {"n": "a", "l": ["a"]}),
        ("input.many[1:3]", [1, 2]),
        ("`[1]` | contains(@, `1`)", True),
        ("input.none.{a: b}", None),
        ("input.none.[a]", None),
    ],
)
def test_an_expression_has_the_value_that_jmespath_gives_it(expression, value):
    assert value_of(expression, SCOPE, Fuel()) == value


@pytest.mark.parametrize(
    "expression",
    [
        "[@,@][]|" * 100 + "@",
        "[@,@]|" * 120 + "to_string(@)",
        "{a:@,b:@}|" * 80 + "@ == @",
        "input.many[*].[@,@]",
        "input.rows[*].[x,x,x,x,x,x,x,x,x,x]|[*][*]|length(@)",
        "join('', map(&join('', [s,s,s]), input.rows))",
        "[input.many,input.many][]|" + "[@,@][]|" * 20 + "length(@)",
        "||".join(["!to_string(input)"] * 40),
    ],
    ids=lambda expression: expression[:30],
)
def test_too_much_work_is_an_error_within_moments(expression):
    began = time.thread_time()
    with pytest.raises(BadExpression):
        value_of(expression, SCOPE, Fuel())
    assert time.thread_time() - began < 1.0  # some 20 ms


def test_what_burns_as_much_as_there_is_works():
    fuel = Fuel(10)
    fuel.burn(10)
    with pytest.raises(BadExpression):
        fuel.burn(1)
    with pytest.raises(BadExpression):
        Fuel(FUEL).weigh("x" * (FUEL * 256))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("foo(", "cannot be read"),
        ("'a' < `1`", "has no value"),
        ("abs('a')", "has no value"),
        ("(" * 900, "cannot be read"),
        ("a" * (MAX_EXPRESSION + 1), "at most 1000 characters"),
    ],
)
def test_what_cannot_be_read_or_has_no_value_is_named_in_one_line(expression, words):
    with pytest.raises(BadExpression, match=words) as caught:
        value_of(expression, {}, Fuel())
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "paths"),
    [
        ("input.a", [("input", "a")]),
        ("steps.a.result.items[0].x", [("steps", "a", "result", "items")]),
        ("steps.b.result[?x > `1`].y | [0]", [("steps", "b", "result")]),
        ("join('', [input.a, steps.c.text])", [("input", "a"), ("steps", "c", "text")]),
        ("input.a || steps.z.answer", [("input", "a"), ("steps", "z", "answer")]),
        ("{a: input.x, b: steps}", [("input", "x"), ("steps",)]),
        ('steps."a".result', [("steps", "a", "result")]),
        ("length(steps.*.result)", [("steps",)]),
        ("input.rows[*].{a: b}", [("input", "rows")]),
        ("sort_by(input.rows, &x)", [("input", "rows")]),
        ("input.a == steps.b.text", [("input", "a"), ("steps", "b", "text")]),
        ("'text'", []),
        ("@", [()]),
    ],
)
def test_what_an_expression_reads(expression, paths):
    assert list(paths_in(expression)) == paths


def test_unknown_functions_are_found_before_they_are_called():
    with pytest.raises(BadExpression, match="no function nofn"):
        list(paths_in("input.a[?nofn(@)]"))


def test_templates_are_filled_at_any_depth_and_only_strings_are_expressions():
    template = {"a": "input.name", "b": [1, True, None, {"c": "'text'"}]}
    assert filled(template, SCOPE, Fuel()) == {"a": "a", "b": [1, True, None, {"c": "text"}]}
    assert list(expressions_in(template)) == ["input.name", "'text'"]
    nested: object = "x"
    for _ in range(21):
        nested = [nested]
    with pytest.raises(BadExpression, match="levels deep"):
        list(expressions_in(nested))


@pytest.mark.parametrize(
    ("value", "truth"), [(None, False), (False, False), ("", False), ([], False), ({}, False), (0, True), ("a", True)]
)
def test_what_is_true(value, truth):
    assert is_true(value) is truth


@given(st.text(alphabet="abi.[]|@*&`'(){},:!<=>?0 \"", max_size=40))
def test_no_text_does_anything_but_have_a_value_or_be_bad(text):
    scope = {"a": [1, "b", {"i": None}], "b": {"a": "x"}, "i": 0}
    for work in (lambda: value_of(text, scope, Fuel()), lambda: list(paths_in(text))):
        try:
            work()
        except BadExpression:
            continue
