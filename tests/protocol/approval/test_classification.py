"""What is the same, what is a harmless edit, and what is not: one case for each rule."""

import time
from copy import deepcopy
from typing import Any

import pytest

from app.protocol.approval import Kind, Reason, ToolNames, classify
from app.protocol.approval._change import MAX_FINDINGS, SENTENCES
from tests.protocol.approval.ordinary import HARMLESS, NAMES, ORDINARY

OTHERS = ToolNames(NAMES)
TOOL = ORDINARY[0]


def with_change(**members: Any) -> dict[str, Any]:
    return {**deepcopy(TOOL), **members}


def with_parameter(before: dict[str, Any], after: dict[str, Any]) -> tuple[Reason, ...]:
    """The reasons, where a parameter's schema changes so."""
    one, other = (
        {"name": "a", "inputSchema": {"type": "object", "properties": {"p": each}}} for each in (before, after)
    )
    return classify(one, other, OTHERS).reasons


def test_the_same_definition_is_the_same() -> None:
    assert classify(TOOL, deepcopy(TOOL), OTHERS).kind is Kind.SAME
    assert classify({"name": "a", "n": 1}, {"n": 1.0, "name": "a"}, OTHERS).kind is Kind.SAME


@pytest.mark.parametrize("edit", HARMLESS, ids=lambda edit: edit.name)
def test_an_edit_of_the_wording_is_harmless(edit: Any) -> None:
    for tool in ORDINARY:
        after = deepcopy(tool)
        edit.apply(after)
        if after != tool:
            change = classify(tool, after, OTHERS)
            assert (change.kind, change.findings) == (Kind.HARMLESS, ()), tool["name"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"type": "string"}, {"type": "string", "maxLength": 10}),
        ({"type": "string"}, {"type": "string", "minLength": 1}),
        ({"type": "number"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"type": "string"}),
        ({"type": "integer", "maximum": 9}, {"type": "integer", "maximum": 8, "minimum": 0}),
        ({"enum": ["a", "b", "c"]}, {"enum": ["c", "a"]}),
        ({"type": "object"}, {"type": "object", "additionalProperties": False}),
        ({"type": "object", "additionalProperties": True}, {"type": "object", "additionalProperties": {}}),
        ({"required": ["a", "b"]}, {"required": ["b", "a"]}),
        ({}, {"required": [], "default": None, "properties": {}}),
        ({"examples": ["a", "b"]}, {"examples": ["a"]}),
        ({}, {"$schema": "https://json-schema.org/draft/2020-12/schema"}),
        ({"items": {"type": "string"}}, {"items": {"type": "string", "maxLength": 3}}),
    ],
)
def test_a_tighter_limit_is_harmless(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert with_parameter(before, after) == ()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({"properties": {}}, {"properties": {"b": {}}}, Reason.NEW_PARAMETER),
        ({"properties": {"b": {}}}, {}, Reason.REMOVED_PARAMETER),
        ({"properties": {"title": {}}}, {"properties": {"title": {}, "description": {}}}, Reason.NEW_PARAMETER),
        ({"required": ["b"]}, {}, Reason.LOOSENED),
        ({}, {"required": ["b"]}, Reason.REQUIRED),
        ({"type": "string"}, {}, Reason.LOOSENED),
        ({"type": "integer"}, {"type": "number"}, Reason.LOOSENED),
        ({"type": "string"}, {"type": ["string", "null"]}, Reason.LOOSENED),
        ({"type": "string"}, {"type": "text"}, Reason.SCHEMA),
        ({"maxLength": 5}, {"maxLength": 6}, Reason.LOOSENED),
        ({"maxLength": 5}, {}, Reason.LOOSENED),
        ({"minimum": 5}, {"minimum": 4}, Reason.LOOSENED),
        ({}, {"minLength": 500}, Reason.SCHEMA),
        ({"maximum": 5}, {"maximum": "six"}, Reason.SCHEMA),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, Reason.LOOSENED),
        ({"enum": ["a"]}, {}, Reason.LOOSENED),
        ({"enum": [1]}, {"enum": [True]}, Reason.LOOSENED),
        ({"enum": ["a", "b"]}, {"enum": ["b"]}, Reason.VALUE),
        ({}, {"enum": ["a", "b"]}, Reason.VALUE),
        ({"pattern": "a"}, {}, Reason.LOOSENED),
        ({}, {"pattern": "a"}, Reason.VALUE),
        ({"default": 1}, {"default": 2}, Reason.VALUE),
        ({}, {"const": 1}, Reason.VALUE),
        ({"examples": [1]}, {"examples": [1, 2]}, Reason.VALUE),
        ({"additionalProperties": False}, {}, Reason.LOOSENED),
        ({"additionalProperties": {"type": "string"}}, {"additionalProperties": {}}, Reason.LOOSENED),
        ({"items": {"type": "string"}}, {}, Reason.LOOSENED),
        ({"items": {"type": "string"}}, {"items": {}}, Reason.LOOSENED),
        ({"anyOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, Reason.LOOSENED),
        ({"anyOf": [{"maximum": 1}]}, {"anyOf": [{"maximum": 2}]}, Reason.LOOSENED),
        ({"allOf": [{"maximum": 1}]}, {}, Reason.SCHEMA),
        ({"$ref": "#/a"}, {"$ref": "#/b"}, Reason.SCHEMA),
        ({"$defs": {"a": {}}}, {"$defs": {"a": {}, "b": {}}}, Reason.SCHEMA),
        ({"$defs": {"a": {"enum": [1, 2]}}}, {"$defs": {"a": {}}}, Reason.LOOSENED),
        ({"not": {"maximum": 1}}, {"not": {"maximum": 2}}, Reason.SCHEMA),
        ({}, {"keyword-of-tomorrow": 1}, Reason.SCHEMA),
        ({}, {"$schema": "urn:own"}, Reason.SCHEMA),
        ({}, {"x-mcp-header": "Region"}, Reason.SCHEMA),
        ({"description": "a"}, {"description": ["a"]}, Reason.SCHEMA),
        ({"properties": {}}, {"properties": ["a"]}, Reason.SCHEMA),
        ({"required": ["a"]}, {"required": True}, Reason.SCHEMA),
    ],
)  # fmt: skip
def test_other_changes_of_a_schema_need_a_person(before: dict[str, Any], after: dict[str, Any], reason: Reason) -> None:
    assert reason in with_parameter(before, after)


@pytest.mark.parametrize("place", ["/inputSchema", "/outputSchema"])
def test_a_schema_that_is_none_is_a_change(place: str) -> None:
    assert classify(TOOL, with_change(**{place[1:]: "any"}), OTHERS).reasons
    assert classify(with_change(**{place[1:]: ["a"]}), with_change(**{place[1:]: ["b"]}), OTHERS).reasons


def test_any_other_output_needs_a_person() -> None:
    without = {name: value for name, value in TOOL.items() if name != "outputSchema"}
    assert classify(TOOL, without, OTHERS).reasons == (Reason.OUTPUT_SCHEMA,)
    more = deepcopy(TOOL)
    more["outputSchema"]["properties"]["next"] = {"type": "string"}
    assert classify(TOOL, more, OTHERS).reasons == (Reason.OUTPUT_SCHEMA,)


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ({}, {"destructiveHint": True, "readOnlyHint": False, "idempotentHint": False, "openWorldHint": True}, True),
        ({"readOnlyHint": True}, {"readOnlyHint": True, "destructiveHint": False}, True),
        (None, {}, True),
        ({"title": "Read it"}, {"title": "Read it."}, True),
        ({}, {"destructiveHint": False}, False),
        ({}, {"readOnlyHint": True}, False),
        ({"readOnlyHint": True}, {}, False),
        ({}, {"openWorldHint": False}, False),
        ({}, {"idempotentHint": True}, False),
        ({}, {"readOnlyHint": "yes"}, False),
        ({}, {"trusted": True}, False),
        ({}, ["readOnlyHint"], False),
    ],
)
def test_hints_count_by_what_clients_take_them_for(before: Any, after: Any, is_same: bool) -> None:
    change = classify(with_change(annotations=before), with_change(annotations=after), OTHERS)
    assert change.reasons == (() if is_same else (Reason.ANNOTATION,))


@pytest.mark.parametrize(
    ("members", "is_same"),
    [
        ({"execution": {"taskSupport": "forbidden"}}, True),
        ({"execution": {"taskSupport": "required"}}, False),
        ({"_meta": {}}, True),
        ({"_meta": {"ui": {"resourceUri": "ui://other/page"}}}, False),
        ({"icons": []}, True),
        ({"icons": [{"src": "data:image/png;base64,AA=="}]}, False),
        ({"of_tomorrow": 1}, False),
    ],
)
def test_every_other_member_is_pinned(members: dict[str, Any], is_same: bool) -> None:
    assert (Reason.MEMBER in classify(TOOL, with_change(**members), OTHERS).reasons) is not is_same


def test_an_order_that_is_gone_needs_a_person() -> None:
    with_order = with_change(description=f"{TOOL['description']} Never use it on files of other people.")
    assert classify(with_order, TOOL, OTHERS).reasons == (Reason.INSTRUCTION,)


def test_an_order_that_was_approved_may_move() -> None:
    order = "Always give the full path."
    before, after = with_change(description=f"{TOOL['description']} {order}"), with_change()
    after["inputSchema"]["properties"]["path"]["description"] += f" {order}"
    assert classify(before, after, OTHERS).kind is Kind.HARMLESS


def test_many_new_words_are_more_than_an_edit() -> None:
    more = "Dusk lends amber hues wherever quiet rivers bend round mossy stone under pale lanterns."
    assert classify(TOOL, with_change(description=f"{TOOL['description']} {more}"), OTHERS).reasons == (Reason.GROWTH,)


def test_what_is_too_large_needs_a_person() -> None:
    large = with_change(description="a" * 200_000)
    for before, after in ((TOOL, large), (large, TOOL), (large, large)):
        assert classify(before, after, OTHERS).reasons == (Reason.TOO_LARGE,)


def test_findings_are_bounded_and_say_where() -> None:
    many = deepcopy(TOOL)
    many["inputSchema"]["properties"] |= {f"p{number}/": {"type": "string"} for number in range(200)}
    change = classify(TOOL, many, OTHERS)
    assert len(change.findings) == MAX_FINDINGS
    assert {each.path for each in change.findings} >= {"/inputSchema/properties/p0~1"}
    assert "it has a parameter that it did not have" in change.sentence()


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Reason)


HOSTILE = [
    "a",
    "a ",
    "a.",
    "a-",
    "<",
    "/a",
    "a@",
    " ",
    "\n",
    "a(",
    "`",
    "%41",
    "[",
    "a: ",
    "1.",
    "::",
    "\u200b",
    "\u00e9",
    "<a ",
]


@pytest.mark.parametrize("piece", [*HOSTILE, "![", "system:", "tool ", "a_b ", "- ", "use a ", "\\"], ids=ascii)
def test_hostile_text_takes_no_time(piece: str) -> None:
    room = 120_000 // len(ascii(piece).strip("'"))
    after = with_change(description=piece * room)
    began_at = time.process_time()
    assert classify(TOOL, after, OTHERS).kind is Kind.SUSPICIOUS
    assert time.process_time() - began_at < 20  # it takes two, on a machine with nothing else to do
