"""The difference that people read."""

import time

from app.protocol.approval import Difference, Hunk, difference
from app.protocol.approval._differences import MAX_DIFFERENCES, MAX_SHOWN


def test_each_value_that_differs_has_its_path() -> None:
    before = {"name": "a", "inputSchema": {"properties": {"p/q": {"type": "string"}}, "required": ["p/q"]}}
    after = {"name": "a", "inputSchema": {"properties": {"p/q": {"type": 1}}, "required": []}, "title": "A"}
    assert difference(before, after) == [
        Difference("/inputSchema/properties/p~1q/type", "string", "1"),
        Difference("/inputSchema/required", '["p/q"]', "[]"),
        Difference("/title", None, "A"),
    ]
    assert difference(before, before) == []
    assert difference({"n": 1}, {"n": True}) == [Difference("/n", "1", "true")]


def test_a_new_or_removed_tool_is_shown_whole() -> None:
    assert difference(None, {"name": "a"}) == [Difference("", None, '{"name": "a"}')]
    assert difference({"name": "a"}, None) == [Difference("", '{"name": "a"}', None)]


def test_long_texts_are_compared_word_by_word() -> None:
    words = " ".join(f"word{number}" for number in range(60))
    (found,) = difference({"d": f"{words} end"}, {"d": f"{words} other end"})
    assert [each.kind for each in found.hunks] == ["same", "added", "same"]
    first = "word0 word1 word2 word3 word4 word5  … word54 word55 word56 word57 word58 word59 "
    assert found.hunks[0] == Hunk("same", first)
    assert found.hunks[1].text.strip() == "other"


def test_hidden_characters_are_made_visible() -> None:
    hidden = "a\u200bb\u202e\U000e0041\x1b\ud800"
    (found,) = difference({"d": "ab"}, {"d": hidden})
    assert found.after == "a\\u{200b}b\\u{202e}\\u{e0041}\\u{1b}\\u{d800}"
    (found,) = difference({}, {"a\u200b": 1})
    assert found.path == "/a\\u{200b}"
    (found,) = difference({}, {"enum": [hidden]})
    assert found.after is not None
    assert "\u200b" not in found.after


def test_it_is_bounded() -> None:
    assert len(difference({}, {str(number): number for number in range(999)})) == MAX_DIFFERENCES
    began_at = time.perf_counter()
    (found,) = difference({"d": "a b " * 20_000}, {"d": "c d " * 20_000})
    assert time.perf_counter() - began_at < 5
    assert len(found.after or "") < MAX_SHOWN + 100
    assert found.hunks == ()
