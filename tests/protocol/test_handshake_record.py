"""HandshakeRecord: what is said again to a process that takes another's place."""

import json
from typing import Any

import pytest

from app.errors import InvalidMessage
from app.protocol.handshake_record import MAX_URIS, HandshakeRecord, to_be_repeated


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def opened(**capabilities: Any) -> HandshakeRecord:
    record = HandshakeRecord()
    record.sent(line(id=1, method="initialize", params={}))
    assert record.hello is None
    record.received(line(id=1, result={"capabilities": capabilities}))
    record.sent(line(method="notifications/initialized"))
    return record


def replayed(record: HandshakeRecord) -> list[tuple[str, Any]]:
    messages = [json.loads(each) for each in record.replay()]
    return [(each["method"], each.get("params")) for each in messages]


CONTEXT = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "v=1", "baggage": "x=1"}


@pytest.mark.parametrize(
    ("meta", "kept"),
    [(CONTEXT, None), ({**CONTEXT, "mine": [1.0]}, {"mine": [1.0]}), ({"mine": 1}, {"mine": 1}), ({}, {})],
)
def test_a_handshake_is_repeated_without_its_place_in_a_trace(meta: dict[str, Any], kept: Any) -> None:
    params = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "traceparent"}}
    repeated = json.loads(to_be_repeated(line(id=1, method="initialize", params={**params, "_meta": meta})))
    assert repeated["params"] == (params if kept is None else {**params, "_meta": kept})
    assert (repeated["id"], repeated["method"]) == (1, "initialize")
    record = HandshakeRecord()
    record.sent(line(id=1, method="initialize", params={"_meta": meta}))
    record.received(line(id=1, result={}))
    assert b"tracestate" not in (record.hello or b"")


def test_one_without_a_trace_is_repeated_as_it_is() -> None:
    for each in (line(id=1, method="initialize"), line(id=1, method="initialize", params={"x": "traceparent"})):
        assert to_be_repeated(each) is each


def test_the_last_log_level_and_the_subscriptions_that_are_left_are_replayed() -> None:
    record = opened()
    assert json.loads(record.hello or b"")["method"] == "initialize"
    for method, params in (
        ("logging/setLevel", {"level": "debug"}),
        ("logging/setLevel", {"level": "error"}),
        ("resources/subscribe", {"uri": "a:"}),
        ("resources/subscribe", {"uri": "b:"}),
        ("resources/unsubscribe", {"uri": "a:"}),
    ):
        record.sent(line(id=2, method=method, params=params))
    assert replayed(record) == [
        ("notifications/initialized", None),
        ("logging/setLevel", {"level": "error"}),
        ("resources/subscribe", {"uri": "b:"}),
    ]
    ours = json.loads(next(each for each in record.replay() if b"setLevel" in each))["id"]
    assert not record.received(line(id=ours, result={}))


def test_a_session_with_more_subscriptions_than_are_recorded_is_never_at_rest() -> None:
    record = opened()
    for number in range(MAX_URIS + 1):
        record.sent(line(id=number + 2, method="resources/subscribe", params={"uri": f"a:{number}"}))
        record.received(line(id=number + 2, result={}))
    for number in range(MAX_URIS):
        record.sent(line(id=number + 2, method="resources/unsubscribe", params={"uri": f"a:{number}"}))
        record.received(line(id=number + 2, result={}))
    assert not record.is_at_rest
    assert opened().is_at_rest


def test_a_subscription_that_was_refused_or_not_sent_is_none() -> None:
    record = opened()
    record.sent(line(id=2, method="resources/subscribe", params={"uri": "a:"}))
    record.received(line(id=2, error={"code": -32002, "message": "no such resource"}))
    assert record.is_at_rest
    record.sent(unsent := line(id=3, method="resources/subscribe", params={"uri": "b:"}))
    record.unsent(unsent)
    assert record.is_at_rest
    for number, outcome in ((4, {"result": {}}), (5, {"error": {"code": 1, "message": "again"}})):
        record.sent(line(id=number, method="resources/subscribe", params={"uri": "c:"}))
        record.received(line(id=number, **outcome))
    assert ("resources/subscribe", {"uri": "c:"}) in replayed(record)
    assert not record.is_at_rest


def test_calls_in_flight_are_named_once_and_cancelled_ones_not() -> None:
    record = opened()
    for number in (5, 6, 7):
        record.sent(line(id=number, method="tools/call", params={}))
    record.received(line(id=5, result={}))
    record.sent(line(method="notifications/cancelled", params={"requestId": 6}))
    assert record.lose() == ([b"7"], [])
    assert record.lose() == ([], [])


def test_questions_of_a_dead_process_are_taken_back_and_their_answers_kept_from_the_next() -> None:
    record = opened()
    record.received(line(id="q", method="roots/list"))
    calls, withdrawn = record.lose()
    assert calls == []
    assert json.loads(withdrawn[0])["params"] == {"requestId": "q"}
    assert not record.sent(line(id="q", result={}))
    record.received(line(id="q", method="roots/list"))
    assert record.sent(line(id="q", result={}))


def test_the_news_fit_the_server_and_the_log_level() -> None:
    record = opened(logging={}, tools={"listChanged": True}, prompts={"listChanged": False}, resources={})
    assert [json.loads(each)["method"] for each in record.news()] == [
        "notifications/message",
        "notifications/tools/list_changed",
    ]
    record.sent(line(id=2, method="logging/setLevel", params={"level": "error"}))
    assert [json.loads(each)["method"] for each in record.news()] == ["notifications/tools/list_changed"]
    assert list(opened().news()) == []


def test_in_2026_07_28_the_discovery_and_what_listens_are_said_again() -> None:
    record = HandshakeRecord()
    record.sent(line(id=1, method="initialize", params={}))
    record.received(line(id=1, error={"code": -32022, "message": "no"}))
    record.sent(line(id=1, method="server/discover", params={}))
    record.received(line(id=1, result={"capabilities": {"logging": {}}}))
    record.sent(line(id=2, method="subscriptions/listen", params={"x": 1}))
    record.sent(line(id=3, method="tools/call", params={}))
    assert record.lose()[0] == [b"3"]
    assert json.loads(record.hello or b"")["method"] == "server/discover"
    assert replayed(record) == [("subscriptions/listen", {"x": 1})]
    assert list(record.news()) == []


def test_noise_is_for_the_caller_and_changes_nothing() -> None:
    record = opened()
    before = record.snapshot()
    with pytest.raises(InvalidMessage):
        record.received(b"a banner")
    assert record.snapshot() == before


def test_a_record_that_was_written_down_says_the_same_to_the_next_process() -> None:
    record = opened(logging={}, tools={"listChanged": True})
    record.sent(line(id=2, method="logging/setLevel", params={"level": "info"}))
    record.sent(line(id=3, method="resources/subscribe", params={"uri": "a://\u00e9"}))
    record.sent(line(id=4, method="resources/subscribe", params={"uri": "a://gone"}))
    record.sent(line(id=5, method="resources/unsubscribe", params={"uri": "a://gone"}))
    record.sent(line(id=6, method="tools/call", params={}))
    snapshot = record.snapshot()
    assert snapshot is not None
    restored = HandshakeRecord.restored(snapshot)
    assert (restored.hello, restored.hello_id) == (record.hello, b"1")
    record.lose()
    assert restored.lose() == ([], [])  # the calls of another node are not this one's to answer
    assert list(restored.replay()) == list(record.replay())
    assert list(restored.news()) == list(record.news())
    assert restored.snapshot() == record.snapshot()


def test_a_sessionless_record_keeps_its_subscriptions() -> None:
    record = HandshakeRecord()
    record.sent(line(id=1, method="server/discover", params={}))
    record.received(line(id=1, result={"capabilities": {}}))
    record.sent(line(id="listen-1", method="subscriptions/listen", params={}))
    snapshot = record.snapshot()
    assert snapshot is not None
    assert list(HandshakeRecord.restored(snapshot).replay()) == [
        line(id="listen-1", method="subscriptions/listen", params={})
    ]


def test_what_a_fresh_process_must_hear_is_said_to_have_changed_and_nothing_else_is() -> None:
    changes: list[bytes] = []
    record = opened()
    record.watch(lambda: changes.append(b""))
    for number, method in enumerate(("tools/call", "ping", "tools/list"), 2):
        record.sent(line(id=number, method=method, params={}))
        record.received(line(id=number, result={}))
    assert changes == []
    record.sent(line(id=7, method="logging/setLevel", params={"level": "info"}))
    record.sent(line(id=8, method="resources/subscribe", params={"uri": "a://b"}))
    assert len(changes) == 2
    assert HandshakeRecord().snapshot() is None
