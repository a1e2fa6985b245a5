"""Text that people do not see, and text that only looks odd."""

import pytest

from app.protocol.approval._hidden import hidden_parts, visible


@pytest.mark.parametrize(
    "text",
    [
        "a\u200bb", "a\u202eb", "a\u2066b", "a\U000e0041", "a\ufe01", "a\U000e0100", "a\u00adb", "\u3164",
        "a\x1b[0m", "a\x00",
        "\u0440ead", "\uff52ead", "\U0001d400", "\ufb01le", "a <!-- b", "[//]: # (b)", "a" + " " * 60 + "b",
        "a" + "\n" * 9,
        "A" * 40, "\\x41\\x42\\x43", "%41%42%43", "&#65;&#66;&#67;", "r e a d i t", "r.e.a.d", "<span style=x>",
        "![a](b)",
        "41 42 43 44 45 46 47 48", "a\ud800", "a\ue000", "\u200d\u200d",
    ],
)  # fmt: skip
def test_hidden(text: str) -> None:
    assert list(hidden_parts(text))


@pytest.mark.parametrize(
    "text",
    [
        "Reads a file.\n\n- one\n- two\n", "Caf\u00e9 \u2014 na\u00efve \u201cquotes\u201d\u2026",
        "\u26a0\ufe0f Careful",
        "\U0001f468\u200d\U0001f4bb", "1\ufe0f\u20e3", "\u4f7f\u7528", "\u041f\u0440\u0438", "<repo>/<owner>",
        "e.g. a, b",
        "ISO 8601: 2026-01-31T12:00:00Z", "5 \u00b5m, 20 \u00b0C", "a_long_identifier_with_words",
    ],
)  # fmt: skip
def test_not_hidden(text: str) -> None:
    assert list(hidden_parts(text)) == []


def test_what_is_not_seen_is_written_out() -> None:
    assert visible("a\u200b\n\tb\x1b") == "a\\u{200b}\n\tb\\u{1b}"
