"""A backend that tells too much: what its client gets of it, and what later."""

import json
from typing import Any

import pytest

from app.protocol._notification_rate import MAX_KEPT, MAX_KEPT_BYTES, PER_SECOND
from app.protocol.commands import Answer, Call, Command, Dropped, Listen, Several, ToStream
from app.protocol.exchange import Exchange
from app.protocol.jsonrpc import Request, parse_client

DROPPED = Dropped("notification_rate")
TOOLS_CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


@pytest.fixture
def exchange() -> Exchange:
    return Exchange(60.0)


def told(exchange: Exchange, method: str, now: float = 0.0, **params: Any) -> Command:
    return exchange.receive(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode(), now)


def flood(exchange: Exchange, now: float = 0.0) -> None:
    """As many log messages as may be told in this second."""
    for _ in range(PER_SECOND):
        assert isinstance(told(exchange, "notifications/message", now, level="info"), ToStream)


def begin(exchange: Exchange, method: str, params: str) -> Call:
    message = parse_client(f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'.encode())
    assert isinstance(message, Request)
    return exchange.request(message, "its stream", 0.0)[0]


def due(exchange: Exchange, now: float) -> list[bytes]:
    return [each.payload for each in exchange.expire(now) if isinstance(each, ToStream)]


def test_above_the_rate_messages_and_progress_are_dropped_until_the_next_second(exchange: Exchange) -> None:
    made = begin(exchange, "tools/call", '{"_meta":{"progressToken":"p"}}')
    flood(exchange)
    token = int(made.gateway_id)
    for _ in range(3):
        assert told(exchange, "notifications/message", 0.9, level="info") == DROPPED
        assert told(exchange, "notifications/vendor", 0.9) == DROPPED
        assert told(exchange, "notifications/progress", 0.9, progressToken=token, progress=1) == DROPPED
    assert isinstance(told(exchange, "notifications/progress", 1.0, progressToken=token, progress=2), ToStream)


def test_an_answer_and_a_question_are_not_notifications(exchange: Exchange) -> None:
    made = begin(exchange, "tools/call", "{}")
    flood(exchange)
    told(exchange, "notifications/message", level="info")
    question = exchange.receive(b'{"jsonrpc":"2.0","id":7,"method":"roots/list"}', 0.0)
    assert isinstance(question, ToStream)
    assert isinstance(exchange.receive(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % made.gateway_id, 0.0), Answer)


def test_progress_that_is_dropped_is_a_sign_of_life(exchange: Exchange) -> None:
    made = begin(exchange, "tools/call", '{"_meta":{"progressToken":"p"}}')
    flood(exchange, now=50.0)
    told(exchange, "notifications/progress", 50.5, progressToken=int(made.gateway_id), progress=1)
    assert list(exchange.expire(100.0)) == []


def test_the_last_change_of_each_thing_is_told_in_the_next_second(exchange: Exchange) -> None:
    flood(exchange)
    assert told(exchange, TOOLS_CHANGED) == Several([])
    assert told(exchange, UPDATED, uri="a") == Several([])
    assert told(exchange, UPDATED, uri="b") == Several([])
    assert told(exchange, UPDATED, uri="b", version=2) == DROPPED
    assert due(exchange, 0.9) == []
    kept = due(exchange, 1.0)
    assert [json.loads(each)["params"] for each in kept] == [{}, {"uri": "a"}, {"uri": "b", "version": 2}]
    assert due(exchange, 2.0) == []


def test_a_change_that_is_told_replaces_the_one_that_was_kept(exchange: Exchange) -> None:
    flood(exchange)
    told(exchange, TOOLS_CHANGED)
    assert isinstance(told(exchange, TOOLS_CHANGED, 1.0), ToStream)
    assert due(exchange, 2.0) == []


def test_what_is_kept_is_bounded(exchange: Exchange) -> None:
    flood(exchange)
    assert told(exchange, UPDATED, uri="x" * MAX_KEPT_BYTES) == DROPPED
    for number in range(MAX_KEPT):
        assert told(exchange, UPDATED, uri=str(number)) == Several([])
    assert told(exchange, UPDATED, uri="one more") == DROPPED
    assert len(due(exchange, 1.0)) == MAX_KEPT


def test_changes_of_a_subscription_are_kept_for_it_while_it_runs(exchange: Exchange) -> None:
    made = begin(exchange, "subscriptions/listen", "{}")
    meta = {"io.modelcontextprotocol/subscriptionId": int(made.gateway_id)}
    flood(exchange)
    assert told(exchange, TOOLS_CHANGED, _meta=meta) == Several([])
    assert told(exchange, TOOLS_CHANGED) == Several([])  # another's
    streams = [each.stream for each in exchange.expire(1.0) if isinstance(each, ToStream)]
    assert streams == ["its stream", Listen.STREAM]
    flood(exchange, now=2.0)
    told(exchange, TOOLS_CHANGED, 2.0, _meta=meta)
    exchange.abandon(made)
    assert due(exchange, 3.0) == []
