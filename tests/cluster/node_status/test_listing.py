"""Positions of events, which come back from clients in cursors."""

import pytest

from app.cluster.node_status.listing import newest_first, place_of_event


@pytest.mark.parametrize(
    ("at_us", "number"), [(1_780_000_000_000_001, 0), (0, 1), (1_780_000_000_123_456, (1 << 63) - 1)]
)
def test_a_position_leads_back_to_its_event(at_us: int, number: int):
    assert place_of_event(newest_first(at_us / 1_000_000, f"{number:016x}")) == (at_us, number)


@pytest.mark.parametrize(
    "position",
    ["", "at:", "id", "at:" + "1" * 16, "at:" + "1" * 17 + "x" * 16, "at:" + "1" * 17 + "f" * 16, "at:" + "-" * 33,
     "at:" + "1" * 17 + "0" * 17, "xx:" + "1" * 33],
)  # fmt: skip
def test_what_is_no_position_of_a_call_is_none(position: str):
    assert place_of_event(position) is None
