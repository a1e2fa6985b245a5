"""The form that is hashed: equal for equal definitions, and of bounded size."""

from typing import Any

import pytest

from app.protocol.approval import MAX_BYTES, MAX_DEPTH, DefinitionTooLarge, fingerprint
from app.protocol.approval._canonical import canonical


def test_the_order_of_members_does_not_count() -> None:
    assert fingerprint({"name": "a", "description": "b"}) == fingerprint({"description": "b", "name": "a"})


def test_the_order_of_a_list_counts() -> None:
    assert fingerprint({"enum": ["a", "b"]}) != fingerprint({"enum": ["b", "a"]})


def test_numbers_that_are_equal_have_one_form() -> None:
    assert canonical({"minimum": 1.0, "maximum": -0.0}) == canonical({"minimum": 1, "maximum": 0})
    assert canonical({"minimum": 1}) != canonical({"minimum": True})
    assert canonical({"minimum": 0.1}) == '{"minimum":0.1}'
    assert canonical({"minimum": 1e300}) == '{"minimum":1e+300}'


def test_text_is_not_normalised() -> None:
    """What looks the same may be read differently by a model."""
    assert fingerprint({"title": "\u00e9"}) != fingerprint({"title": "e\u0301"})
    assert canonical({"title": "\ud800"}) == '{"title":"\\ud800"}'


def test_members_that_nobody_knows_are_pinned() -> None:
    assert fingerprint({"name": "a"}) != fingerprint({"name": "a", "x-new": 1})


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


@pytest.mark.parametrize(
    "definition",
    [
        {"description": "a" * MAX_BYTES},
        nested(MAX_DEPTH),
        nested(100_000),
        {"enum": [None] * 30_000},
        {"maximum": float("inf")},
        {"maximum": float("nan")},
        {"maximum": 10**5000},
    ],
    ids=["long", "deep", "very deep", "many", "infinite", "nan", "digits"],
)
def test_what_is_too_large_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(DefinitionTooLarge, match="too large"):
        fingerprint(definition)


def test_the_largest_that_is_looked_at() -> None:
    assert len(canonical({"d": "a" * (MAX_BYTES - 8)})) == MAX_BYTES
    assert fingerprint(nested(MAX_DEPTH - 1))
