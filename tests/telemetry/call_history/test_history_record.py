"""What may be shown of what was called."""

import pytest

from app.telemetry.call_history.history import MAX_TOOL, name_of


@pytest.mark.parametrize(
    ("method", "named", "shown"),
    [
        ("tools/call", b'"echo"', "echo"),
        ("tools/call", b'"a\\u001b[2Jb"', "a?[2Jb"),
        ("tools/call", b'"broken', ""),
        ("tools/call", b'"\xff"', ""),
        ("tools/call", b"5", ""),
        ("tools/call", b'"' + b"x" * 500 + b'"', "x" * MAX_TOOL),
        ("prompts/get", b'"greet?you"', "greet?you"),
        ("resources/read", b'"https://u:p@host/a?key=1#x"', "https://host/a"),
        ("resources/read", b'"note://one"', "note://one"),
        ("resources/read", b'"mailto:a@b?x=1"', "mailto:a@b"),
        ("ping", None, ""),
    ],
)
def test_a_name_is_shown_without_what_may_be_secret(method: str, named: bytes | None, shown: str):
    assert name_of(method, named) == shown
