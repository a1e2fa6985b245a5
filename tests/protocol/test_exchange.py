"""Exchange: ids, tokens and streams of one session. Reads like a dialogue: line in, command out."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import (
    BackendExited,
    BackendTimeout,
    InvalidMessage,
    QuotaExceeded,
    RequestCancelled,
    ResponseTooLarge,
    SessionNotFound,
)
from app.protocol.commands import CANCEL_GRACE_S, Answer, Call, Dropped, Failed, Listen, Several, ToBackend, ToStream
from app.protocol.exchange import MAX_KEPT, MAX_WAITING_BYTES, MIN_WAITING, Exchange
from app.protocol.jsonrpc import MAX_BATCH, Notification, Request, Response, parse_client
from app.protocol.questions import MAX_QUESTIONS, QUESTION_S


def client(text: str) -> Any:
    return parse_client(text.encode())


def call(
    exchange: Exchange, id_text: str = "1", method: str = "tools/call", params: str = "{}", **options: Any
) -> tuple[Call, dict[str, Any]]:
    message = client(f'{{"jsonrpc":"2.0","id":{id_text},"method":"{method}","params":{params}}}')
    assert isinstance(message, Request)
    made, line = exchange.request(
        message, options.pop("stream", f"stream of {id_text}"), options.pop("now", 0.0), **options
    )
    return made, {} if line is None else json.loads(line)


def answer(exchange: Exchange, made: Call, now: float = 0.0) -> Any:
    return exchange.receive(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % made.gateway_id, now)


def cancel(exchange: Exchange, id_text: str) -> Failed | None:
    text = f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id_text}}}}}'
    return exchange.withdraw(client(text))


def turns(exchange: Exchange, now: float = 0.0) -> list[str]:
    """The clients' ids of the calls whose turn it is."""
    found = []
    while (turn := exchange.next_turn(now)) is not None:
        assert json.loads(turn[1])["id"] == int(turn[0].gateway_id)
        found.append(turn[0].id.decode())
    return found


def sent(exchange: Exchange, message: dict[str, Any], now: float = 0.0) -> Any:
    return exchange.receive(json.dumps({"jsonrpc": "2.0", **message}).encode(), now)


@pytest.fixture
def exchange() -> Exchange:
    return Exchange(60.0)


@pytest.mark.parametrize("id_text", ["1", '"1"', "9007199254740993", "9" * 30, '"a\\u0041"'])
def test_an_answer_comes_back_under_the_clients_own_id(exchange: Exchange, id_text: str) -> None:
    _, line = call(exchange, id_text)
    answer = sent(exchange, {"id": line["id"], "result": {"ok": True}})
    assert isinstance(answer, Answer)
    assert answer.payload().startswith(f'{{"jsonrpc":"2.0","id":{id_text},"result":'.encode())
    assert answer.call.stream == f"stream of {id_text}"


def test_equal_looking_ids_are_different_calls(exchange: Exchange) -> None:
    _, number = call(exchange, "1")
    _, text = call(exchange, '"1"')
    assert number["id"] != text["id"]
    assert b'"id":"1"' in sent(exchange, {"id": text["id"], "result": {}}).payload()
    assert b'"id":1,' in sent(exchange, {"id": number["id"], "result": {}}).payload()


@pytest.mark.parametrize("method", MAX_KEPT)
def test_what_a_session_keeps_of_a_request_is_short(exchange: Exchange, method: str) -> None:
    text = "x" * MAX_KEPT[method]
    with pytest.raises(InvalidMessage, match="at most"):
        call(exchange, method=method, params=f'{{"a":"{text}"}}')
    call(exchange, method=method, params=f'{{"a":"{text[20:]}"}}')


def test_a_progress_token_has_the_length_of_an_id(exchange: Exchange) -> None:
    with pytest.raises(InvalidMessage, match="progressToken"):
        call(exchange, "1", params='{"_meta":{"progressToken":"%s"}}' % ("x" * 257))
    call(exchange, "1", params='{"_meta":{"progressToken":"%s"}}' % ("x" * 256))


def test_second_request_with_an_in_flight_id_is_refused(exchange: Exchange) -> None:
    _, line = call(exchange, "7")
    with pytest.raises(InvalidMessage, match="in flight"):
        call(exchange, "7")
    sent(exchange, {"id": line["id"], "result": {}})
    call(exchange, "7")


def test_repeated_late_and_invented_answers_are_dropped(exchange: Exchange) -> None:
    _, line = call(exchange)
    assert isinstance(sent(exchange, {"id": line["id"], "result": 1}), Answer)
    assert sent(exchange, {"id": line["id"], "result": 2}) == Dropped("unknown_answer")
    assert sent(exchange, {"id": 4711, "result": 2}) == Dropped("unknown_answer")
    assert sent(exchange, {"id": str(line["id"]), "result": 2}) == Dropped("unknown_answer")
    assert sent(exchange, {"id": None, "error": {"code": -32700, "message": "?"}}) == Dropped("unknown_answer")


@pytest.mark.parametrize(("may_run", "may_wait"), [(1, MIN_WAITING), (4, MIN_WAITING), (128, 128)])
def test_calls_above_the_limit_wait_and_those_above_the_bound_are_refused(may_run: int, may_wait: int) -> None:
    exchange = Exchange(60.0, max_calls=may_run)
    lines = [call(exchange, str(number))[1] for number in range(may_run + may_wait)]
    assert [bool(line) for line in lines] == [True] * may_run + [False] * may_wait
    assert (len(exchange.calls), exchange.in_flight) == (may_run, may_run + may_wait)
    with pytest.raises(QuotaExceeded) as refused:
        call(exchange, "999")
    assert (refused.value.limit, refused.value.retry_after_s) == ("calls_per_session", 1.0)
    assert exchange.in_flight == may_run + may_wait


def test_calls_that_wait_take_their_turn_in_order() -> None:
    exchange = Exchange(60.0, max_calls=2)
    made = [call(exchange, str(number))[0] for number in range(6)]
    assert turns(exchange) == []
    answer(exchange, made[1])
    assert turns(exchange) == ["2"]
    call(exchange, "6")
    answer(exchange, made[2])
    answer(exchange, made[0])
    assert turns(exchange) == ["3", "4"]
    assert list(exchange.calls) == [made[3].gateway_id, made[4].gateway_id]
    assert [each.id for each in exchange.every_call()] == [b"3", b"4", b"5", b"6"]


def test_what_is_reserved_is_for_the_gateways_own_requests_which_wait_for_no_others() -> None:
    exchange = Exchange(60.0, max_calls=4)
    exchange.waiting.reserved = 1
    made = [call(exchange, str(number))[0] for number in range(5)]
    assert list(exchange.waiting.calls) == [made[3].gateway_id, made[4].gateway_id]
    own = [call(exchange, str(number), "tools/list", is_own=True)[0] for number in (100, 101, 102)]
    assert [each.gateway_id in exchange.calls for each in own] == [True, False, False]
    answer(exchange, own[0])
    assert turns(exchange) == ["101"]
    answer(exchange, made[0])
    assert turns(exchange) == ["102"]
    for each in (own[1], own[2]):
        answer(exchange, each)
    assert turns(exchange) == ["3"]


def test_the_clock_of_a_call_starts_when_it_is_sent() -> None:
    exchange = Exchange(60.0, max_calls=1)
    call(exchange, "1")
    waiting, _ = call(exchange, "2", now=1.0)
    (overdue, _) = exchange.expire(1000.0)
    assert isinstance(overdue, Failed)
    assert overdue.call.id == b"1"
    assert turns(exchange, 1000.0) == ["2"]
    assert (waiting.started, waiting.waited_s) == (1.0, 999.0)
    assert list(exchange.expire(1059.9)) == []
    late, _ = exchange.expire(1060.0)
    assert isinstance(late, Failed)
    assert "60 s" in str(late.error)


def test_the_lines_of_calls_that_wait_are_bounded_and_one_alone_may_be_longer() -> None:
    exchange = Exchange(60.0, max_calls=1)
    call(exchange, "1")
    text = "x" * MAX_WAITING_BYTES
    call(exchange, "2", params=f'{{"a":"{text}"}}')
    with pytest.raises(QuotaExceeded):
        call(exchange, "3")
    assert cancel(exchange, "2") is not None
    call(exchange, "3")
    with pytest.raises(QuotaExceeded):
        call(exchange, "4", params=f'{{"a":"{text}"}}')
    call(exchange, "4", params=f'{{"a":"{text[1000:]}"}}')


def test_a_call_that_is_cancelled_while_it_waits_is_never_sent() -> None:
    exchange = Exchange(60.0, max_calls=1)
    first, _ = call(exchange, "1")
    for number in "234":
        call(exchange, number)
    assert cancel(exchange, "1") is None
    assert cancel(exchange, "9") is None
    withdrawn = cancel(exchange, "3")
    assert withdrawn is not None
    assert (withdrawn.call.id, withdrawn.was_sent, type(withdrawn.error)) == (b"3", False, RequestCancelled)
    assert cancel(exchange, "3") is None
    call(exchange, "3")
    answer(exchange, first)
    assert turns(exchange) == ["2"]


def test_no_answer_of_a_backend_fits_a_call_that_waits() -> None:
    exchange = Exchange(60.0, max_calls=1)
    call(exchange, "1")
    waiting, _ = call(exchange, "2", params='{"_meta":{"progressToken":"t"}}')
    assert answer(exchange, waiting) == Dropped("unknown_answer")
    told = {"method": "notifications/progress", "params": {"progressToken": int(waiting.gateway_id), "progress": 1}}
    assert sent(exchange, told) == Dropped("unknown_progress")
    assert sent(exchange, {"id": 1, "method": "roots/list"}).stream == "stream of 1"


def test_a_handshake_waits_for_nothing() -> None:
    exchange = Exchange(60.0, max_calls=1)
    call(exchange, "1", method="server/discover")
    assert call(exchange, "2", method="initialize")[1]


def test_a_batch_fits_whole_or_not_at_all() -> None:
    exchange = Exchange(60.0, max_calls=4)
    exchange.waiting.require_room(4 + MIN_WAITING, 1000)
    with pytest.raises(QuotaExceeded):
        exchange.waiting.require_room(5 + MIN_WAITING, 1000)
    exchange.waiting.require_room(4, 2 * MAX_WAITING_BYTES)  # none of them would wait
    with pytest.raises(QuotaExceeded):
        exchange.waiting.require_room(5, MAX_WAITING_BYTES)
    for number in range(6):
        call(exchange, str(number))
    exchange.waiting.require_room(MIN_WAITING - 2, 1000)
    with pytest.raises(QuotaExceeded):
        exchange.waiting.require_room(MIN_WAITING - 1, 1000)


@pytest.mark.parametrize("token", ["1", '"t"', "9007199254740993"])
def test_a_progress_token_is_replaced_and_restored(exchange: Exchange, token: str) -> None:
    _, line = call(exchange, "5", params=f'{{"name":"x","_meta":{{"progressToken":{token},"traceparent":"00-a"}}}}')
    ours = line["params"]["_meta"]["progressToken"]
    assert line["params"]["_meta"]["traceparent"] == "00-a"
    told = sent(exchange, {"method": "notifications/progress", "params": {"progressToken": ours, "progress": 1}})
    assert isinstance(told, ToStream)
    assert told.stream == "stream of 5"
    assert f'"progressToken":{token}'.encode() in told.payload


@pytest.mark.parametrize("written", ['"%d"', "%d.0", "%de0"])
def test_a_token_that_comes_back_otherwise_is_recognised_and_puts_off_the_deadline(
    exchange: Exchange, written: str
) -> None:
    made, line = call(exchange, "5", params='{"_meta":{"progressToken":"abc"}}')
    token, deadline = written % line["params"]["_meta"]["progressToken"], made.deadline
    told = exchange.receive(
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b}}' % token.encode(), 9.0
    )
    assert isinstance(told, ToStream)
    assert b'"progressToken":"abc"' in told.payload
    assert made.deadline == deadline + 9.0


def test_a_progress_token_of_null_is_none(exchange: Exchange) -> None:
    made, line = call(exchange, "5", params='{"_meta":{"progressToken":null,"traceparent":"00-a"}}')
    assert line["params"]["_meta"] == {"traceparent": "00-a"}
    progress = {"method": "notifications/progress", "params": {"progressToken": int(made.gateway_id), "progress": 1}}
    assert sent(exchange, progress) == Dropped("unknown_progress")


def test_progress_for_nobody_is_dropped(exchange: Exchange) -> None:
    _, line = call(exchange, "5")
    progress = {"method": "notifications/progress", "params": {"progressToken": line["id"], "progress": 1}}
    assert sent(exchange, progress) == Dropped("unknown_progress")  # the client gave no token
    assert sent(exchange, {"method": "notifications/progress", "params": {}}) == Dropped("unknown_progress")


def test_progress_of_a_cancelled_call_is_dropped(exchange: Exchange) -> None:
    _, line = call(exchange, "5", params='{"_meta":{"progressToken":"p"}}')
    exchange.notification(client('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}'), 0.0)
    progress = {"method": "notifications/progress", "params": {"progressToken": line["id"], "progress": 1}}
    assert sent(exchange, progress) == Dropped("unknown_progress")


def test_a_question_goes_to_the_only_call_and_its_answer_back_under_the_backends_id(exchange: Exchange) -> None:
    call(exchange, "5")
    question = sent(exchange, {"id": "srv-1", "method": "sampling/createMessage", "params": {"maxTokens": 1}})
    assert isinstance(question, ToStream)
    assert question.stream == "stream of 5"
    asked = json.loads(question.payload)
    assert asked["method"] == "sampling/createMessage"
    line = exchange.questions.answer(client(f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{{"role":"assistant"}}}}'))
    assert line == b'{"jsonrpc":"2.0","id":"srv-1","result":{"role":"assistant"}}'


def test_an_answer_to_no_question_is_dropped(exchange: Exchange) -> None:
    value = client('{"jsonrpc":"2.0","id":1,"result":{}}').value
    assert exchange.questions.answer(Response(b"3", "result", value)) is None


def test_several_calls_and_a_listener_send_questions_to_the_listener(exchange: Exchange) -> None:
    call(exchange, "1", method="tools/list")
    call(exchange, "2")
    exchange.listening = True
    assert sent(exchange, {"id": 1, "method": "roots/list"}).stream is Listen.STREAM
    assert sent(exchange, {"method": "notifications/message", "params": {}}).stream is Listen.STREAM


def test_several_calls_without_a_listener_send_questions_to_the_oldest_that_may_ask(exchange: Exchange) -> None:
    call(exchange, "1", method="tools/list")
    call(exchange, "2")
    call(exchange, "3")
    assert sent(exchange, {"id": 1, "method": "roots/list"}).stream == "stream of 2"


def test_a_call_that_takes_only_json_carries_nothing_but_its_answer(exchange: Exchange) -> None:
    call(exchange, "1", may_stream=False, params='{"_meta":{"progressToken":1}}')
    assert sent(exchange, {"id": 1, "method": "roots/list"}).stream is Listen.STREAM
    assert sent(exchange, {"method": "notifications/progress", "params": {"progressToken": 1}}) == Dropped("no_stream")


def test_without_a_call_everything_waits_on_the_listen_stream(exchange: Exchange) -> None:
    assert sent(exchange, {"id": 1, "method": "roots/list"}).stream is Listen.STREAM
    changed = sent(exchange, {"method": "notifications/tools/list_changed"})
    assert (changed.stream, changed.coalesce) == (Listen.STREAM, b"notifications/tools/list_changed")


def test_updates_of_different_resources_do_not_replace_each_other(exchange: Exchange) -> None:
    first = sent(exchange, {"method": "notifications/resources/updated", "params": {"uri": "a://1"}})
    second = sent(exchange, {"method": "notifications/resources/updated", "params": {"uri": "a://2"}})
    assert first.coalesce != second.coalesce


def test_a_subscription_that_the_server_cancels_ends_with_a_result(exchange: Exchange) -> None:
    _, line = call(exchange, '"mine"', method="subscriptions/listen")
    ended = sent(exchange, {"method": "notifications/cancelled", "params": {"requestId": line["id"]}})
    assert isinstance(ended, Answer)
    answer = json.loads(ended.payload())
    assert (answer["id"], answer["result"]["resultType"]) == ("mine", "complete")
    assert not exchange.calls


def test_what_belongs_to_a_task_goes_to_the_call_that_waits_for_its_result(exchange: Exchange) -> None:
    call(exchange, "1")
    call(exchange, "2", method="tasks/result", params='{"taskId":"t1"}')
    for task, stream in (("t1", "stream of 2"), ("t2", Listen.STREAM)):
        meta = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": task}}}
        assert sent(exchange, {"id": task, "method": "elicitation/create", "params": meta}).stream == stream
        assert sent(exchange, {"method": "notifications/message", "params": meta}).stream == stream


def test_a_backends_ping_is_answered_by_us(exchange: Exchange) -> None:
    assert sent(exchange, {"id": 9, "method": "ping"}) == ToBackend(b'{"jsonrpc":"2.0","id":9,"result":{}}')


def test_a_backend_has_a_bounded_number_of_questions_open(exchange: Exchange) -> None:
    for number in range(MAX_QUESTIONS):
        assert isinstance(sent(exchange, {"id": number, "method": "roots/list"}), ToStream)
    refused = sent(exchange, {"id": "one more", "method": "roots/list"})
    assert isinstance(refused, ToBackend)
    assert "error" in json.loads(refused.line)


def test_a_cancel_reaches_the_backend_under_our_id_and_ends_the_call_soon(exchange: Exchange) -> None:
    _, line = call(exchange, '"mine"')
    cancel = client('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"mine","reason":"r"}}')
    assert isinstance(cancel, Notification)
    told = exchange.notification(cancel, 1.0)
    assert told is not None
    assert json.loads(told)["params"] == {"requestId": line["id"], "reason": "r"}
    assert list(exchange.expire(1.0)) == []
    (failed,) = exchange.expire(1.0 + CANCEL_GRACE_S)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RequestCancelled)
    assert sent(exchange, {"id": line["id"], "result": {}}) == Dropped("unknown_answer")


def test_a_cancel_of_nothing_or_of_initialize_tells_the_backend_nothing(exchange: Exchange) -> None:
    call(exchange, "1", method="initialize")
    for request_id in ("1", "99", "[]"):
        text = f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{request_id}}}}}'
        assert exchange.notification(client(text), 0.0) is None


def test_a_question_that_the_backend_withdraws_is_withdrawn_under_our_id(exchange: Exchange) -> None:
    call(exchange, "1")
    asked = json.loads(sent(exchange, {"id": "q", "method": "elicitation/create", "params": {}}).payload)
    told = sent(exchange, {"method": "notifications/cancelled", "params": {"requestId": "q"}})
    assert told.stream == "stream of 1"
    assert json.loads(told.payload)["params"]["requestId"] == asked["id"]
    assert exchange.questions.answer(client(f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{{}}}}')) is None


def test_a_call_that_is_never_answered_ends_and_the_backend_hears_it(exchange: Exchange) -> None:
    _, line = call(exchange)
    assert list(exchange.expire(59.9)) == []
    failed, told = exchange.expire(60.0)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, BackendTimeout)
    assert isinstance(told, ToBackend)
    assert json.loads(told.line)["params"]["requestId"] == line["id"]


def test_progress_extends_a_call_for_as_long_as_it_comes(exchange: Exchange) -> None:
    _, line = call(exchange, params='{"_meta":{"progressToken":1}}')
    progress = {"method": "notifications/progress", "params": {"progressToken": line["id"], "progress": 1}}
    for now in range(59, 86_400, 59):
        sent(exchange, progress, float(now))
        assert list(exchange.expire(now)) == []
    assert list(exchange.expire(now + 59.9)) == []
    assert isinstance(next(exchange.expire(now + 60.0)), Failed)


def test_progress_does_not_extend_a_handshake(exchange: Exchange) -> None:
    _, line = call(exchange, method="initialize", params='{"_meta":{"progressToken":1}}')
    sent(exchange, {"method": "notifications/progress", "params": {"progressToken": line["id"], "progress": 1}}, 29.0)
    assert isinstance(next(exchange.expire(30.0)), Failed)


def test_the_result_of_a_task_is_waited_for_as_long_as_the_task_takes(exchange: Exchange) -> None:
    made, _ = call(exchange, method="tasks/result", params='{"taskId":"t1"}')
    assert list(exchange.expire(86_400.0 * 31)) == []
    assert isinstance(answer(exchange, made), Answer)


def test_a_call_waits_for_hours_while_somebody_is_there_who_was_asked(exchange: Exchange) -> None:
    made, _ = call(exchange)
    sent(exchange, {"id": "q", "method": "elicitation/create"})
    for now in range(0, 86_400, 300):
        exchange.questions.client_is_there(lambda stream: stream == "stream of 1", now)
        assert list(exchange.expire(now)) == []
    exchange.questions.client_is_there(lambda stream: False, now + QUESTION_S)
    assert [type(each) for each in exchange.expire(now + QUESTION_S)] == [ToBackend, Failed, ToBackend]
    assert made.gateway_id not in exchange.calls


def test_a_call_waits_while_the_client_thinks_about_a_question(exchange: Exchange) -> None:
    call(exchange)
    asked = json.loads(sent(exchange, {"id": "q", "method": "elicitation/create"}).payload)
    assert list(exchange.expire(300.0)) == []
    exchange.questions.answer(client(f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{{}}}}'))
    assert isinstance(next(exchange.expire(300.0)), Failed)


def test_a_question_nobody_answers_is_answered_with_an_error(exchange: Exchange) -> None:
    sent(exchange, {"id": "q", "method": "elicitation/create"})
    (told,) = exchange.expire(QUESTION_S)
    assert isinstance(told, ToBackend)
    assert json.loads(told.line)["id"] == "q"
    assert not exchange.has_questions


def test_noise_is_dropped_and_a_broken_answer_fails_its_call(exchange: Exchange) -> None:
    _, line = call(exchange)
    assert exchange.receive(b"Server listening on stdio", 0.0) == Dropped("noise")
    assert exchange.receive(b'"text"', 0.0) == Dropped("invalid")
    failed = exchange.receive(b'{"jsonrpc":"2.0","id":%d}' % line["id"], 0.0)
    assert isinstance(failed, Failed)
    assert failed.error.reason == "invalid_response"


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(b'{"text":"cut \\ud83d"}', id="an emoji that was cut in two"),
        pytest.param(b'{"x":' + b"[" * 1500 + b"]" * 1500 + b"}", id="deep"),
    ],
)
def test_json_that_is_not_read_quickly_arrives_as_the_bytes_it_came_in(exchange: Exchange, result: bytes) -> None:
    _, line = call(exchange)
    answer = exchange.receive(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (line["id"], result), 0.0)
    assert isinstance(answer, Answer)
    assert bytes(answer.response.value) == result


@pytest.mark.parametrize("form", [b'"%d"', b"%d.0"])
def test_an_id_given_back_in_another_form_is_the_same(exchange: Exchange, form: bytes) -> None:
    _, line = call(exchange)
    answer = exchange.receive(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % (form % line["id"]), 0.0)
    assert isinstance(answer, Answer)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b'"result":{"x":NaN}}', id="NaN"),
        pytest.param(b'"result":{"x":"caf\xe9"}}', id="Latin-1"),
        pytest.param(b'"result":{"x":"a\tb"}}', id="a raw tab"),
        pytest.param(b'"result":{"x":"\\x"}}', id="an escape that there is not"),
        pytest.param(b'"result":{"x":[1,}}', id="brackets"),
        pytest.param(b'"result":{"x":"the end', id="broken off"),
        pytest.param(b'"result":{"x":"' + b"y" * (5 << 20) + b'\\ud83d"}}', id="too long to be read slowly"),
        pytest.param(b'"result":{},"error":{}}', id="result and error"),
        pytest.param(b'"outcome":{}}', id="neither"),
    ],
)
def test_a_broken_answer_ends_its_call_at_once_and_no_other(exchange: Exchange, rest: bytes) -> None:
    call(exchange, "1")
    _, second = call(exchange, "2")
    failed = exchange.receive(b'{"jsonrpc":"2.0","id":%d,%b' % (second["id"], rest), 0.0)
    assert isinstance(failed, Failed)
    assert (failed.call.id, failed.error.reason) == (b"2", "invalid_response")


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"x":NaN},"id":%d',
        b'{"jsonrpc":"2.0","id":%d',
        b'{"jsonrpc":"2.0","result":{"x":"a\tb, \\"id\\":%d}"}}',
        b'{"jsonrpc":"2.0","result":{"x":NaN,"id":%d}}',
        b'[%d,{"result":NaN}]',
        b"%d",
    ],
)
def test_a_broken_line_that_is_no_answer_for_certain_ends_no_call(exchange: Exchange, line: bytes) -> None:
    _, first = call(exchange, "1")
    assert isinstance(exchange.receive(line % first["id"], 0.0), Dropped)


def test_a_question_that_is_no_message_is_refused_and_touches_no_call(exchange: Exchange) -> None:
    """Its id may be that of a call: each side counts for itself."""
    _, line = call(exchange)
    for params in (b"[1]", b"7", b'{"x":NaN}'):
        question = b'{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":%b}' % (line["id"], params)
        told = exchange.receive(question, 0.0)
        assert isinstance(told, ToBackend)
        assert json.loads(told.line)["id"] == line["id"]
        assert json.loads(told.line)["error"]["code"] == -32600
    asked = exchange.receive(b'{"jsonrpc":"2.0","id":%d,"method":"roots/list","params":null}' % line["id"], 0.0)
    assert isinstance(asked, ToStream)
    assert len(exchange.calls) == 1


def test_an_answer_to_a_question_with_its_id_as_a_string_is_the_answer(exchange: Exchange) -> None:
    asked = sent(exchange, {"id": "q", "method": "roots/list"})
    assert isinstance(asked, ToStream)
    our_id = json.loads(asked.payload)["id"]
    line = exchange.questions.answer(client(f'{{"jsonrpc":"2.0","id":"{our_id}","result":{{}}}}'))
    assert line == b'{"jsonrpc":"2.0","id":"q","result":{}}'


def test_a_question_under_an_id_that_waits_is_refused_with_the_reason(exchange: Exchange) -> None:
    sent(exchange, {"id": "q", "method": "roots/list"})
    told = sent(exchange, {"id": "q", "method": "roots/list"})
    assert isinstance(told, ToBackend)
    assert "this id" in json.loads(told.line)["error"]["message"]


def test_an_error_without_an_id_ends_the_only_call_there_is(exchange: Exchange) -> None:
    call(exchange, "1")
    call(exchange, "2")
    error = {"code": -32700, "message": "Parse error"}
    assert sent(exchange, {"id": None, "error": error}) == Dropped("unknown_answer")
    exchange.abandon(next(iter(exchange.calls.values())))
    answer = sent(exchange, {"id": None, "error": error})
    assert isinstance(answer, Answer)
    assert json.loads(answer.payload()) == {"jsonrpc": "2.0", "id": 2, "error": error}
    call(exchange, "3")
    assert sent(exchange, {"id": None, "result": {}}) == Dropped("unknown_answer")


UNREAD = {"code": -32700, "message": "Parse error"}


def test_an_error_without_an_id_ends_no_call_after_which_something_else_was_sent(exchange: Exchange) -> None:
    changed = client('{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')
    exchange.notification(changed, 0.0)
    call(exchange, "1")
    exchange.notification(changed, 0.0)
    assert sent(exchange, {"id": None, "error": UNREAD}) == Dropped("unknown_answer")
    assert exchange.in_flight == 1


def test_nor_one_after_which_a_question_was_answered(exchange: Exchange) -> None:
    call(exchange, "1")
    asked = sent(exchange, {"id": "q", "method": "roots/list"})
    exchange.questions.answer(Response(asked.question, "result", asked.payload))
    assert sent(exchange, {"id": None, "error": UNREAD}) == Dropped("unknown_answer")
    ended = next(iter(exchange.calls.values()))
    answer(exchange, ended)
    call(exchange, "2")
    assert isinstance(sent(exchange, {"id": None, "error": UNREAD}), Answer)


@pytest.mark.parametrize("null", ["result", "error"])
def test_a_null_beside_the_outcome_is_none(exchange: Exchange, null: str) -> None:
    _, line = call(exchange)
    other = "error" if null == "result" else "result"
    answer = sent(exchange, {"id": line["id"], other: {"code": 1, "message": "m"}, null: None})
    assert isinstance(answer, Answer)
    assert answer.response.member == other


@pytest.mark.parametrize("form", [b"%b%b", b"%b  %b and a word", b"[%b,%b]"])
def test_several_messages_on_a_line_are_each_received(exchange: Exchange, form: bytes) -> None:
    lines = [b'{"jsonrpc":"2.0","id":%d,"result":{"a":[{}]}}' % call(exchange, str(n))[1]["id"] for n in (1, 2)]
    several = exchange.receive(form % tuple(lines), 0.0)
    assert isinstance(several, Several)
    assert all(isinstance(exchange.receive(line, 0.0), Answer) for line in several.lines[:2])
    assert not exchange.calls


@pytest.mark.parametrize(("progress", "is_read"), [(MAX_BATCH - 1, True), (MAX_BATCH, False)])
def test_a_batch_may_be_long(exchange: Exchange, progress: int, *, is_read: bool) -> None:
    _, line = call(exchange)
    news = [{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}] * progress
    batch = json.dumps([*news, {"jsonrpc": "2.0", "id": line["id"], "result": {}}]).encode()
    several = exchange.receive(batch, 0.0)
    assert isinstance(several, Several) == is_read
    if is_read:
        assert isinstance(several, Several)
        assert isinstance(exchange.receive(several.lines[-1], 0.0), Answer)


def test_of_several_messages_on_a_line_the_last_may_be_broken(exchange: Exchange) -> None:
    lines = [b'{"jsonrpc":"2.0","id":%d,"result":{' % call(exchange, str(n))[1]["id"] for n in (1, 2)]
    several = exchange.receive(lines[0] + b"}}" + lines[1], 0.0)
    assert isinstance(several, Several)
    assert [type(exchange.receive(line, 0.0)) for line in several.lines] == [Answer, Failed]


def test_a_line_over_the_limit_fails_the_call_that_its_beginning_names(exchange: Exchange) -> None:
    call(exchange, "1")
    _, second = call(exchange, "2")
    failed = exchange.receive_oversized(b'{"jsonrpc":"2.0","id":%d,"result":{"x' % second["id"])
    assert isinstance(failed, Failed)
    assert (failed.call.id, type(failed.error)) == (b"2", ResponseTooLarge)
    assert exchange.receive_oversized(b"x") == Dropped("oversized")


@pytest.mark.parametrize(
    "end", [b'"x"}]},"jsonrpc":"2.0","id":%d}', b'1}, "id": %d, "jsonrpc": "2.0" }\r', b'},"id":"%d"}']
)
def test_a_line_over_the_limit_whose_id_comes_last_fails_its_call_when_it_has_ended(
    exchange: Exchange, end: bytes
) -> None:
    """As the TypeScript SDK writes them."""
    call(exchange, "1")
    _, second = call(exchange, "2")
    beginning = b'{"result":{"content":[{"text":"'
    assert exchange.receive_oversized(beginning) == Dropped("oversized")
    failed = exchange.receive_oversized(beginning, end % second["id"])
    assert isinstance(failed, Failed)
    assert (failed.call.id, type(failed.error)) == (b"2", ResponseTooLarge)


def test_an_answer_over_the_limit_without_a_name_is_the_only_calls_when_it_has_ended(exchange: Exchange) -> None:
    call(exchange, "1")
    beginning = b'{"result":{"x'
    assert exchange.receive_oversized(beginning) == Dropped("oversized")
    assert exchange.receive_oversized(beginning, b'},"id":999}') == Dropped("oversized")  # a late one, to another
    assert exchange.receive_oversized(b'{"jsonrpc":"2.0","id":999,"result":{', b"}}") == Dropped("oversized")
    failed = exchange.receive_oversized(beginning, b'},"id":1.50}')
    assert isinstance(failed, Failed)
    assert failed.call.id == b"1"


def test_a_progress_token_is_replaced_or_the_request_refused(exchange: Exchange) -> None:
    """Never passed on as it came, where it would be another call's."""
    with pytest.raises(InvalidMessage):
        call(exchange, params='{"_meta":{"progressToken":1,"\\ud83d":1}}')
    assert not exchange.calls


@pytest.mark.parametrize(
    "ends",
    [
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"', b'"}}'),
        (b'{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":{', b"}}"),
        (b'{"method":"sampling/createMessage","params":{', b'},"jsonrpc":"2.0","id":%d}'),
        (b"a log line", b',"id":%d}'),
    ],
)
def test_a_line_over_the_limit_that_is_no_answer_to_a_call_ends_none(
    exchange: Exchange, ends: tuple[bytes, bytes]
) -> None:
    _, first = call(exchange, "1")
    beginning, end = (each.replace(b"%d", b"%d" % first["id"]) for each in ends)
    assert exchange.receive_oversized(beginning) == Dropped("oversized")
    assert exchange.receive_oversized(beginning, end) == Dropped("oversized")


def test_a_call_that_ends_without_its_answer_may_go_on_in_the_process(exchange: Exchange) -> None:
    call(exchange, "1")
    _, second = call(exchange, "2")
    _, third = call(exchange, "3")
    exchange.notification(client('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'), 0.0)
    (cancelled,) = exchange.expire(CANCEL_GRACE_S)
    named = exchange.receive_oversized(b'{"jsonrpc":"2.0","id":%d,"result":' % third["id"])
    broken = sent(exchange, {"id": second["id"]})
    call(exchange, "4")
    some_line = exchange.receive_oversized(b'{"result":', b"}}")
    call(exchange, "5")
    overdue, _ = exchange.expire(60.0)
    ends = [cancelled, named, broken, some_line, overdue]
    assert [isinstance(end, Failed) and end.may_go_on for end in ends] == [True, False, False, True, True]


def test_when_the_process_dies_every_call_gets_the_error_once(exchange: Exchange) -> None:
    call(exchange, "1")
    call(exchange, "2")
    failed = exchange.fail_all(BackendExited(), waiting=SessionNotFound())
    assert [each.call.id for each in failed] == [b"1", b"2"]
    assert exchange.fail_all(BackendExited(), waiting=SessionNotFound()) == []


def test_what_the_link_has_not_sent_fails_as_what_has_waited(exchange: Exchange) -> None:
    call(exchange, "1")
    call(exchange, "2")
    _, waits = exchange.calls
    failed = exchange.fail_all(BackendExited(), waiting=SessionNotFound(), unsent={waits})
    heard = {each.call.id: (type(each.error), each.was_sent) for each in failed}
    assert heard == {b"1": (BackendExited, True), b"2": (SessionNotFound, False)}


def test_a_call_that_waits_does_not_hear_what_those_hear_that_were_sent() -> None:
    exchange = Exchange(60.0, max_calls=1)
    call(exchange, "1")
    call(exchange, "2")
    failed = exchange.fail_all(BackendExited(), waiting=SessionNotFound())
    heard = {each.call.id: (type(each.error), each.was_sent) for each in failed}
    assert heard == {b"1": (BackendExited, True), b"2": (SessionNotFound, False)}
    assert (exchange.in_flight, exchange.next_turn(0.0)) == (0, None)


class _Dialogue:
    """Counts what every request of a random dialogue got."""

    def __init__(self) -> None:
        self.exchange = Exchange(60.0, max_calls=4)
        self.lines: list[tuple[str, int]] = []  # the client's id and ours
        self.answers: dict[str, int] = {}


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "answer", "repeat", "invent", "cancel", "question", "tick"]), st.integers(0, 30)
        )
    )
)
def test_whatever_happens_every_request_gets_at_most_one_answer_on_its_own_stream(steps: list[tuple[str, int]]) -> None:
    dialogue, now = _Dialogue(), 0.0
    exchange = dialogue.exchange

    def note(command: Any) -> None:
        if isinstance(command, Answer | Failed):
            client_id = command.call.id.decode()
            assert command.call.stream == f"stream of {client_id}"
            dialogue.answers[client_id] = dialogue.answers.get(client_id, 0) + 1

    serial = 0
    for step, number in steps:
        now += 0.5
        known = dialogue.lines[number % len(dialogue.lines)] if dialogue.lines else ("0", 0)
        if step == "ask" and exchange.in_flight < 4 + MIN_WAITING:
            serial += 1
            made, _ = call(exchange, str(serial), now=now)
            dialogue.lines.append((str(serial), int(made.gateway_id)))
        elif step in ("answer", "repeat"):
            note(sent(exchange, {"id": known[1], "result": {}}, now))
        elif step == "invent":
            note(sent(exchange, {"id": 10_000 + number, "result": {}}, now))
        elif step == "cancel":
            text = f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{known[0]}}}}}'
            note(exchange.withdraw(client(text)))
            exchange.notification(client(text), now)
        elif step == "question":
            note(sent(exchange, {"id": number, "method": "roots/list"}, now))
        else:
            for command in exchange.expire(now):
                note(command)
        turns(exchange, now)
        assert len(exchange.calls) == 4 or not exchange.waiting.calls
    for failed in exchange.fail_all(BackendExited(), waiting=SessionNotFound()):
        note(failed)
    assert all(count == 1 for count in dialogue.answers.values())
    assert len(dialogue.answers) == len(dialogue.lines)
