"""How values are written on pages."""

import pytest

from app.console import wording


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (150 << 20, "150 MiB"), (5 << 50, "5120 TiB"), (None, "\u2013")],
)
def test_a_size(count: float | None, text: str):
    assert wording.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.12, "120 ms"), (59.6, "1 min"), (3_600, "1 h"), (3_661, "1 h 1 min"), (90_000, "1 d 1 h"), (None, "\u2013")],
)
def test_a_span(seconds: float | None, text: str):
    assert wording.span(seconds) == text


def test_a_moment_a_number_and_a_long_text():
    assert wording.moment("2026-11-24T12:55:33.389457Z") == "2026-11-24 12:55:33"
    assert wording.moment(None) == "\u2013"
    assert (wording.number(12345), wording.number(0.5), wording.number(None)) == ("12,345", "0.50", "\u2013")
    assert wording.short("a" * 90, 10) == "a" * 9 + "\u2026"


def test_a_long_list_is_renewed_less_often() -> None:
    assert [wording.every_s(count) for count in (0, 1_000, 1_001)] == ["20", "20", "40"]


def test_a_node_is_named_so_that_two_of_one_name_differ() -> None:
    assert wording.node_name("gateway-1-d1f3bc8754b67a4f") == "gateway-1-d1f3"
    assert wording.node_name("gateway") == "gateway"
