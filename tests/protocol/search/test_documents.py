"""Documents are read from whatever a server has sent."""

from typing import Any

import pytest

from app.protocol.search._words import term_of
from app.protocol.search.documents import (
    MAX_DEPTH,
    MAX_DESCRIPTION,
    MAX_NAME,
    MAX_PARAMETERS,
    MAX_SCHEMAS,
    Definition,
    Document,
    Source,
)

SOURCE = Source("files")


def terms(**fields: Any) -> set[str]:
    return set(Document("1", SOURCE, Definition("n", **fields)).counts)


def test_it_is_found_by_every_field() -> None:
    schema = {
        "type": "object",
        "description": "outermost",
        "properties": {
            "targetPath": {"type": "string", "description": "destination"},
            "options": {"type": "object", "properties": {"depth": {"type": "integer"}}},
            "filters": {"type": "array", "items": {"type": "object", "properties": {"owner": {}}}},
            "mode": {"anyOf": [{"description": "recursive"}, {"type": "null"}]},
        },
        "$defs": {"Colour": {"description": "chromatic"}},
    }
    found = terms(title="Tidy", description="cleans", input_schema=schema, kind="guide")
    words = "tidy cleans outermost target path destination options depth filters owner mode recursive chromatic guide"
    assert {term_of(each) for each in words.split()} <= found


def test_a_name_counts_more_than_a_description() -> None:
    document = Document("1", SOURCE, Definition("archive", description="restore"))
    assert document.counts[term_of("archive")] > document.counts[term_of("restore")] == 1


def test_the_words_of_its_source_are_not_copied() -> None:
    document = Document("1", Source("github", "GitHub", "Repositories and issues"), Definition("star"))
    assert "github" not in document.counts
    assert {"github", term_of("issues")} <= set(document.source.counts)


@pytest.mark.parametrize("odd", [None, 7, ["text"], {"a": 1}, True, 1.5, b"bytes"])
def test_what_is_no_text_counts_as_none(odd: object) -> None:
    assert terms(title=odd, description=odd, input_schema=odd) == set()
    assert not Source("", odd, odd).counts


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": ["a"]},
        {"properties": {1: {"description": 5}, "kept": None}},
        {"items": True, "anyOf": "x", "$defs": [1], "definitions": None, "description": {}},
        {"anyOf": [1, "x", None, []]},
    ],
)
def test_schemas_that_are_none_are_read_as_far_as_they_go(schema: object) -> None:
    assert terms(input_schema=schema) <= {"kept"}


def test_texts_have_an_end() -> None:
    assert terms(description="x" * (MAX_DESCRIPTION - 4) + " one two") & {"one", "two"} == set()
    assert "late" not in terms(description="word " * MAX_DESCRIPTION + "late")
    assert "late" not in terms(title="w " * MAX_NAME + "late")
    assert "late" not in terms(input_schema={"properties": {"a": {"description": "word " * MAX_PARAMETERS + "late"}}})
    many = {"properties": {f"p{number}": {"description": f"d{number}"} for number in range(100_000)}}
    assert len(terms(input_schema=many)) <= MAX_PARAMETERS


def test_schemas_within_schemas_have_an_end() -> None:
    schema: dict[str, object] = {"description": f"level{MAX_DEPTH}"}
    for level in reversed(range(MAX_DEPTH)):
        schema = {"description": f"level{level}", "items": schema}
    assert terms(input_schema=schema) == {f"level{level}" for level in range(MAX_DEPTH)}
    endless: dict[str, object] = {"description": "round"}
    endless["anyOf"] = [endless] * 50
    assert all("round".startswith(each) for each in terms(input_schema=endless))
    assert MAX_SCHEMAS < 50**2
