"""YAML as the files have it: what is read, what is refused and in which line, and that writing it loses nothing."""

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text import strict_yaml
from app.text.strict_yaml import MAX_DEPTH, Unreadable, read, written

ODD = [
    "1e5",
    "010",
    "~",
    "a\nb\n",
    "|",
    "---",
    "\n",
    " \n x",
    "# c",
    "a #b",
    "x:",
    "- a",
    "%",
    "@a",
    "!x",
    "&x",
    "<<",
    "1_0",
    "0x1f",
    "yes",
    ".nan",
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(ODD)
VALUES = st.recursive(
    TEXTS
    | st.integers(-(10**15), 10**15)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300)
@given(VALUES)
def test_what_is_written_is_read_as_the_same(value):
    assert read(written(value)).value == value


@settings(max_examples=300)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(Unreadable):
        read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing", None),
        ("a: 1\nb: [true, ~, -2.5, x]", {"a": 1, "b": [True, None, -2.5, "x"]}),
        ("a: yes\nb: on\nc: 2026-01-01\nd: 12:30", {"a": "yes", "b": "on", "c": "2026-01-01", "d": "12:30"}),
        ("404: x\ntrue: y", {"404": "x", "true": "y"}),
        ('{"a": [1, "b"]}', {"a": [1, "b"]}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    assert read(text).value == value


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3", 3, "'a' stands twice here, first in line 1"),
        ("a: &x 1", 1, "anchors and aliases"),
        ("a:\n  b: *x", 2, "anchors and aliases"),
        ("<<: {a: 1}", 1, "`<<` is not supported"),
        ("a: !!int '3'", 1, "tags"),
        ("a: !!python/object/apply:os.system [x]", 1, "tags"),
        ("a: .nan", 1, ".nan is no number"),
        ("x: 1\na: -.inf", 2, "is no number"),
        ("a: 1e999", 1, "too large"),
        ("a: 010", 1, "a number to some programs"),
        ("a: 0x1F", 1, "a number to some programs"),
        ("a: 1_000", 1, "a number to some programs"),
        (f"a: {2**64}", 1, "64 bits"),
        (f"a: {-(2**63) - 1}", 1, "64 bits"),
        (f"a: {'9' * 5000}", 1, "64 bits"),
        ("a: 1\n---\nb: 2", 2, "one document"),
        ("? [a]\n: 1", 1, "the name of a member is a text"),
        ("a: 1\n\tb: 2", 2, "this is not YAML"),
        ("a: [1, 2", 2, "this is not YAML"),
        ("a: \x01", 1, "this is not YAML"),
        ("[" * 100_000, 1, f"inside of more than {MAX_DEPTH} others"),
    ],
)
@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml.CSafeLoader])
def test_what_is_refused_and_where(monkeypatch, loader, text, line, problem):
    monkeypatch.setattr(strict_yaml, "_Loader", loader)
    with pytest.raises(Unreadable) as refused:
        read(text)
    assert problem in str(refused.value)
    assert abs(refused.value.line - line) <= (1 if "not YAML" in problem else 0)


def test_a_bomb_of_anchors_is_refused_at_its_first_anchor():
    bomb = "a: &a [x, x]\n" + "".join(f"{each}: &{each} [*a, *a]\n" for each in "bcdefghij")
    with pytest.raises(Unreadable, match="anchors") as refused:
        read(bomb)
    assert refused.value.line == 1


def test_the_number_of_values_is_limited(monkeypatch):
    monkeypatch.setattr(strict_yaml, "MAX_VALUES", 50)
    with pytest.raises(Unreadable, match="at most 50 values"):
        read("\n".join(f"- {number}" for number in range(60)))


def test_each_value_has_its_line():
    text = read("a:\n  b:\n    - x\n    - {c: 1}\n")
    assert [text.line_of(path) for path in ((), ("a",), ("a", "b", 1, "c"), ("a", "b", 7))] == [1, 1, 4, 2]
