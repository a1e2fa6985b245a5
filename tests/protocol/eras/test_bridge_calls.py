"""Bridge: one call of the session, the questions the server asks in it, and its end."""

import json
from typing import Any

import pytest

from app.protocol.eras.bridge import ToSession
from app.protocol.eras.input_required import MAX_ASKED, MAX_ROUNDS
from tests.protocol.eras.talk import ACCEPT, INFO, META, SAY, TOOL, Talk, envelope, one

# --- calls


def test_a_request_gets_its_envelope_and_the_answer_loses_what_is_new(talk: Talk) -> None:
    line = talk.call(_meta={"progressToken": 5, "traceparent": "00-a"}, arguments={"a": 1})
    assert (line["id"], line["method"], line["params"]["arguments"]) == (5, "tools/call", {"a": 1})
    assert envelope(line) == {
        "progressToken": 5, "traceparent": "00-a", "protocolVersion": "2026-07-28",
        "clientCapabilities": {"elicitation": {}}, "clientInfo": {"name": "c"},
    }  # fmt: skip
    answer = {
        "resultType": "complete",
        "ttlMs": 1,
        "cacheScope": "public",
        "_meta": {META + "serverInfo": INFO, "k": 1},
    }
    assert one("session", talk.server(id=5, result={**TOOL, **answer}))["result"] == {**TOOL, "_meta": {"k": 1}}


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_an_error_that_is_new_is_an_internal_one(talk: Talk, code: int) -> None:
    talk.call()
    error = {"code": code, "message": "why", "data": {"k": 1}}
    assert one("session", talk.server(id=5, error=error))["error"] == {**error, "code": -32603}


def test_any_other_error_passes(talk: Talk) -> None:
    talk.call()
    error = {"code": -32602, "message": "why"}
    assert one("session", talk.server(id=5, error=error))["error"] == error


def test_an_answer_to_nothing_is_dropped(talk: Talk) -> None:
    assert talk.server(id=99, result={}) == []
    talk.call()
    talk.server(id=5, result={})
    assert talk.server(id=5, result={}) == []


# --- input_required


def test_a_question_is_asked_and_its_answer_brings_the_next_round(talk: Talk) -> None:
    talk.call(_meta={"progressToken": 5})
    question = one("session", talk.asks(5, name=SAY))
    assert (question["method"], question["params"]) == ("elicitation/create", SAY["params"])
    line = one("server", talk.session(id=question["id"], result=ACCEPT))
    assert line["id"] != 5
    assert (line["params"]["inputResponses"], line["params"]["requestState"]) == ({"name": ACCEPT}, "s")
    assert line["params"]["name"] == "x"
    assert envelope(line)["progressToken"] == 5
    assert one("session", talk.server(id=line["id"], result=TOOL)) == {"jsonrpc": "2.0", "id": 5, "result": TOOL}


def test_a_question_belongs_to_its_call() -> None:
    talk = Talk().opened()
    talk.call()
    line = json.dumps(
        {"jsonrpc": "2.0", "id": 5, "result": {"resultType": "input_required", "inputRequests": {"k": SAY}}}
    )
    (out,) = talk.bridge.from_server(line.encode())
    assert isinstance(out, ToSession)
    assert out.related == b"5"


def test_several_questions_are_answered_together(talk: Talk) -> None:
    talk.call()
    (_, one_question), (_, other) = talk.asks(5, a=SAY, b=SAY)
    assert talk.session(id=other["id"], result={"action": "decline"}) == []
    assert talk.session(id=other["id"], result=ACCEPT) == [], "an answer counts once"
    line = one("server", talk.session(id=one_question["id"], result=ACCEPT))
    assert line["params"]["inputResponses"] == {"a": ACCEPT, "b": {"action": "decline"}}


def test_each_round_has_its_own_state_and_answers(talk: Talk) -> None:
    talk.call()
    first = one("server", talk.session(id=one("session", talk.asks(5, "s1", a=SAY))["id"], result=ACCEPT))
    question = one("session", talk.asks(first["id"], None, b=SAY))
    second = one("server", talk.session(id=question["id"], result=ACCEPT))
    assert second["params"]["inputResponses"] == {"b": ACCEPT}
    assert "requestState" not in second["params"]
    assert len({5, first["id"], second["id"]}) == 3


def test_a_state_without_a_question_begins_the_next_round_after_a_pause(talk: Talk) -> None:
    talk.call()
    pause = one("pause", talk.asks(5, "later"))
    assert talk.asks(5, "twice") == [], "the round is over"
    line = one("server", talk.goes_on(pause))
    assert line["params"]["requestState"] == "later"
    assert "inputResponses" not in line["params"]
    assert talk.goes_on(pause) == []


def test_a_server_that_asks_without_end_is_stopped(talk: Talk) -> None:
    inner: Any = talk.call()["id"]
    pauses = []
    for _ in range(MAX_ROUNDS):
        pauses.append(one("pause", talk.asks(inner)))
        inner = one("server", talk.goes_on(pauses[-1]))["id"]
    assert one("session", talk.asks(inner))["error"]["code"] == -32603
    assert [pause["seconds"] for pause in pauses] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5]


def test_a_question_ends_a_row_of_pauses(talk: Talk) -> None:
    line = talk.call()
    for _ in range(2):
        line = one("server", talk.goes_on(one("pause", talk.asks(line["id"]))))
    question = one("session", talk.asks(line["id"], k=SAY))
    line = one("server", talk.session(id=question["id"], result=ACCEPT))
    assert one("pause", talk.asks(line["id"]))["seconds"] == 0.05


def test_a_call_cancelled_in_a_pause_is_over_and_the_server_knows_already(talk: Talk) -> None:
    talk.call()
    pause = one("pause", talk.asks(5))
    assert talk.session(method="notifications/cancelled", params={"requestId": 5}) == []
    assert talk.goes_on(pause) == []


def test_a_server_that_asks_very_much_at_once_is_refused(talk: Talk) -> None:
    talk.call()
    many: dict[str, Any] = {f"q{number}": SAY for number in range(MAX_ASKED + 1)}
    refusal = one("session", talk.asks(5, **many))
    assert (refusal["id"], refusal["error"]["code"]) == (5, -32603)


@pytest.mark.parametrize("question", [
    {"method": "sampling/createMessage"}, {"method": "roots/list"}, {"method": "else"}, {}, 7,
])  # fmt: skip
def test_what_the_client_did_not_declare_is_not_asked(talk: Talk, question: Any) -> None:
    talk.call()
    refusal = one("session", talk.asks(5, fine=SAY, other=question))
    assert (refusal["id"], refusal["error"]["code"]) == (5, -32603)
    assert talk.server(id=5, result={}) == []


def test_an_error_of_the_client_is_the_answer_and_withdraws_what_else_was_asked(talk: Talk) -> None:
    talk.call()
    (_, first), (_, second) = talk.asks(5, a=SAY, b=SAY)
    error = {"code": -1, "message": "the person said no"}
    (_, answer), (_, withdrawn) = talk.session(id=first["id"], error=error)
    assert answer == {"jsonrpc": "2.0", "id": 5, "error": error}
    assert (withdrawn["method"], withdrawn["params"]) == ("notifications/cancelled", {"requestId": second["id"]})
    assert talk.session(id=second["id"], result=ACCEPT) == []


URL = {"method": "elicitation/create", "params": {"mode": "url", "url": "https://x.example", "message": "?"}}


@pytest.mark.parametrize(("version", "capabilities", "is_asked"), [
    ("2025-11-25", {"elicitation": {"url": {}}}, True),
    ("2025-11-25", {"elicitation": {}}, False),
    ("2025-11-25", {"elicitation": {"form": {}}}, False),
    ("2025-06-18", {"elicitation": {"url": {}}}, False),
])  # fmt: skip
def test_a_url_is_shown_only_to_clients_that_can(version: str, capabilities: Any, *, is_asked: bool) -> None:
    talk = Talk(version, capabilities).opened()
    talk.call()
    out = one("session", talk.asks(5, k=URL))
    assert ("method" in out) == is_asked
    if is_asked:
        assert out["params"]["elicitationId"]
    else:
        assert out["error"]["code"] == -32603


@pytest.mark.parametrize(("version", "has_mode"), [("2025-06-18", False), ("2025-11-25", True)])
def test_a_form_has_its_mode_where_the_revision_has_modes(version: str, *, has_mode: bool) -> None:
    talk = Talk(version).opened()
    talk.call()
    assert ("mode" in one("session", talk.asks(5, k=SAY))["params"]) == has_mode


# --- cancelling


def test_a_cancelled_call_is_cancelled_at_the_server(talk: Talk) -> None:
    talk.call()
    line = one("server", talk.session(method="notifications/cancelled", params={"requestId": 5, "reason": "why"}))
    assert (line["method"], line["params"]) == ("notifications/cancelled", {"requestId": 5, "reason": "why"})
    assert talk.server(id=5, result={}) == []


def test_a_call_cancelled_while_it_asks_withdraws_its_questions(talk: Talk) -> None:
    talk.call()
    question = one("session", talk.asks(5, k=SAY))
    withdrawn = one("session", talk.session(method="notifications/cancelled", params={"requestId": 5}))
    assert withdrawn["params"] == {"requestId": question["id"]}
    assert talk.session(id=question["id"], result=ACCEPT) == []


def test_a_call_cancelled_in_a_later_round_is_cancelled_under_that_rounds_id(talk: Talk) -> None:
    talk.call()
    line = one("server", talk.session(id=one("session", talk.asks(5, k=SAY))["id"], result=ACCEPT))
    cancelled = one("server", talk.session(method="notifications/cancelled", params={"requestId": 5}))
    assert cancelled["params"]["requestId"] == line["id"]


def test_cancelling_what_is_not_there_says_nothing(talk: Talk) -> None:
    assert talk.session(method="notifications/cancelled", params={"requestId": 99}) == []
    assert talk.session(method="notifications/cancelled") == []


def test_it_knows_whose_round_an_answer_is(talk: Talk) -> None:
    """It may be a later one than the call itself, which has another id."""
    talk.call()
    assert (talk.bridge.call_of(b"5"), talk.bridge.call_of(b"6")) == (b"5", None)
    question = one("session", talk.asks(5, name=SAY))
    line = one("server", talk.session(id=question["id"], result=ACCEPT))
    assert talk.bridge.call_of(json.dumps(line["id"]).encode()) == b"5"
