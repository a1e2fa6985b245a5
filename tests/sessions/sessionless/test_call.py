"""SessionlessCall: a call of a 2026-07-28 client whose process asks the client something in the middle of it."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import InvalidResponse
from app.sessions.sessionless.requests import SessionlessRequests
from app.sessions.streams.streams import MAX_EVENTS
from tests.sessions.sessionless.client import ACCEPT, ELICITS, TEXT, Client, finish, held, keys, refused, start, suspend
from tests.sessions.sessionless.servers import FakeServer, ServerPool, legacy_server, sessionless_server


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


@pytest.fixture
def client(sessionless: SessionlessRequests, principal: Principal) -> Client:
    return Client(sessionless, principal, {**ELICITS, "sampling": {}})


# --- asking


async def test_a_question_becomes_an_input_required_result(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool)
    assert result["resultType"] == "input_required"
    (question,) = result["inputRequests"].values()
    assert question == {"method": "elicitation/create", "params": {"message": "q1", "mode": "form"}}
    assert not {"ttlMs", "cacheScope"} & set(result)
    sent = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x")
    assert (await server.replied("q1"))["result"] == ACCEPT
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    assert (await sent.outcome())["content"] == TEXT["content"]
    assert len(server.sent_with("tools/call")) == 1, "nothing runs twice"


async def test_questions_that_come_together_are_asked_together(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool, "q1", "q2", "q3")
    assert set(keys(result)) == {"q1", "q2", "q3"}
    await finish(client, server, result, q2={"action": "decline"})
    assert [(await server.replied(q))["result"]["action"] for q in ("q1", "q2", "q3")] == [
        "accept",
        "decline",
        "accept",
    ]


async def test_questions_that_follow_each_other_are_rounds(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool)
    for round_number in (2, 3):
        before, sent = result, await client.go_on(result, {keys(result)[f"q{round_number - 1}"]: ACCEPT}, name="x")
        server.ask(f"q{round_number}", message=f"q{round_number}")
        result = await sent.outcome()
        assert list(keys(result)) == [f"q{round_number}"]
        assert result["requestState"] != before["requestState"]
        await refused(client, before, "state_spent")
    await finish(client, server, result)


async def test_what_was_not_answered_is_asked_again_and_what_was_not_asked_is_ignored(
    client: Client, pool: ServerPool
) -> None:
    result, server = await suspend(client, pool, "q1", "q2")
    first = keys(result)["q1"]
    sent = await client.go_on(result, {first: ACCEPT, "elicitation-999": ACCEPT, "x": 7}, name="x")
    again = await sent.outcome()
    assert list(keys(again)) == ["q2"]
    assert (await server.replied("q1"))["result"] == ACCEPT
    await finish(client, server, again)
    assert len([message for message in server.sent if message.get("id") == "q1"]) == 1


async def test_a_retry_without_answers_is_asked_the_same_again(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool)
    nothings: list[Any] = [{}, [], "text", None]
    for nothing in nothings:
        sent = await client.go_on(result, nothing, name="x")
        again = await sent.outcome()
        assert again["inputRequests"] == result["inputRequests"]
        result = again
    await finish(client, server, result)


async def test_a_question_that_the_process_withdraws_is_not_asked(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    server.ask("q1", message="q1")
    server.ask("q2", message="q2")
    server.say(method="notifications/cancelled", params={"requestId": "q1"})
    result = await sent.outcome()
    assert list(keys(result)) == ["q2"]
    await finish(client, server, result)


async def test_a_process_that_goes_on_without_the_client_is_heard_by_the_retry(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    result, server = await suspend(client, pool)
    server.say(method="notifications/cancelled", params={"requestId": "q1"})
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    assert not held(sessionless, principal), "the process is free as soon as it has answered"
    sent = await client.go_on(result, {}, name="x")
    assert (await sent.outcome())["content"] == TEXT["content"]


@pytest.mark.parametrize(
    ("method", "params", "capabilities"),
    [
        ("sampling/createMessage", {}, ELICITS),
        ("roots/list", {}, ELICITS),
        ("elicitation/create", {"mode": "url", "url": "https://x.example"}, ELICITS),
        ("elicitation/create", {"mode": "form"}, {"elicitation": {"url": {}}}),
        ("elicitation/create", {}, {}),
        ("something/else", {}, ELICITS),
    ],
)
async def test_what_the_client_did_not_declare_is_not_asked(
    sessionless: SessionlessRequests,
    principal: Principal,
    pool: ServerPool,
    method: str,
    params: Any,
    capabilities: Any,
) -> None:
    client = Client(sessionless, principal, capabilities)
    sent, server = await start(client, pool)
    server.ask("q1", method, **params)
    assert (await server.replied("q1"))["error"]["code"] == -32601
    server.answer({"isError": True, "content": []}, to=server.sent.index(server.sent_with("tools/call")[0]))
    outcome = await sent.outcome()
    need: Any = {"sampling/createMessage": {"sampling": {}}, "roots/list": {"roots": {}}}.get(method)
    if method == "elicitation/create":
        need = {"elicitation": {params["mode"]: {}} if params else {}}
    if need is None:
        assert outcome["isError"] is True
    else:
        assert (outcome["code"], outcome["data"]) == (-32021, {"requiredCapabilities": need})


async def test_a_url_elicitation_is_asked_of_a_client_that_can_and_has_no_id_of_its_own(
    sessionless: SessionlessRequests, principal: Principal, pool: ServerPool
) -> None:
    client = Client(sessionless, principal, {"elicitation": {"url": {}}})
    sent, server = await start(client, pool)
    server.ask("q1", mode="url", url="https://x.example", elicitationId="7", message="q1")
    result = await sent.outcome()
    (question,) = result["inputRequests"].values()
    assert question["params"] == {"mode": "url", "url": "https://x.example", "message": "q1"}
    await finish(client, server, result)


async def test_a_list_is_not_asked_anything(client: Client, pool: ServerPool) -> None:
    """Only calls, prompts and resources may be answered with `input_required` (patterns/mrtr)."""
    await (await client.send("tools/list")).outcome()
    server = pool.servers[0]
    del server.answers["tools/list"]
    listing = await client.send("tools/list")
    server.ask("q1", message="q1")
    assert (await server.replied("q1"))["error"]["code"] == -32601
    server.say(id=server.sent_with("tools/list")[-1]["id"], error={"code": -32603, "message": "no"})
    assert (await listing.outcome())["code"] == -32603


# --- what the client hears meanwhile


async def test_an_answer_that_came_while_nobody_waited_outlives_its_process(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool)
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    server.die()
    sent = await client.go_on(result, dict.fromkeys(result["inputRequests"], ACCEPT), name="x")
    assert (await sent.outcome())["content"] == TEXT["content"]


async def test_progress_while_the_client_answers_a_question_is_told_to_the_retry_with_its_token(
    client: Client, pool: ServerPool
) -> None:
    result, server = await suspend(client, pool, meta={"progressToken": "first"})
    (call,) = server.sent_with("tools/call")
    for step in (1, 2):
        server.say(method="notifications/progress", params={"progressToken": token_of(call), "progress": step})
    sent = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x", meta={"progressToken": "second"})
    server.say(method="notifications/progress", params={"progressToken": token_of(call), "progress": 3})
    server.answer(TEXT, to=server.sent.index(call))
    *told, answer = await sent.stream()
    assert [each["params"] for each in told] == [{"progressToken": "second", "progress": step} for step in (1, 2, 3)]
    assert answer["result"]["content"] == TEXT["content"]


async def test_progress_and_an_answer_that_came_while_nobody_waited_come_in_their_order(
    client: Client, pool: ServerPool
) -> None:
    result, server = await suspend(client, pool, meta={"progressToken": "first"})
    (call,) = server.sent_with("tools/call")
    server.say(method="notifications/progress", params={"progressToken": token_of(call), "progress": 1})
    server.say(method="notifications/cancelled", params={"requestId": "q1"})
    server.answer(TEXT, to=server.sent.index(call))
    sent = await client.go_on(result, {}, name="x", meta={"progressToken": "second"})
    told, answer = await sent.stream()
    assert (told["params"]["progress"], answer["result"]["content"]) == (1, TEXT["content"])


async def test_a_process_that_says_much_while_nobody_waits_is_remembered_as_far_as_a_stream_goes(
    client: Client, pool: ServerPool
) -> None:
    result, server = await suspend(client, pool, meta={"progressToken": "t"})
    (call,) = server.sent_with("tools/call")
    for step in range(MAX_EVENTS + 10):
        server.say(method="notifications/progress", params={"progressToken": token_of(call), "progress": step})
    sent = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x", meta={"progressToken": "t"})
    server.answer(TEXT, to=server.sent.index(call))
    *told, _ = await sent.stream()
    assert [each["params"]["progress"] for each in told] == list(range(10, MAX_EVENTS + 10))


def token_of(call: Any) -> Any:
    return call["params"]["_meta"]["progressToken"]


async def test_a_request_without_a_progress_token_hears_no_progress(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    server.say(method="notifications/progress", params={"progressToken": server.sent[-1]["id"], "progress": 1})
    server.answer(TEXT)
    await sent.outcome()


@pytest.mark.parametrize(("level", "heard"), [(None, []), ("debug", ["debug", "error"]), ("warning", ["error"])])
async def test_log_messages_go_to_requests_that_want_them_from_their_level_on(
    sessionless: SessionlessRequests, principal: Principal, pool: ServerPool, level: str | None, heard: list[str]
) -> None:
    client = Client(sessionless, principal, ELICITS, log_level=level)
    sent, server = await start(client, pool)
    assert len(server.sent_with("logging/setLevel")) == (level is not None)
    await anyio.wait_all_tasks_blocked()
    for each in ("debug", "error", "nonsense"):
        server.say(method="notifications/message", params={"level": each, "data": each})
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    if not heard:
        assert (await sent.outcome())["content"]
        return
    *logs, answer = await sent.stream()
    assert [message["params"]["level"] for message in logs] == heard
    assert answer["result"]["resultType"] == "complete"


async def test_a_call_that_was_streaming_is_asked_on_its_stream(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool, meta={"progressToken": 1})
    server.say(method="notifications/progress", params={"progressToken": server.sent[-1]["id"], "progress": 1})
    server.ask("q1", message="q1")
    *_, last = await sent.stream()
    assert last["result"]["resultType"] == "input_required"
    await finish(client, server, last["result"])


async def test_a_stream_that_ends_behind_its_question_takes_nothing_from_the_retry_that_is_there_already(
    client: Client, pool: ServerPool
) -> None:
    sent, server = await start(client, pool, meta={"progressToken": 1})
    server.say(method="notifications/progress", params={"progressToken": server.sent[-1]["id"], "progress": 1})
    server.ask("q1", message="q1")
    *_, last = await sent.stream()
    retry = await client.go_on(last["result"], {}, name="x")
    sent.leave()
    sent.call.expire(sent.reply)
    server.answer(TEXT)
    assert (await retry.outcome())["content"] == TEXT["content"]


# --- the backend's own words


async def test_an_unknown_resource_is_named_as_the_revision_has_it(client: Client, pool: ServerPool) -> None:
    sent = await client.send("resources/read", uri="a://b")
    server = pool.servers[0]
    server.say(id=server.sent[-1]["id"], error={"code": -32002, "message": "no such resource", "data": 7})
    assert await sent.outcome() == {"code": -32602, "message": "no such resource", "data": {"uri": "a://b"}}


@pytest.mark.parametrize("result", ["text", ["a"], 7, None, True])
async def test_a_result_that_is_no_object_is_an_error_and_not_an_empty_result(
    client: Client, pool: ServerPool, result: Any
) -> None:
    sent, server = await start(client, pool)
    server.say(id=server.sent_with("tools/call")[0]["id"], result=result)
    with pytest.raises(InvalidResponse, match="no JSON object"):
        await sent.outcome()


async def test_an_empty_result_is_one(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    server.answer({})
    assert (await sent.outcome())["resultType"] == "complete"


@pytest.mark.parametrize("make", [legacy_server, sessionless_server])
async def test_a_vendors_notification_comes_on_the_stream_of_the_call_it_belongs_to(
    client: Client, pool: ServerPool, make: Callable[[], FakeServer]
) -> None:
    pool.make = make
    sent, server = await start(client, pool)
    server.say(method="notifications/elicitation/complete", params={"elicitationId": "x"})
    server.say(method="acme/warmed_up", params={"to": 7})
    server.say(method="notifications/acme")
    server.answer({"resultType": "complete", **TEXT})
    *told, answer = await sent.stream()
    assert [(each["method"], each.get("params")) for each in told] == [
        ("acme/warmed_up", {"to": 7}),
        ("notifications/acme", None),
    ]
    assert answer["result"]["content"] == TEXT["content"]


async def test_what_a_sessionless_process_says_passes_as_it_is(client: Client, pool: ServerPool) -> None:
    pool.make = sessionless_server
    sent, server = await start(client, pool)
    server.ask("q1")
    assert (await server.replied("q1"))["error"]["code"] == -32601
    theirs = {
        "resultType": "input_required",
        "requestState": "theirs",
        "inputRequests": {"k": {"method": "roots/list"}},
    }
    server.answer(theirs, to=server.sent.index(server.sent_with("tools/call")[0]))
    outcome = await sent.outcome()
    sealed = outcome["requestState"]
    assert (outcome, sealed == "theirs") == ({**theirs, "requestState": sealed}, False)
    retry = await client.send(name="x", requestState=sealed, inputResponses={"k": {"roots": []}})
    assert server.sent[-1]["params"]["requestState"] == "theirs"
    server.answer(TEXT)
    assert await retry.outcome() == TEXT
