"""Bridge: a handshake-era session in front of a server that speaks 2026-07-28 only. Reads like a dialogue."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidMessage, ParseError
from app.protocol.eras.bridge import MAX_URIS
from tests.protocol.eras.talk import INFO, LISTS, META, Talk, envelope, one

# --- opening


@pytest.mark.parametrize(("asked", "answered"), [
    ("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25"),
    ("2026-07-28", "2025-11-25"), ("1999-01-01", "2025-11-25"),
])  # fmt: skip
def test_initialize_is_answered_from_discover(asked: str, answered: str) -> None:
    talk = Talk()
    hello = {"protocolVersion": asked, "capabilities": {"sampling": {}, "tasks": {}}, "clientInfo": {"name": "c"}}
    line = one("server", talk.session(id=1, method="initialize", params=hello))
    assert (line["id"], line["method"]) == (1, "server/discover")
    assert envelope(line) == {
        "protocolVersion": "2026-07-28", "clientCapabilities": {"sampling": {}}, "clientInfo": {"name": "c"},
    }  # fmt: skip
    about = {
        "supportedVersions": ["2026-07-28"], "ttlMs": 1, "cacheScope": "public", "resultType": "complete",
        "capabilities": {"tools": {}, "unheard_of": {}}, "instructions": "read me",
        "_meta": {META + "serverInfo": INFO},
    }  # fmt: skip
    answer = one("session", talk.server(id=1, result=about))
    assert answer == {"jsonrpc": "2.0", "id": 1, "result": {
        "protocolVersion": answered, "capabilities": {"tools": {}}, "serverInfo": INFO, "instructions": "read me",
    }}  # fmt: skip


def test_a_server_that_cannot_be_discovered_refuses_initialize() -> None:
    talk = Talk()
    talk.session(id=1, method="initialize", params={})
    error = {"code": -32603, "message": "no"}
    assert one("session", talk.server(id=1, error=error))["error"] == error


def test_a_server_without_a_name_is_unnamed() -> None:
    talk = Talk()
    talk.session(id=1, method="initialize", params={})
    assert one("session", talk.server(id=1, result={}))["result"]["serverInfo"] == {"name": "unnamed", "version": "0"}


def test_after_initialized_one_subscription_has_the_list_changes_that_the_server_offers() -> None:
    talk = Talk()
    talk.session(id=1, method="initialize", params={})
    talk.server(id=1, result={"capabilities": LISTS})
    line = one("server", talk.session(method="notifications/initialized"))
    assert (line["method"], line["params"]["notifications"]) == ("subscriptions/listen", {"toolsListChanged": True})
    assert envelope(line)["protocolVersion"] == "2026-07-28"


def test_a_server_that_offers_no_changes_is_not_listened_to() -> None:
    talk = Talk()
    talk.session(id=1, method="initialize", params={})
    talk.server(id=1, result={"capabilities": {"tools": {}}})
    assert talk.session(method="notifications/initialized") == []


# --- what the bridge answers itself


def test_a_ping_is_answered_here(talk: Talk) -> None:
    assert one("session", talk.session(id=2, method="ping")) == {"jsonrpc": "2.0", "id": 2, "result": {}}


def test_a_log_level_is_kept_and_sent_with_each_request() -> None:
    talk = Talk(server={"logging": {}}).opened()
    assert envelope(talk.call())["logLevel"] == "info"
    assert one("session", talk.session(id=2, method="logging/setLevel", params={"level": "error"}))["result"] == {}
    assert envelope(talk.call(6))["logLevel"] == "error"
    assert "logLevel" not in envelope(Talk().opened().call())


def test_an_unknown_log_level_is_refused_and_the_one_before_stays() -> None:
    talk = Talk(server={"logging": {}}).opened()
    talk.session(id=2, method="logging/setLevel", params={"level": "error"})
    for params in ({"level": "loud"}, {"level": 3}, {}):
        assert one("session", talk.session(id=3, method="logging/setLevel", params=params))["error"]["code"] == -32602
    assert envelope(talk.call())["logLevel"] == "error"


def test_a_session_hears_log_messages_from_its_level_on(talk: Talk) -> None:
    def said(level: str) -> int:
        return len(talk.server(method="notifications/message", params={"level": level, "data": "x"}))

    assert (said("debug"), said("info")) == (0, 1)
    talk.session(id=2, method="logging/setLevel", params={"level": "error"})
    assert (said("warning"), said("error"), said("of its own")) == (0, 1, 1)


def test_subscriptions_are_one_listen_that_is_replaced(talk: Talk) -> None:
    (_, listen), (_, old), (_, answer) = talk.session(id=2, method="resources/subscribe", params={"uri": "a://b"})
    assert listen["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
    assert (old["method"], answer["result"]) == ("notifications/cancelled", {})
    (_, again), (_, old), _ = talk.session(id=3, method="resources/subscribe", params={"uri": "c://d"})
    assert again["params"]["notifications"]["resourceSubscriptions"] == ["a://b", "c://d"]
    assert old["params"]["requestId"] == listen["id"]
    (_, less), (_, old), (_, answer) = talk.session(id=4, method="resources/unsubscribe", params={"uri": "a://b"})
    assert less["params"]["notifications"]["resourceSubscriptions"] == ["c://d"]
    assert (old["params"]["requestId"], answer) == (again["id"], {"jsonrpc": "2.0", "id": 4, "result": {}})


def test_the_last_unsubscription_ends_the_listen() -> None:
    talk = Talk(server={"resources": {"subscribe": True}}).opened()
    (_, listen), _ = talk.session(id=2, method="resources/subscribe", params={"uri": "a://b"})
    (to, end), _ = talk.session(id=3, method="resources/unsubscribe", params={"uri": "a://b"})
    assert (to, end["method"], end["params"]) == ("server", "notifications/cancelled", {"requestId": listen["id"]})


def test_a_subscription_without_a_uri_or_one_too_many_is_refused(talk: Talk) -> None:
    assert one("session", talk.session(id=2, method="resources/subscribe", params={}))["error"]["code"] == -32602
    for number in range(MAX_URIS):
        talk.session(id=number, method="resources/subscribe", params={"uri": f"a://{number}"})
    refused = one("session", talk.session(id=2, method="resources/subscribe", params={"uri": "a://more"}))
    assert refused["error"]["code"] == -32602
    assert talk.session(id=2, method="resources/subscribe", params={"uri": "a://0"})[-1][1]["result"] == {}


def test_what_the_server_need_not_know_stays_here(talk: Talk) -> None:
    assert talk.session(method="notifications/roots/list_changed") == []
    assert talk.session(id="unasked", result={}) == []


# --- what the server says unasked


def test_what_a_vendor_has_added_passes(talk: Talk) -> None:
    told = {"method": "acme/noticed", "params": {"x": 1}}
    assert talk.session(**told) == [("server", {"jsonrpc": "2.0", **told})]
    for result in (7, ["a"], "text", None):
        line = talk.call(5)
        assert one("session", talk.server(id=line["id"], result=result)) == {
            "jsonrpc": "2.0",
            "id": 5,
            "result": result,
        }


def test_an_error_without_an_id_is_no_calls_after_which_something_else_was_sent(talk: Talk) -> None:
    line = talk.call(5)
    assert talk.server(id=None, error={"code": -32603, "message": "x"}) == []
    talk.session(method="notifications/vendor")
    assert talk.server(id=None, error={"code": -32700, "message": "Parse error"}) == []
    assert one("session", talk.server(id=line["id"], result={}))["id"] == 5


def test_an_error_without_an_id_is_the_only_calls(talk: Talk) -> None:
    talk.call(5)
    error = {"code": -32700, "message": "Parse error"}
    assert one("session", talk.server(id=None, error=error)) == {"jsonrpc": "2.0", "id": 5, "error": error}
    assert talk.server(id=None, error=error) == []


def test_what_comes_on_the_subscription_is_told_without_its_tag(talk: Talk) -> None:
    listen = talk.session(id=2, method="resources/subscribe", params={"uri": "a://b"})[0][1]["id"]
    tag = {META + "subscriptionId": listen}
    ack = {"_meta": tag, "notifications": {}}
    assert talk.server(method="notifications/subscriptions/acknowledged", params=ack) == []
    told = one("session", talk.server(method="notifications/resources/updated", params={"uri": "a://b", "_meta": tag}))
    assert told == {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "a://b"}}
    told = one("session", talk.server(method="notifications/tools/list_changed", params={"_meta": {**tag, "k": 1}}))
    assert told["params"] == {"_meta": {"k": 1}}
    assert "params" not in one("session", talk.server(method="notifications/tools/list_changed", params={"_meta": tag}))


def test_what_comes_on_a_subscription_that_was_replaced_is_dropped(talk: Talk) -> None:
    for tag in ("listen-1", "invented", 5, None):
        talk.session(id=2, method="resources/subscribe", params={"uri": "a://b"})
        meta = {META + "subscriptionId": tag}
        assert talk.server(method="notifications/tools/list_changed", params={"_meta": meta}) == []


def test_progress_and_log_messages_pass(talk: Talk) -> None:
    for method in ("notifications/progress", "notifications/message"):
        assert one("session", talk.server(method=method, params={"k": 1}))["params"] == {"k": 1}


def test_a_server_that_writes_a_request_is_refused(talk: Talk) -> None:
    refusal = one("server", talk.server(id="s1", method="sampling/createMessage", params={}))
    assert (refusal["id"], refusal["error"]["code"]) == ("s1", -32601)


@pytest.mark.parametrize(("line", "error"), [(b"noise", ParseError), (b"[]", InvalidMessage), (b"{}", InvalidMessage)])
def test_what_is_no_message_is_for_the_caller_to_count(talk: Talk, line: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        list(talk.bridge.from_server(line))


def test_a_call_that_was_abandoned_hears_nothing_more(talk: Talk) -> None:
    line = talk.call(5)
    assert talk.bridge.abandon(b"5") == b"5"
    assert talk.bridge.abandon(b"5") is None
    assert talk.server(id=line["id"], result={}) == []


def test_a_later_round_is_known_by_its_own_id(talk: Talk) -> None:
    later = one("server", talk.goes_on(one("pause", talk.asks(talk.call(5)["id"]))))
    round_id = json.dumps(later["id"]).encode()
    assert talk.bridge.abandon(b"5") is None
    assert talk.bridge.abandon(round_id) == b"5"


# --- any order


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "answer", "fail", "ask", "reply", "refuse", "cancel", "subscribe", "noise"]),
        st.integers(0, 5),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(STEPS)
def test_in_any_order_each_request_is_answered_at_most_once_under_its_own_id(
    steps: list[tuple[str, int, int]],
) -> None:
    """Each call's arguments name it; an answer carries the name it was given, so that a mixed up one shows."""
    talk = Talk().opened()
    calls = 0
    inner: list[tuple[Any, int]] = []  # what the server was asked: id, and whose call it says it is
    questions: list[tuple[Any, int]] = []
    cancelled: set[int] = set()
    answered: dict[int, Any] = {}
    for step, which, count in steps:
        outs: list[tuple[str, dict[str, Any]]] = []
        if step == "call":
            calls += 1
            outs = talk.session(id=100 + calls, method="tools/call", params={"name": "x", "arguments": {"mine": calls}})
        elif step == "cancel" and calls:
            cancelled.add(which % calls + 1)
            outs = talk.session(method="notifications/cancelled", params={"requestId": 100 + which % calls + 1})
        elif step == "subscribe":
            outs = talk.session(id=1, method="resources/subscribe", params={"uri": f"a://{which}"})
            outs = [out for out in outs if out[1].get("id") != 1]
        elif step in ("answer", "fail", "ask") and inner:
            inner_id, mine = inner[which % len(inner)]
            if step == "ask":
                ask = {"method": "elicitation/create", "params": {"message": str(mine)}}
                outs = talk.asks(inner_id, str(mine), **{f"k{number}": ask for number in range(count)})
            elif step == "answer":
                outs = talk.server(id=inner_id, result={"mine": mine})
            else:
                outs = talk.server(id=inner_id, error={"code": mine, "message": "no"})
        elif step in ("reply", "refuse") and questions:
            question_id, mine = questions[which % len(questions)]
            member = {"result": {"mine": mine}} if step == "reply" else {"error": {"code": mine, "message": "no"}}
            outs = talk.session(id=question_id, **member)
        elif step == "noise":
            outs = talk.server(id=f"invented-{which}", result={"mine": -1})
        for to, message in outs:
            if to == "server" and message["method"] == "tools/call":
                mine = message["params"]["arguments"]["mine"]
                assert message["params"].get("requestState", str(mine)) == str(mine)
                assert all(given["mine"] == mine for given in message["params"].get("inputResponses", {}).values())
                inner.append((message["id"], mine))
            elif to == "session" and message.get("method") == "elicitation/create":
                questions.append((message["id"], int(message["params"]["message"])))
            elif to == "session" and "method" not in message:
                mine = message["id"] - 100
                assert mine not in answered, "answered twice"
                assert mine not in cancelled, "answered after it was cancelled"
                answered[mine] = message
                said_mine = message["result"]["mine"] if "result" in message else message["error"]["code"]
                assert said_mine in (mine, -32603)
    assert len({question for question, _ in questions}) == len(questions)
