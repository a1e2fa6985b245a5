"""Words of the command line become the arguments that a tool's schema wants."""

from typing import Any

import pytest

from app.cli.trying.arguments import arguments_of, summary, types_of
from app.errors import InvalidRequest

SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {"Level": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}},
    "properties": {
        "text": {"type": "string", "description": "What it says.\nMore."},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "loud": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "options": {"type": "object"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "level": {"$ref": "#/$defs/Level"},
        "colour": {"enum": ["red", "green"]},
        "loop": {"$ref": "#/$defs/Loop"},
        "any": {},
        "odd": True,
    },
    "required": ["text"],
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=7", "7"),
        ("text=a=b", "a=b"),
        ("text=", ""),
        ("count=7", 7),
        ("ratio=7", 7),
        ("ratio=0.5", 0.5),
        ("loud=true", True),
        ("tags=one", ["one"]),
        ('tags=["a", "b"]', ["a", "b"]),
        ("numbers=7", [7]),
        ('options={"a": [1]}', {"a": [1]}),
        ("maybe=null", None),
        ("maybe=3", 3),
        ("either=3", 3),
        ("either=three", "three"),
        ("either=true", "true"),
        ("level=3", 3),
        ("colour=red", "red"),
        ("loop=3", 3),
        ("any=3", 3),
        ("any=three", "three"),
        ("odd={}", {}),
    ],
)
def test_a_value_is_what_its_schema_says(word: str, value: object) -> None:
    name = word.partition("=")[0]
    found = arguments_of([word] if name == "text" else [word, "text=x"], SCHEMA, "say")[name]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "say needs text=string (What it says.)"),
        (["text=x", "cuont=7"], "say has no argument 'cuont'; did you mean `count`?"),
        (["text=x", "zzz=7"], "say has no argument 'zzz'; say takes text=string [count=integer]"),
        (["text=x", "7"], "'7' is not of the form name=value; say takes text=string"),
        (["text=x", "text=y"], "'text' is given twice"),
        (["text=x", "count=many"], "count must be a whole number, not 'many'"),
        (["text=x", "count=0.5"], "count must be a whole number, not '0.5'"),
        (["text=x", "count=true"], "count must be a whole number, not 'true'"),
        (["text=x", "loud=yes"], "loud must be true or false, not 'yes'"),
        (["text=x", "options=[1]"], "options must be a JSON object, not '[1]'"),
        (["text=x", "maybe=x"], "maybe must be a whole number or null, not 'x'"),
        (["text=x", "numbers=x"], "numbers must be a whole number, not 'x'"),
        (["text=@/nowhere"], "cannot read '/nowhere'"),
        (["text=x", "ratio=NaN"], "ratio must be a number, not 'NaN'"),
        (["text=x", "ratio=1e400"], "ratio cannot be sent as JSON: '1e400'"),
        (["text=x", 'options={"a": NaN}'], "options must be a JSON object, not"),
        (["text=x", 'options={"a": "\\ud800"}'], "options cannot be sent as JSON"),
        (["text=\ud800"], "text cannot be sent as JSON"),
    ],
)
def test_what_cannot_be_an_argument_is_named(words: list[str], problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        arguments_of(words, SCHEMA, "say")
    assert str(caught.value).startswith(problem)


def test_a_list_is_given_item_by_item() -> None:
    found = arguments_of(["text=x", "tags=a", "numbers=1", "tags=b", "numbers=[2, 3]"], SCHEMA, "say")
    assert found == {"text": "x", "tags": ["a", "b"], "numbers": [1, 2, 3]}


def test_a_file_gives_a_long_text(tmp_path) -> None:
    (tmp_path / "note.txt").write_text("first\nsecond\n")
    assert arguments_of([f"text=@{tmp_path}/note.txt"], SCHEMA, "say") == {"text": "first\nsecond"}
    assert arguments_of(["text=@@home"], SCHEMA, "say") == {"text": "@home"}


def test_a_tool_that_names_no_arguments_takes_any() -> None:
    for schema in ({}, {"type": "object"}, {"properties": {"a": {}}, "additionalProperties": True}):
        assert arguments_of(["b=7"], schema, "say") == {"b": 7}


def test_a_line_sums_the_arguments_up() -> None:
    assert summary(SCHEMA).startswith("text=string [count=integer] [ratio=number] [loud=boolean] [tags=array]")
    assert "[maybe=integer|null] [either=integer|string] [level=integer] [colour=string] [loop=any]" in summary(SCHEMA)
    assert summary({}) == summary({"properties": [], "required": "x"}) == ""
    assert types_of({"allOf": [{"type": "integer"}, {}]}, {}) == []
