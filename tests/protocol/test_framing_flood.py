"""Which notifications of a flood are dropped unread, and what is never lost with them."""

import json

import pytest

from app.protocol._notification_rate import MAX_KEPT, MAX_KEPT_BYTES, PER_SECOND
from app.protocol.framing import Flood

LOG = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{"method":"notifications/message"}}'
NOW = 100.0


def notice(method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}).encode()


@pytest.fixture
def flood() -> Flood:
    """One that is over its rate."""
    found = Flood()
    found.passed([LOG] * PER_SECOND, NOW)
    found.passed([LOG] * PER_SECOND, NOW)
    return found


def test_a_slow_backend_is_not_looked_at():
    flood, lines = Flood(), [LOG] * PER_SECOND
    assert flood.passed(lines, NOW) is lines
    assert flood.passed(lines, NOW + 1.0) is lines
    assert flood.dropped == 0


def test_a_backend_that_answers_fast_loses_no_notification():
    flood = Flood()
    lines = [ANSWER] * 5000 + [LOG] * PER_SECOND
    assert flood.passed(lines, NOW) == lines


@pytest.mark.parametrize(
    "line",
    [
        LOG,
        b' { "jsonrpc" : "2.0", "method" : "notifications/message", "params": {}}',
        b'{"method":"notifications/message","params":{},"jsonrpc":"2.0"}',
        notice("vendor/event", value=1),
    ],
)
def test_what_nobody_misses_is_dropped_and_what_is_behind_it_passes(flood: Flood, line: bytes):
    assert flood.passed([line] * 1000 + [ANSWER], NOW + 0.5) == [ANSWER]
    assert (flood.dropped, flood.take_held()) == (1000, [])


def test_it_begins_anew_each_second(flood: Flood):
    assert flood.takes(LOG, NOW + 0.9)
    assert not flood.takes(LOG, NOW + 1.0)


@pytest.mark.parametrize(
    "line",
    [
        ANSWER,
        b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}',
        b'{"id":1,"jsonrpc":"2.0","method":"notifications/message"}',
        b"[%b]" % LOG,
        b"no JSON",
        notice("cancelled", requestId=5),
        notice("tasks/status", taskId="t"),
        notice("subscriptions/acknowledged"),
    ],
)
def test_everything_else_passes(flood: Flood, line: bytes):
    assert flood.passed([line], NOW) == [line]


def test_the_newest_progress_of_each_call_and_each_change_are_held(flood: Flood):
    old, new = (notice("progress", progressToken=5, progress=each) for each in (1, 2))
    other = notice("progress", progressToken="5", progress=1)
    changes = [notice("tools/list_changed"), notice("resources/updated", uri="a"), notice("resources/updated", uri="b")]
    assert flood.passed([old, *changes, other, *changes, new], NOW) == []
    assert sorted(flood.take_held()) == sorted([new, other, *changes])
    assert flood.dropped == 4
    assert flood.take_held() == []


def test_what_cannot_be_held_is_left_to_the_session(flood: Flood):
    long = notice("resources/updated", uri="u" * MAX_KEPT_BYTES)
    many = [notice("resources/updated", uri=str(each)) for each in range(MAX_KEPT + 1)]
    assert flood.passed([long, *many], NOW) == [long, many[-1]]
