"""Multiplex: a dialogue between sessions and one process, line by line."""

import json
from typing import Any

import pytest

from app.errors import BackendBusy, InvalidResponse, ResponseTooLarge
from app.protocol.commands import Dropped
from app.protocol.shared import _process_calls as process_calls
from app.protocol.shared import _task_owners as task_owners
from app.protocol.shared import multiplex as module
from app.protocol.shared._process_calls import MAX_LATE
from app.protocol.shared.multiplex import MAX_URIS, Multiplex
from app.protocol.shared.shared_call import FailCall, Member, ToAll, ToMember, ToProcess
from app.protocol.shared.subscriptions import MAX_DEPTH, concerns


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def greeted(*, broadcast: bool = False, **result: Any) -> Multiplex:
    shared = Multiplex(broadcast=broadcast)
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


def two(**fields: Any) -> tuple[Multiplex, Member, Member]:
    shared = greeted(**fields)
    members = shared.join("a", "ann"), shared.join("b", "bob")
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
    member = shared.join(None, "ann")
    hello = line(id=7, method="initialize", params={"protocolVersion": client, "capabilities": {"sampling": {}}})
    (answer,) = told(shared.from_session(member, hello), member)
    assert (answer["id"], answer["result"]["protocolVersion"]) == (7, agreed)
    assert answer["result"]["instructions"] == "be kind"


def test_what_is_answered_here_never_reaches_the_process() -> None:
    shared, a, _ = two()
    for method in ("ping", "server/discover"):
        outs = shared.from_session(a, line(id=3, method=method, params={}))
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
    assert shared.oversized(b'{"result":{', b"}}") != [Dropped("oversized")]  # it is the only call


NOBODYS = [
    ("notifications/message", {"level": "info", "data": "x"}),
    ("notifications/vendor/said", {"data": "x"}),
    ("notifications/tasks/status", {"taskId": "nobody's", "status": "working"}),
    ("notifications/elicitation/complete", {"elicitationId": "e"}),
]


@pytest.mark.parametrize(("method", "params"), NOBODYS)
def test_what_names_no_call_goes_to_nobody_whoever_has_one(method: str, params: dict[str, Any]) -> None:
    shared, a, b = two()
    message = line(method=method, params=params)
    assert shared.from_process(message) == [Dropped("unattributed")]
    call(shared, a)
    assert shared.from_process(message) == [Dropped("unattributed")]
    call(shared, b)
    assert shared.from_process(message) == [Dropped("unattributed")]


@pytest.mark.parametrize(("method", "params"), NOBODYS)
def test_or_to_all_that_are_open_where_the_administrator_says_so(method: str, params: dict[str, Any]) -> None:
    shared, a, b = two(broadcast=True)
    shared.join("not yet open", "ann")
    call(shared, a)
    outs = shared.from_process(line(method=method, params=params))
    assert [(out.member, json.loads(out.line)["params"]) for out in outs] == [(a, params), (b, params)]  # type: ignore[union-attr]
    shared.pause(a)
    (out,) = shared.from_process(line(method=method, params=params))
    assert isinstance(out, ToMember)
    assert out.member is b


def test_a_sessionless_process_broadcasts_to_sessions_that_never_open_here() -> None:
    shared = Multiplex(broadcast=True)
    error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
    shared.from_process(line(id=0, error=error))
    a, b = shared.join("a", "ann"), shared.join("b", "bob")
    outs = shared.from_process(line(method="notifications/message", params={"level": "debug", "data": 1}))
    assert told(outs, a)
    assert told(outs, b), "their levels come with their requests"


def test_a_process_cannot_flood_all_its_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BROADCAST_BYTES", 4 * module.LEAST_BYTES)
    shared, _, _ = two(broadcast=True)
    message = line(method="notifications/vendor/said")
    for _ in range(2):
        assert len(shared.from_process(message)) == 2
    assert shared.from_process(message) == [Dropped("broadcast_limit")]
    shared.tick()
    assert len(shared.from_process(message)) == 2
    assert shared.from_process(line(method="notifications/vendor/said", params={"x": "y" * 9999})) == [
        Dropped("broadcast_limit")
    ]


# --- log levels


def set_level(shared: Multiplex, member: Member, level: Any) -> tuple[list[str], dict[str, Any]]:
    outs = shared.from_session(member, line(id="lv", method="logging/setLevel", params={"level": level}))
    (answer,) = told(outs, member)
    return [each["params"]["level"] for each in written(outs)], answer


def test_the_process_is_told_the_lowest_level_and_each_session_hears_its_own() -> None:
    shared, a, b = two(broadcast=True, capabilities={"logging": {}})
    assert set_level(shared, a, "error") == (["info"], {"jsonrpc": "2.0", "id": "lv", "result": {}})  # b's
    assert set_level(shared, b, "debug")[0] == ["debug"]

    def hearing(level: str) -> list[Member]:
        outs = shared.from_process(line(method="notifications/message", params={"level": level, "data": "x"}))
        return [out.member for out in outs if isinstance(out, ToMember)]

    assert (hearing("debug"), hearing("warning")) == ([b], [b])
    assert (hearing("error"), hearing("emergency"), hearing("of its own")) == ([a, b], [a, b], [])
    assert set_level(shared, b, "critical")[0] == ["error"]
    assert set_level(shared, b, "alert")[0] == []
    assert [each["params"] for each in written(shared.leave(a))] == [{"level": "alert"}]
    c = shared.join("c", "cid")
    hello = line(id=0, method="initialize", params={"protocolVersion": "2025-06-18"})
    assert [each["params"] for each in written(shared.from_session(c, hello))] == [{"level": "info"}]
    assert hearing("debug") == []
    assert hearing("info") == [c]


@pytest.mark.parametrize("level", ["verbose", "", "Debug", 7, None])
def test_an_unknown_level_is_refused_and_changes_nothing(level: Any) -> None:
    shared, a, _ = two(capabilities={"logging": {}})
    sent, answer = set_level(shared, a, level)
    assert (sent, answer["error"]["code"]) == ([], -32602)
    assert written(shared.leave(a)) == []


def test_a_process_without_log_levels_is_told_none() -> None:
    shared, a, _ = two()
    assert set_level(shared, a, "debug")[0] == []


# --- tasks


NO_SUCH_TASK = {"code": -32602, "message": "Task not found"}
AS_2025: dict[str, Any] = {"task": {"taskId": "t1", "status": "working"}}
AS_2026: dict[str, Any] = {"resultType": "task", "taskId": "t1", "status": "working"}


def make(shared: Multiplex, member: Member, task: str = "t1") -> None:
    sent = call(shared, member, 77, task={"ttl": 1})
    made = {"task": {"taskId": task, "status": "working"}}
    assert told(shared.from_process(line(id=sent["id"], result=made)), member)[0]["result"] == made


def ask(shared: Multiplex, member: Member, method: str, **params: Any) -> list[Any]:
    return shared.from_session(member, line(id="ask", method=method, params=params))


TASK_METHODS = ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"]


@pytest.mark.parametrize("made", [AS_2025, AS_2026])
@pytest.mark.parametrize("method", TASK_METHODS)
def test_a_task_is_its_principals_alone(method: str, made: dict[str, Any]) -> None:
    shared, a, b = two()
    again = shared.join("again", "ann")
    sent = call(shared, a, 77)
    shared.from_process(line(id=sent["id"], result=made))
    for member in (a, again):
        assert written(ask(shared, member, method, taskId="t1"))
    (refused,) = told(ask(shared, b, method, taskId="t1"), b)
    (unknown,) = told(ask(shared, b, method, taskId="t9"), b)
    assert refused == unknown == {"jsonrpc": "2.0", "id": "ask", "error": NO_SUCH_TASK}
    assert written(ask(shared, b, method, taskId="t1")) == []
    assert told(ask(shared, a, method, taskId=["t1"]), a)[0]["error"] == NO_SUCH_TASK
    assert told(ask(shared, a, method), a)[0]["error"] == NO_SUCH_TASK
    shared.leave(a)
    assert written(ask(shared, again, "tasks/get", taskId="t1")), "tasks outlive the session"


def test_only_its_maker_may_name_a_task_in_another_request() -> None:
    shared, a, b = two()
    make(shared, a)
    meta = {"io.modelcontextprotocol/related-task": {"taskId": "t1"}}
    assert written(ask(shared, a, "tools/call", _meta=meta))
    assert told(ask(shared, b, "tools/call", _meta=meta), b)[0]["error"] == NO_SUCH_TASK


def test_a_list_of_tasks_is_filtered_page_by_page() -> None:
    shared, a, b = two()
    for member, task in ((a, "t1"), (b, "t2"), (a, "t3")):
        make(shared, member, task)
    (sent,) = written(ask(shared, a, "tasks/list"))
    page = {"tasks": [{"taskId": f"t{n}", "x": n} for n in range(5)], "nextCursor": "after-t2", "total": 9}
    (answer,) = told(shared.from_process(line(id=sent["id"], result=page)), a)
    cursor = answer["result"].pop("nextCursor")
    assert answer["result"] == {"tasks": [{"taskId": "t1", "x": 1}, {"taskId": "t3", "x": 3}]}
    assert "t2" not in cursor
    assert told(ask(shared, b, "tasks/list", cursor=cursor), b)[0]["error"]["code"] == -32602
    assert told(ask(shared, a, "tasks/list", cursor="after-t2"), a)[0]["error"]["code"] == -32602
    (sent,) = written(ask(shared, a, "tasks/list", cursor=cursor))
    assert sent["params"]["cursor"] == "after-t2"
    for odd in ({"tasks": "?"}, {"tasks": [7, {"taskId": 7}, None]}, {}):
        assert told(shared.from_process(line(id=sent["id"], result=odd)), a)[0]["result"] == {"tasks": []}
        (sent,) = written(ask(shared, a, "tasks/list", cursor=cursor))


def test_what_is_said_of_a_task_goes_to_the_session_that_made_it() -> None:
    shared, a, b = two(broadcast=True)
    again = shared.join("again", "ann")
    shared.from_session(again, line(id=0, method="initialize", params={}))
    make(shared, a)
    related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t1"}}}
    status = line(method="notifications/tasks/status", params={"taskId": "t1", "status": "completed"})
    log = line(method="notifications/message", params={"level": "error", "data": "x", **related})
    debug = line(method="notifications/message", params={"level": "debug", "data": "x", **related})
    call(shared, b)
    for message in (status, log):
        assert shared.from_process(message) == [ToMember(a, message)]
    assert shared.from_process(debug) == [Dropped("unattributed")]
    shared.leave(a)
    assert shared.from_process(status) == [Dropped("unattributed")], "it has an owner: it is never told to all"


def test_a_subscription_may_name_ones_own_tasks_only() -> None:
    shared, a, b = two()
    make(shared, a)
    make(shared, b, "t2")
    wanted = {"taskIds": ["t1", "t2", 3], "toolsListChanged": True}
    (sent,) = written(ask(shared, a, "subscriptions/listen", notifications=wanted))
    assert sent["params"]["notifications"] == {"taskIds": ["t1"], "toolsListChanged": True}


def test_tasks_are_forgotten_the_oldest_of_who_has_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_owners, "MAX_TASKS", 4)
    monkeypatch.setattr(task_owners, "MAX_OF_ONE", 3)
    shared, a, b = two()
    make(shared, b, "b1")
    for number in range(5):
        make(shared, a, f"a{number}")
    assert told(ask(shared, a, "tasks/get", taskId="a1"), a)[0]["error"] == NO_SUCH_TASK
    make(shared, b, "b2")
    assert told(ask(shared, a, "tasks/get", taskId="a2"), a)[0]["error"] == NO_SUCH_TASK
    for member, task in ((a, "a3"), (a, "a4"), (b, "b1"), (b, "b2")):
        assert written(ask(shared, member, "tasks/get", taskId=task))
    long = "t" * (task_owners.MAX_TASK_ID + 1)
    make(shared, a, long)
    assert told(ask(shared, a, "tasks/get", taskId=long), a)[0]["error"] == NO_SUCH_TASK


def test_a_task_that_two_were_given_is_nobodys() -> None:
    shared, a, b = two()
    make(shared, a)
    make(shared, b)
    for member in (a, b):
        assert told(ask(shared, member, "tasks/get", taskId="t1"), member)[0]["error"] == NO_SUCH_TASK


def test_an_answer_that_only_speaks_of_a_task_makes_none() -> None:
    shared, a, _ = two()
    for result in ({"content": [{"text": '"taskId"'}], "taskId": "t1"}, {"structuredContent": {"taskId": "t1"}}):
        sent = call(shared, a, 77)
        assert told(shared.from_process(line(id=sent["id"], result=result)), a)[0]["result"] == result
    assert told(ask(shared, a, "tasks/get", taskId="t1"), a)[0]["error"] == NO_SUCH_TASK


def test_a_session_keeps_a_bounded_number_of_places_in_lists() -> None:
    shared, a, _ = two()
    cursors = []
    for number in range(task_owners.MAX_CURSORS + 1):
        (sent,) = written(ask(shared, a, "tasks/list"))
        page = {"tasks": [], "nextCursor": f"c{number}"}
        cursors.append(told(shared.from_process(line(id=sent["id"], result=page)), a)[0]["result"]["nextCursor"])
    assert "error" in told(ask(shared, a, "tasks/list", cursor=cursors[0]), a)[0]
    (sent,) = written(ask(shared, a, "tasks/list", cursor=cursors[1]))
    page = {"tasks": [], "nextCursor": "c" * task_owners.MAX_CURSOR_BYTES}
    assert told(shared.from_process(line(id=sent["id"], result=page)), a)[0]["result"] == {"tasks": []}


# ---


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
    (failed,) = shared.oversized(b'{"result":{"x":"', b'"}}')  # it is the only one left
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


def test_an_error_without_an_id_is_no_calls_after_which_the_gateway_has_asked_something() -> None:
    shared, a, b = two(capabilities={"logging": {}})
    first = call(shared, a)
    shared.from_session(b, line(id=2, method="logging/setLevel", params={"level": "debug"}))
    unread = line(id=None, error={"code": -32700, "message": "Parse error"})
    assert shared.from_process(unread) == [Dropped("unknown_answer")]
    assert told(shared.from_process(line(id=first["id"], result={})), a)[0]["id"] == 1
    second = call(shared, a)
    failure = line(id=None, error={"code": -32603, "message": "something else"})
    assert shared.from_process(failure) == [Dropped("unknown_answer")]
    assert told(shared.from_process(line(id=second["id"], result={})), a)[0]["id"] == 1


def test_a_token_that_comes_back_as_a_string_is_recognised() -> None:
    shared, a, _ = two()
    sent = call(shared, a, _meta={"progressToken": "abc"})
    for token in (str(sent["id"]), float(sent["id"])):
        outs = shared.from_process(line(method="notifications/progress", params={"progressToken": token}))
        assert told(outs, a)[0]["params"] == {"progressToken": "abc"}


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
    (refusal,) = shared.from_process(b'{"jsonrpc":"2.0","id":%d,"method":"roots/list","params":[1]}' % sent["id"])
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
    return shared.from_session(member, line(id=(uri + method)[-99:], method=method, params={"uri": uri}))


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


@pytest.mark.parametrize(
    ("subscribed", "updated", "is_told"),
    [
        ("file:///a/b", "file:///a/b", True),
        ("file:///a", "file:///a/b", True),
        ("file:///a/", "file:///a/b", True),
        ("file:///", "file:///a/b", True),
        ("file:///a/b", "file:///a/bc", False),
        ("file:///a/b", "file:///a", False),
        ("file:///a", "file:///a/../b", False),
        ("file:///a", "file:///a/b/..", False),
        ("file:", "file:///a/b", False),
        ("test://a", "test://a/b", True),
        ("test://", "test://a/b", False),
        ("test:/", "test://a/b", False),
        ("test://a", "test://ab", False),
        ("x:1", "x:1/y", True),
        ("x:1", "x:10", False),
        ("", "x:1", False),
        ("x:" + "/a" * (MAX_DEPTH - 1), "x:" + "/a" * MAX_DEPTH, True),
        ("x:" + "/a" * MAX_DEPTH, "x:" + "/a" * (MAX_DEPTH + 1), False),
    ],
)
def test_an_update_concerns_whole_path_elements(subscribed: str, updated: str, is_told: bool) -> None:
    shared, a, b = two()
    for member, uri in ((a, subscribed), (b, updated)):
        for sent in written(subscribe(shared, member, uri)):
            shared.from_process(line(id=sent["id"], result={}))
    (out,) = shared.from_process(line(method="notifications/resources/updated", params={"uri": updated}))
    assert isinstance(out, ToAll)
    assert set(out.members) == ({a, b} if is_told else {b})
    assert concerns(updated, subscribed) is is_told


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
    shared.join("not yet open", "ann")
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
    monkeypatch.setattr(process_calls, "MAX_RUNNING", 1)
    monkeypatch.setattr(process_calls, "MAX_WAITING_BYTES", 460)
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
    assert shared.from_session(a, line(id=2, method="tools/call", params={})) == []
    assert told(shared.from_process(line(id=sent["id"], result={})), a)
    assert len(written(shared.resume(a))) == 1


def test_a_server_that_refuses_us_is_refused_unless_it_is_sessionless() -> None:
    shared = Multiplex()
    with pytest.raises(InvalidResponse):
        shared.from_process(line(id=0, error={"code": -32603, "message": "no"}))
    sessionless = Multiplex()
    error = {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}
    sessionless.from_process(line(id=0, error=error))
    member = sessionless.join(None, "ann")
    (answer,) = told(sessionless.from_session(member, line(id=9, method="initialize", params={})), member)
    assert (answer["id"], answer["error"]["code"]) == (9, -32022)
    (sent,) = written(sessionless.from_session(member, line(id="l", method="subscriptions/listen", params={})))
    key = "io.modelcontextprotocol/subscriptionId"
    news = line(method="notifications/tools/list_changed", params={"_meta": {key: sent["id"]}})
    assert told(sessionless.from_process(news), member)[0]["params"]["_meta"] == {key: "l"}
    end = line(method="notifications/cancelled", params={"requestId": sent["id"]})
    assert told(sessionless.from_process(end), member)[0]["params"]["requestId"] == "l"


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":0,"result":NaN}',
        b'{"jsonrpc":"2.0","id":0}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}',
    ],
)
def test_a_broken_answer_to_the_first_request_is_told_at_once(line: bytes) -> None:
    shared = Multiplex()
    shared.hello()
    with pytest.raises(InvalidResponse):
        shared.from_process(line)


@pytest.mark.parametrize("ends", [(b'{"jsonrpc":"2.0","id":0,"result":{', b""), (b'{"result":{', b'},"id":0}')])
def test_an_answer_to_the_first_request_that_is_too_long_is_told_at_once(ends: tuple[bytes, bytes]) -> None:
    shared = Multiplex()
    shared.hello()
    with pytest.raises(InvalidResponse):
        shared.oversized(*ends)
