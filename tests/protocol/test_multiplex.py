"""Multiplex: a dialogue between sessions and one process, line by line."""

import json
from typing import Any

import pytest

from app.errors import BackendBusy, InvalidResponse, ResponseTooLarge
from app.protocol import multiplex as module
from app.protocol.commands import Dropped
from app.protocol.multiplex import MAX_LATE, MAX_URIS, Multiplex
from app.protocol.shared_call import FailCall, Member, ToAll, ToMember, ToProcess


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def greeted(**result: Any) -> Multiplex:
    shared = Multiplex()
    hello = json.loads(shared.hello())
    assert hello["params"]["capabilities"] == {}
    shared.from_process(line(id=hello["id"], result={"protocolVersion": "2025-11-25", "capabilities": {}, **result}))
    assert shared.greeting is not None
    return shared


def told(outs: list[Any], member: Member) -> list[dict[str, Any]]:
    return [json.loads(out.line) for out in outs if isinstance(out, ToMember) and out.member is member]


def written(outs: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(out.line) for out in outs if isinstance(out, ToProcess)]


def call(shared: Multiplex, member: Member, request_id: int = 1, **params: Any) -> dict[str, Any]:
    (sent,) = written(shared.from_session(member, line(id=request_id, method="tools/call", params=params)))
    return sent


def two() -> tuple[Multiplex, Member, Member]:
    shared = greeted()
    members = shared.join("a"), shared.join("b")
    for member in members:
        shared.from_session(member, line(id=0, method="initialize", params={"protocolVersion": "2025-06-18"}))
    return shared, *members


def test_equal_ids_of_two_sessions_are_two_ids_for_the_process() -> None:
    shared, a, b = two()
    first, second = call(shared, a), call(shared, b)
    assert first["id"] != second["id"]
    assert told(shared.from_process(line(id=second["id"], result={"n": 2})), b) == [
        {"jsonrpc": "2.0", "id": 1, "result": {"n": 2}}
    ]
    assert told(shared.from_process(line(id=first["id"], error={"code": -1, "message": "no"})), a)[0]["id"] == 1
    assert shared.from_process(line(id=first["id"], result={})) == [Dropped("unknown_answer")]


@pytest.mark.parametrize(
    ("server", "client", "agreed"),
    [
        ("2025-11-25", "2025-03-26", "2025-03-26"),
        ("2025-03-26", "2025-11-25", "2025-03-26"),
        ("2025-11-25", "2030-01-01", "2025-11-25"),
        ("1.0", "2025-11-25", "1.0"),
    ],
)
def test_the_revision_is_negotiated_as_the_server_would(server: str, client: str, agreed: str) -> None:
    shared = greeted(protocolVersion=server, instructions="be kind")
    member = shared.join(None)
    hello = line(id=7, method="initialize", params={"protocolVersion": client, "capabilities": {"sampling": {}}})
    (answer,) = told(shared.from_session(member, hello), member)
    assert (answer["id"], answer["result"]["protocolVersion"]) == (7, agreed)
    assert answer["result"]["instructions"] == "be kind"


def test_what_is_answered_here_never_reaches_the_process() -> None:
    shared, a, _ = two()
    for method in ("ping", "logging/setLevel", "server/discover"):
        outs = shared.from_session(a, line(id=3, method=method, params={"level": "debug"}))
        assert written(outs) == []
        assert told(outs, a)[0]["id"] == 3
    assert shared.from_session(a, line(method="notifications/initialized")) == []
    assert shared.from_session(a, line(method="notifications/roots/list_changed")) == []
    assert shared.from_session(a, line(id="q", result={})) == []


def test_progress_tokens_are_kept_apart() -> None:
    shared, a, b = two()
    first = call(shared, a, _meta={"progressToken": 1, "traceparent": "x"})
    second = call(shared, b, _meta={"progressToken": 1})
    assert first["params"]["_meta"] == {"progressToken": first["id"], "traceparent": "x"}
    outs = shared.from_process(
        line(method="notifications/progress", params={"progressToken": second["id"], "progress": 5})
    )
    assert told(outs, a) == []
    assert told(outs, b)[0]["params"] == {"progressToken": 1, "progress": 5}
    wrong = line(method="notifications/progress", params={"progressToken": 99, "progress": 5})
    assert shared.from_process(wrong) == [Dropped("unknown_progress")]


def test_a_cancelled_call_frees_its_place_and_may_still_be_answered() -> None:
    shared, a, _ = two()
    sent = call(shared, a, 5)
    cancel = line(method="notifications/cancelled", params={"requestId": 5, "reason": "enough"})
    (told_process,) = written(shared.from_session(a, cancel))
    assert told_process["params"] == {"requestId": sent["id"], "reason": "enough"}
    assert shared.busyness == (0, 2)
    assert shared.from_session(a, cancel) == []
    assert told(shared.from_process(line(id=sent["id"], result={})), a)[0]["id"] == 5


def test_late_answers_are_not_waited_for_without_end() -> None:
    shared, a, b = two()
    for number in range(1, MAX_LATE + 2):
        call(shared, a, number)
        shared.from_session(a, line(method="notifications/cancelled", params={"requestId": number}))
    assert len(a.calls) == MAX_LATE
    shared.tick()
    shared.tick()
    assert len(a.calls) == 0
    call(shared, b)
    assert told(shared.from_process(line(method="notifications/message", params={})), b)


def test_a_log_message_goes_to_the_one_session_that_has_a_call_or_to_nobody() -> None:
    shared, a, b = two()
    message = line(method="notifications/message", params={"level": "info", "data": "x"})
    assert shared.from_process(message) == [Dropped("unattributed")]
    sent = call(shared, a)
    assert told(shared.from_process(message), a)
    call(shared, b)
    assert shared.from_process(message) == [Dropped("unattributed")]
    shared.from_process(line(id=sent["id"], result={}))
    assert told(shared.from_process(message), b)


def test_questions_are_refused_and_pings_answered() -> None:
    shared, a, _ = two()
    call(shared, a)
    refusal, dropped = shared.from_process(line(id="q", method="sampling/createMessage", params={}))
    assert json.loads(refusal.line)["error"]["code"] == -32601  # type: ignore[union-attr]
    assert dropped == Dropped("shared_question")
    assert written(shared.from_process(line(id="p", method="ping"))) == [{"jsonrpc": "2.0", "id": "p", "result": {}}]


def test_an_oversized_line_fails_the_call_it_begins_with_and_never_another() -> None:
    shared, a, b = two()
    first, second = call(shared, a), call(shared, b)
    assert shared.oversized(b'{"result":{"x":"\\"id\\":%d,"id":%d,' % (second["id"], second["id"])) == [
        Dropped("oversized")
    ]
    (failed,) = shared.oversized(b'{"jsonrpc":"2.0","id":%d,"result":{' % first["id"])
    assert isinstance(failed, FailCall)
    assert (failed.member, failed.id, type(failed.error)) == (a, b"1", ResponseTooLarge)
    (failed,) = shared.oversized(b'{"result":{"x":"')  # it is the only one left
    assert isinstance(failed, FailCall)
    assert failed.member is b


def test_an_oversized_line_is_no_answer_unless_it_says_so() -> None:
    shared, a, b = two()
    first, second = call(shared, a), call(shared, b)
    question = b'{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":{' % first["id"]
    assert shared.oversized(question) == shared.oversized(question, b"}}") == [Dropped("oversized")]
    beginning, end = b'{"result":{', b'},"jsonrpc":"2.0","id":%d}' % second["id"]
    assert shared.oversized(beginning) == [Dropped("oversized")]
    (failed,) = shared.oversized(beginning, end)
    assert isinstance(failed, FailCall)
    assert failed.member is b


def test_what_msgspec_refuses_reaches_its_session() -> None:
    shared, a, b = two()
    first, second = call(shared, a), call(shared, b)
    cut = b'{"jsonrpc":"2.0","id":"%d","result":{"text":"\\ud83d"}}'
    for sent, member in ((first, a), (second, b)):
        (told,) = shared.from_process(cut % sent["id"])
        assert isinstance(told, ToMember)
        assert told.member is member
        assert b"\\ud83d" in told.line


def test_of_several_broken_answers_on_a_line_each_fails_its_own_call() -> None:
    shared, a, b = two()
    first, second = call(shared, a), call(shared, b)
    line_of = b'{"jsonrpc":"2.0","id":%d,"result":%b}'
    told, failed = shared.from_process(line_of % (first["id"], b"{}") + line_of % (second["id"], b"NaN"))
    assert isinstance(told, ToMember)
    assert told.member is a
    assert isinstance(failed, FailCall)
    assert failed.member is b


def test_an_error_without_an_id_is_the_only_calls() -> None:
    shared, a, b = two()
    first, second = call(shared, a), call(shared, b)
    error = {"code": -32700, "message": "Parse error"}
    assert shared.from_process(line(id=None, error=error)) == [Dropped("unknown_answer")]
    shared.from_process(line(id=first["id"], result={}))
    assert shared.from_process(line(id=None, result={})) == [Dropped("unknown_answer")]
    (told,) = shared.from_process(line(id=None, error=error))
    assert isinstance(told, ToMember)
    assert told.member is b
    assert shared.from_process(line(id=second["id"], result={})) == [Dropped("unknown_answer")]


def test_a_question_that_is_no_message_is_refused_and_touches_no_call() -> None:
    shared, a, _ = two()
    sent = call(shared, a)
    (refusal,) = shared.from_process(b'{"jsonrpc":"2.0","id":%d,"method":"roots/list","params":[]}' % sent["id"])
    assert json.loads(refusal.line)["error"]["code"] == -32600  # type: ignore[union-attr]
    assert shared.busyness[0] == 1


def test_an_answer_that_is_no_message_fails_its_call() -> None:
    shared, a, _ = two()
    sent = call(shared, a)
    (failed,) = shared.from_process(b'{"jsonrpc":"2.0","id":%d}' % sent["id"])
    assert isinstance(failed, FailCall)
    assert isinstance(failed.error, InvalidResponse)
    assert shared.from_process(b'{"jsonrpc":"2.0","id":77}') == [Dropped("invalid")]
    assert shared.from_process(b"a banner") == [Dropped("noise")]


def subscribe(shared: Multiplex, member: Member, uri: str, method: str = "resources/subscribe") -> list[Any]:
    return shared.from_session(member, line(id=uri + method, method=method, params={"uri": uri}))


def test_subscriptions_are_counted() -> None:
    shared, a, b = two()
    (sent,) = written(subscribe(shared, a, "x:1"))
    shared.from_process(line(id=sent["id"], result={}))
    assert written(subscribe(shared, b, "x:1")) == []
    updated = line(method="notifications/resources/updated", params={"uri": "x:1"})
    (out,) = shared.from_process(updated)
    assert isinstance(out, ToAll)
    assert out.members == [a, b]
    (below,) = shared.from_process(line(method="notifications/resources/updated", params={"uri": "x:1/y"}))
    assert isinstance(below, ToAll)
    assert below.members == [a, b]
    assert written(subscribe(shared, a, "x:1", "resources/unsubscribe")) == []
    assert [each["method"] for each in written(shared.leave(b))] == ["resources/unsubscribe"]
    assert shared.leave(b) == []


def test_a_refused_subscription_does_not_count_and_there_are_only_so_many() -> None:
    shared, a, _ = two()
    (sent,) = written(subscribe(shared, a, "x:1"))
    shared.from_process(line(id=sent["id"], error={"code": -1, "message": "no"}))
    for number in range(MAX_URIS):
        (sent,) = written(subscribe(shared, a, f"y:{number}"))
        shared.from_process(line(id=sent["id"], result={}))
    outs = subscribe(shared, a, "one too many")
    assert written(outs) == []
    assert "error" in told(outs, a)[0]
    assert written(subscribe(shared, a, "y:1", "resources/unsubscribe"))


def test_a_session_that_leaves_during_its_subscription_leaves_none_behind() -> None:
    shared, a, _ = two()
    (sent,) = written(subscribe(shared, a, "x:1"))
    shared.leave(a)
    outs = shared.from_process(line(id=sent["id"], result={}))
    assert [each["method"] for each in written(outs)] == ["resources/unsubscribe"]


def test_list_changes_go_to_all_that_have_opened() -> None:
    shared, a, b = two()
    shared.join("not yet open")
    (out,) = shared.from_process(line(method="notifications/tools/list_changed"))
    assert isinstance(out, ToAll)
    assert out.members == [a, b]


def test_who_leaves_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, a, b = two()
    sent = call(shared, a)
    other = call(shared, b)
    (cancelled,) = written(shared.leave(a))
    assert cancelled["params"]["requestId"] == sent["id"]
    assert shared.from_process(line(id=sent["id"], result={"secret": "of a"})) == []
    assert told(shared.from_process(line(id=other["id"], result={})), b)
    assert shared.busyness == (0, 1)


def test_too_much_that_waits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUNNING", 1)
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 460)
    shared, a, b = two()
    first = call(shared, a, 1)
    assert shared.from_session(a, line(id=2, method="tools/call", params={"x": "y" * 300})) == []
    (failed,) = shared.from_session(a, line(id=3, method="tools/call", params={"x": "y" * 300}))
    assert isinstance(failed, FailCall)
    assert isinstance(failed.error, BackendBusy)
    assert shared.from_session(a, line(id=4, method="tools/call", params={})) == []
    assert shared.from_session(a, line(method="notifications/cancelled", params={"requestId": 4})) == []
    assert call(shared, b)  # each may have one
    assert shared.busyness == (3, 2)
    outs = shared.from_process(line(id=first["id"], result={}))
    assert [each["params"] for each in written(outs)] == [{"x": "y" * 300}]


def test_a_paused_session_hears_answers_only_and_its_calls_wait() -> None:
    shared, a, _ = two()
    sent = call(shared, a, _meta={"progressToken": 1})
    shared.pause(a)
    progress = line(method="notifications/progress", params={"progressToken": sent["id"], "progress": 1})
    assert shared.from_process(progress) == [Dropped("session_slow")]
    assert shared.from_process(line(method="notifications/message", params={})) == [Dropped("unattributed")]
    assert shared.from_session(a, line(id=2, method="tools/call", params={})) == []
    assert told(shared.from_process(line(id=sent["id"], result={})), a)
    assert len(written(shared.resume(a))) == 1


def test_a_server_that_refuses_us_is_refused_unless_it_is_modern() -> None:
    shared = Multiplex()
    with pytest.raises(InvalidResponse):
        shared.from_process(line(id=0, error={"code": -32603, "message": "no"}))
    modern = Multiplex()
    error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
    modern.from_process(line(id=0, error=error))
    member = modern.join(None)
    (answer,) = told(modern.from_session(member, line(id=9, method="initialize", params={})), member)
    assert (answer["id"], answer["error"]["code"]) == (9, -32022)
    (sent,) = written(modern.from_session(member, line(id="l", method="subscriptions/listen", params={})))
    key = "io.modelcontextprotocol/subscriptionId"
    news = line(method="notifications/tools/list_changed", params={"_meta": {key: sent["id"]}})
    assert told(modern.from_process(news), member)[0]["params"]["_meta"] == {key: "l"}
    end = line(method="notifications/cancelled", params={"requestId": sent["id"]})
    assert told(modern.from_process(end), member)[0]["params"]["requestId"] == "l"
