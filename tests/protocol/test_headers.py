"""HTTP headers of MCP requests (basic/transports)."""

import pytest

from app.protocol.headers import Accepted, is_json, parse_accept, parse_version
from app.protocol.revisions import HANDSHAKE, allows_batches, is_handshake


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Accepted(True, True)),
        (b"", Accepted(True, True)),
        (b"*/*", Accepted(True, True)),
        (b"application/json, text/event-stream", Accepted(True, True)),
        (b"application/json", Accepted(True, False)),
        (b"Text/Event-Stream", Accepted(False, True)),
        (b"application/*;q=0.5", Accepted(True, False)),
        (b"application/json;q=0, text/event-stream", Accepted(False, True)),
        (b"application/json;q=rubbish", Accepted(False, False)),
        (b"text/html", Accepted(False, False)),
    ],
)
def test_accept_says_which_answers_a_client_takes(value: bytes | None, expected: Accepted) -> None:
    assert parse_accept(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"text/plain", False),
        (b"application/jsonp", False),
        (None, False),
    ],
)
def test_only_json_bodies_are_taken(value: bytes | None, expected: bool) -> None:
    assert is_json(value) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), None),
        ((b"2025-11-25",), "2025-11-25"),
        ((b"2025-11-25, 2025-11-25",), "2025-11-25"),
        ((b"2025-11-25", b"2025-11-25"), "2025-11-25"),
        ((b"2025-11-25, 2025-06-18",), "2025-11-25, 2025-06-18"),
        ((b" ",), None),
    ],
)
def test_a_doubled_version_header_counts_once(values: tuple[bytes, ...], expected: str | None) -> None:
    assert parse_version(values) == expected


def test_revisions_are_a_set_and_not_an_order() -> None:
    assert all(is_handshake(version) for version in HANDSHAKE)
    assert not any(is_handshake(version) for version in ("2025-11-26", "2026-07-28", "", "2025-11-25 "))
    assert [version for version in HANDSHAKE if allows_batches(version)] == ["2025-03-26"]
