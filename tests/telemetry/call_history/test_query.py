"""Which calls are asked for, and their sums."""

import pytest

from app.telemetry.call_history.history import CallRecord, Origin
from app.telemetry.call_history.query import CallFilter, added, bucket_of, grouped, middle_ms

ORIGIN = Origin(("acme", "echo"), ("acme", "key", "AAAAAAAA"), "0123456789ab", ("client", "1"))


class Ids:
    trace = None

    def names(self) -> tuple[str, str]:
        return "r1", "t1"


def call(outcome: str = "ok", seconds: float = 0.01, tool: str = "add", at: float = 100.0) -> CallRecord:
    return CallRecord(1, ORIGIN, at, "tools/call", tool, outcome, seconds, 10, 20, Ids())


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, True),
        ({"backend": "echo"}, True),
        ({"backend": "other"}, False),
        ({"tool": "add"}, True),
        ({"tool": "sub"}, False),
        ({"outcome": "ok"}, True),
        ({"outcome": "error"}, False),
        ({"subject": "AAAAAAAA", "session": "0123456789ab"}, True),
        ({"session": "other"}, False),
        ({"client_name": "client"}, True),
        ({"client_name": "other"}, False),
        ({"request_id": "r1"}, True),
        ({"request_id": "r2"}, False),
        ({"since": 100.0}, True),
        ({"until": 100.0}, False),
        ({"min_ms": 10.0}, True),
        ({"min_ms": 10.1}, False),
    ],
)
def test_a_filter(asked: dict[str, str | float], found: bool):
    assert CallFilter(**asked).matches(call()) == found  # type: ignore[arg-type]


def test_error_is_everything_but_ok():
    assert CallFilter(outcome="error").matches(call("timeout"))


def test_sums_of_several_nodes_are_those_of_all_calls():
    here = [call(seconds=0.01), call("timeout", 1.0), call(tool="sub")]
    there = [call(seconds=0.02)] * 3
    (whole,) = grouped([each for each in (*here, *there) if each.tool == "add"], "tool")
    apart = added([*grouped(here, "tool"), *grouped(there, "tool")])
    assert apart[0] == whole
    assert (whole.count, whole.errors, whole.bytes_in, whole.within) == (5, 1, 50, "echo")
    assert [each.name for each in apart] == ["add", "sub"]


@pytest.mark.parametrize("seconds", [0.000_002, 0.001, 0.25, 3.0, 3_600.0])
def test_a_duration_is_known_to_five_percent(seconds: float):
    assert middle_ms(bucket_of(seconds)) == pytest.approx(seconds * 1000, rel=0.05)


def test_percentiles_of_a_group():
    (group,) = grouped([call(seconds=0.01)] * 98 + [call(seconds=1.0)] * 2, "backend")
    assert group.percentile_ms(0.5) == pytest.approx(10, rel=0.05)
    assert group.percentile_ms(0.99) == pytest.approx(1000, rel=0.05)
