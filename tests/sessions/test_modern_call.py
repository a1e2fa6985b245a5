"""ModernCall: a call of a 2026-07-28 client whose process asks the client something in the middle of it."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from app.auth.sealing import Sealer
from app.domain import Principal
from app.errors import BackendBusy, BackendExited, BackendTimeout, GatewayError, ResponseTooLarge, StateRefused
from app.metrics import Metrics
from app.protocol.exchange import CANCEL_GRACE_S
from app.protocol.modern import LOG_LEVEL_KEY
from app.sessions import suspended
from app.sessions.directory import BackendDirectory
from app.sessions.implicit import ImplicitSessions
from app.sessions.registry import SessionRegistry
from app.sessions.suspended import SUSPENDED_S
from tests.sessions.fakes import alone
from tests.sessions.modern_client import ELICITS, Client, Sent, held, refused, start
from tests.sessions.servers import FakeServer, ServerPool, modern_server

TEXT = {"content": [{"type": "text", "text": "hi"}]}
ACCEPT = {"action": "accept", "content": {"name": "Ada"}}


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


@pytest.fixture
async def registry(pool: ServerPool, directory: BackendDirectory) -> AsyncIterator[SessionRegistry]:
    typed_pool: Any = pool
    async with SessionRegistry(directory, typed_pool, Metrics("test"), alone(), max_sessions=50) as registry:
        yield registry


@pytest.fixture
async def implicit(registry: SessionRegistry) -> AsyncIterator[ImplicitSessions]:
    """Every test ends with nothing held: no line, no suspended call, no call counted."""
    implicit = ImplicitSessions(registry, Sealer(b"k" * 32))
    yield implicit
    end_of_grace = time.monotonic() + CANCEL_GRACE_S + 1
    for session in registry:
        session.sweep(end_of_grace)
    assert [line for session in registry for line in held(implicit, session.principal)] == []
    assert len(implicit.suspended) == 0
    assert {session.gate.in_flight for session in registry} <= {0}


@pytest.fixture
def client(implicit: ImplicitSessions, principal: Principal) -> Client:
    return Client(implicit, principal, {**ELICITS, "sampling": {}})


async def asked(client: Client, pool: ServerPool, *questions: str, **params: Any) -> tuple[dict[str, Any], FakeServer]:
    """A call that is suspended with these questions."""
    sent, server = await start(client, pool, **params)
    for question in questions or ("q1",):
        server.ask(question, message=question)
    return await sent.outcome(), server


def keys(result: dict[str, Any]) -> dict[str, str]:
    """The key of each question, by its message."""
    return {asked["params"]["message"]: key for key, asked in result["inputRequests"].items()}


async def finish(client: Client, server: FakeServer, result: dict[str, Any], **answers: Any) -> None:
    """Answers every question and lets the process answer the call."""
    given = {key: answers.get(message, ACCEPT) for message, key in keys(result).items()}
    sent = await client.go_on(result, given, name="x")
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[-1]))
    assert (await sent.outcome())["resultType"] == "complete"


def sweep(registry: SessionRegistry, seconds: float) -> None:
    """What happens that much later."""
    for session in registry:
        session.sweep(time.monotonic() + seconds)


async def until_stopped(pool: ServerPool, server: FakeServer) -> None:
    with anyio.fail_after(5):
        while server in pool.living:
            await anyio.lowlevel.checkpoint()


# --- asking


async def test_a_question_becomes_an_input_required_result(client: Client, pool: ServerPool) -> None:
    result, server = await asked(client, pool)
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
    result, server = await asked(client, pool, "q1", "q2", "q3")
    assert set(keys(result)) == {"q1", "q2", "q3"}
    await finish(client, server, result, q2={"action": "decline"})
    assert [(await server.replied(q))["result"]["action"] for q in ("q1", "q2", "q3")] == [
        "accept",
        "decline",
        "accept",
    ]


async def test_questions_that_follow_each_other_are_rounds(client: Client, pool: ServerPool) -> None:
    result, server = await asked(client, pool)
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
    result, server = await asked(client, pool, "q1", "q2")
    first = keys(result)["q1"]
    sent = await client.go_on(result, {first: ACCEPT, "elicitation-999": ACCEPT, "x": 7}, name="x")
    again = await sent.outcome()
    assert list(keys(again)) == ["q2"]
    assert (await server.replied("q1"))["result"] == ACCEPT
    await finish(client, server, again)
    assert len([message for message in server.sent if message.get("id") == "q1"]) == 1


async def test_a_retry_without_answers_is_asked_the_same_again(client: Client, pool: ServerPool) -> None:
    result, server = await asked(client, pool)
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
    client: Client, pool: ServerPool, implicit: ImplicitSessions, principal: Principal
) -> None:
    result, server = await asked(client, pool)
    server.say(method="notifications/cancelled", params={"requestId": "q1"})
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    assert not held(implicit, principal), "the process is free as soon as it has answered"
    sent = await client.go_on(result, {}, name="x")
    assert (await sent.outcome())["content"] == TEXT["content"]


@pytest.mark.parametrize(
    ("method", "params", "capabilities"),
    [
        ("sampling/createMessage", {}, ELICITS),
        ("roots/list", {}, ELICITS),
        ("elicitation/create", {"mode": "url", "url": "https://x.example"}, ELICITS),
        ("something/else", {}, ELICITS),
    ],
)
async def test_what_the_client_did_not_declare_is_not_asked(
    implicit: ImplicitSessions, principal: Principal, pool: ServerPool, method: str, params: Any, capabilities: Any
) -> None:
    client = Client(implicit, principal, capabilities)
    sent, server = await start(client, pool)
    server.ask("q1", method, **params)
    assert (await server.replied("q1"))["error"]["code"] == -32601
    server.answer({"isError": True, "content": []}, to=server.sent.index(server.sent_with("tools/call")[0]))
    outcome = await sent.outcome()
    need = {"sampling/createMessage": "sampling", "roots/list": "roots", "elicitation/create": "elicitation"}.get(
        method
    )
    if need is None:
        assert outcome["isError"] is True
    else:
        assert (outcome["code"], outcome["data"]) == (-32021, {"requiredCapabilities": {need: {}}})


async def test_a_url_elicitation_is_asked_of_a_client_that_can_and_has_no_id_of_its_own(
    implicit: ImplicitSessions, principal: Principal, pool: ServerPool
) -> None:
    client = Client(implicit, principal, {"elicitation": {"url": {}}})
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


# --- states


async def test_a_state_that_was_changed_is_refused_and_spends_nothing(client: Client, pool: ServerPool) -> None:
    result, server = await asked(client, pool)
    state = result["requestState"]
    others: list[Any] = [
        "",
        "x",
        state[:-2],
        state + "=",
        state + "\n",
        state[::-1],
        "B" + state[1:],
        state + "é",
        7,
        None,
        {},
    ]
    for other in others:
        await refused(client, {"requestState": other}, "state_invalid")
    await finish(client, server, result)


async def test_a_state_is_good_for_its_principal_backend_and_request_only(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, principal: Principal
) -> None:
    result, server = await asked(client, pool, arguments={"a": 1})
    stranger = Client(implicit, Principal("acme", "key", "k2", principal.scopes), client.capabilities)
    await refused(stranger, result, "state_invalid", arguments={"a": 1})
    await refused(client, result, "state_invalid", arguments={"a": 2})
    await refused(client, result, "state_invalid")
    await refused(client, result, "state_invalid", arguments={"a": 1}, more=True)
    await refused(client, result, "state_invalid", arguments={"a": 1}, method="prompts/get")
    for tenant, backend in (("evil", "echo"), ("acme", "other")):
        elsewhere = Client(implicit, principal, client.capabilities)
        elsewhere.caller = elsewhere.caller._replace(tenant=tenant, backend=backend)
        await refused(elsewhere, result, "state_invalid", arguments={"a": 1})
    sent = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x", arguments={"a": 1})
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    await sent.outcome()


async def test_a_state_is_spent_by_the_first_who_brings_it(client: Client, pool: ServerPool) -> None:
    result, server = await asked(client, pool)
    answers = {keys(result)["q1"]: ACCEPT}
    sent: list[Sent] = []
    refusals: list[str] = []

    async def bring() -> None:
        try:
            sent.append(await client.go_on(result, answers, name="x"))
        except StateRefused as error:
            refusals.append(error.reason)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(bring)
    assert (len(sent), refusals) == (1, ["state_spent"] * 19)
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    await sent[0].outcome()
    await refused(client, result, "state_spent")
    assert len([message for message in server.sent if message.get("id") == "q1"]) == 1
    assert len(server.sent_with("tools/call")) == 1


async def test_a_call_whose_process_died_is_lost(client: Client, pool: ServerPool, implicit: ImplicitSessions) -> None:
    result, server = await asked(client, pool)
    server.die()
    assert len(implicit.suspended) == 0
    await refused(client, result, "state_lost")
    assert len(pool.servers) == 1, "nothing runs twice"


async def test_a_call_whose_client_does_not_come_back_is_cancelled_and_lost(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, principal: Principal, registry: SessionRegistry
) -> None:
    result, server = await asked(client, pool)
    implicit.sweep(time.monotonic() + SUSPENDED_S - 1)
    assert (len(implicit.suspended), len(held(implicit, principal))) == (1, 1)
    implicit.sweep(time.monotonic() + SUSPENDED_S + 1)
    assert (await server.replied("q1"))["error"]["code"] == -32602
    cancelled = await server.called("notifications/cancelled")
    assert cancelled["params"]["requestId"] == server.sent_with("tools/call")[0]["id"]
    assert len(implicit.suspended) == 0
    for session in registry:
        session.sweep(time.monotonic() + CANCEL_GRACE_S + 1)
    assert not held(implicit, principal)
    await refused(client, result, "state_lost")


async def test_a_state_that_is_too_old_is_lost(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = await asked(client, pool)
    later = time.time() + SUSPENDED_S + 2
    monkeypatch.setattr("app.sessions.suspended.time.time", lambda: later)
    await refused(client, result, "state_lost")
    implicit.sweep(time.monotonic() + SUSPENDED_S + 1)


async def test_a_node_keeps_a_bounded_number_of_suspended_calls(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspended, "MAX_SUSPENDED", 1)
    first, server = await asked(client, pool)
    second, other = await asked(client, pool)
    assert server is not other
    assert len(implicit.suspended) == 1
    await refused(client, first, "state_lost")
    await finish(client, other, second)


async def test_a_node_that_stops_waits_for_no_suspended_call(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, registry: SessionRegistry
) -> None:
    result, server = await asked(client, pool)
    running, other = await start(client, pool)
    registry.draining = True
    implicit.sweep(time.monotonic())
    assert len(server.sent_with("notifications/cancelled")) == 1
    assert server not in pool.living
    await refused(client, result, "state_lost")
    assert registry.calls_in_flight() == 1, "a call whose client waits for it goes on"
    other.ask("q1", message="q1")
    late = await running.outcome()
    implicit.sweep(time.monotonic())
    assert registry.calls_in_flight() == 0
    await refused(client, late, "state_lost")


async def test_a_stopping_node_lets_a_list_on_the_process_of_a_suspended_call_be_answered(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, registry: SessionRegistry
) -> None:
    _, server = await asked(client, pool)
    del server.answers["tools/list"]
    listing = await client.send("tools/list")
    registry.draining = True
    implicit.sweep(time.monotonic())
    server.answer({"tools": []}, to=server.sent.index(server.sent_with("tools/list")[-1]))
    assert (await listing.outcome())["tools"] == []


async def test_a_process_that_takes_no_answer_ends_the_call(client: Client, pool: ServerPool) -> None:
    result, server = await asked(client, pool)
    server.is_busy = True
    with pytest.raises(BackendBusy):
        await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x")
    server.is_busy = False
    await refused(client, result, "state_spent")


# --- what the client hears meanwhile


async def test_progress_is_told_with_the_token_of_the_request_that_waits(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool, meta={"progressToken": "one"})
    token = server.sent[-1]["params"]["_meta"]["progressToken"]
    server.ask("q1", message="q1")
    result = await sent.outcome()
    server.say(method="notifications/progress", params={"progressToken": token, "progress": 1})
    retry = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x", meta={"progressToken": "two"})
    server.say(method="notifications/progress", params={"progressToken": token, "progress": 2})
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    messages = await retry.stream()
    assert messages[0]["params"] == {"progressToken": "two", "progress": 2}
    assert messages[1]["id"] == json.loads(retry.message.id)


async def test_a_request_without_a_progress_token_hears_no_progress(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    server.say(method="notifications/progress", params={"progressToken": server.sent[-1]["id"], "progress": 1})
    server.answer(TEXT)
    await sent.outcome()


@pytest.mark.parametrize(("level", "heard"), [(None, []), ("debug", ["debug", "error"]), ("warning", ["error"])])
async def test_log_messages_go_to_requests_that_want_them_from_their_level_on(
    implicit: ImplicitSessions, principal: Principal, pool: ServerPool, level: str | None, heard: list[str]
) -> None:
    client = Client(implicit, principal, ELICITS, log_level=level)
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


# --- the end


async def test_a_closed_stream_cancels_and_the_process_is_not_given_away_before_it_has_stopped(
    client: Client, pool: ServerPool
) -> None:
    sent, server = await start(client, pool)
    sent.call.leave()
    sent.call.leave()
    cancelled = await server.called("notifications/cancelled")
    assert cancelled["params"]["requestId"] == server.sent_with("tools/call")[0]["id"]
    second, other = await start(client, pool)
    assert other is not server
    server.ask("late", message="of the call that was cancelled")
    assert (await server.replied("late"))["error"]["code"] == -32601
    other.answer(TEXT)
    await second.outcome()


async def test_a_process_that_never_answered_a_cancelled_call_takes_no_other(
    client: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    """stdio does not say whose a question is: one of the cancelled call must not reach the next call's client."""
    sent, server = await start(client, pool)
    sent.call.leave()
    sweep(registry, CANCEL_GRACE_S + 1)
    second, other = await start(client, pool)
    assert other is not server
    await until_stopped(pool, server)
    other.answer(TEXT)
    await second.outcome()


async def test_a_process_that_answered_a_cancelled_call_is_used_again(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    sent.call.leave()
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    second, again = await start(client, pool)
    assert again is server
    again.answer(TEXT)
    await second.outcome()


@pytest.mark.parametrize("names_its_call", [True, False])
async def test_a_line_too_long_is_the_answer_only_if_it_says_so(
    client: Client, pool: ServerPool, *, names_its_call: bool
) -> None:
    """Else it may have been anything, and the process may still work on the call."""
    sent, server = await start(client, pool)
    assert server.listener is not None
    call_id = str(server.sent[-1]["id"]).encode()
    prefix = b'"id":%b,"result":' % call_id if names_its_call else b'"method":"notifications/message","params":'
    server.listener.backend_sent_too_much(b'{"jsonrpc":"2.0",' + prefix)
    with pytest.raises(ResponseTooLarge):
        await sent.outcome()
    if names_its_call:
        assert (await start(client, pool))[1] is server
        server.answer(TEXT)
    else:
        await until_stopped(pool, server)


async def test_a_process_whose_call_took_too_long_takes_no_other(
    client: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    sent, server = await start(client, pool)
    sweep(registry, 1000)
    with pytest.raises(BackendTimeout):
        await sent.outcome()
    await until_stopped(pool, server)


async def test_a_process_that_somebody_listens_to_answers_lists_until_they_leave(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, registry: SessionRegistry
) -> None:
    message, envelope = client.message("subscriptions/listen", notifications={"toolsListChanged": True})
    listener = await implicit.listen(client.caller, message, envelope)
    assert listener is not None
    sent, server = await start(client, pool)
    sent.call.leave()
    sweep(registry, CANCEL_GRACE_S + 1)
    assert server in pool.living
    assert (await (await client.send("tools/list")).outcome())["tools"] == []
    del server.answers["tools/list"]
    listing = await client.send("tools/list", meta={LOG_LEVEL_KEY: "debug"})
    server.ask("late", message="of the call that was cancelled")
    assert (await server.replied("late"))["error"]["code"] == -32601
    server.say(method="notifications/message", params={"level": "error", "data": "late"})
    server.answer({"tools": []}, to=server.sent.index(server.sent_with("tools/list")[-1]))
    assert (await listing.outcome())["tools"] == [], "it is no stream: it has heard nothing else"
    _, other = await start(client, pool)
    assert other is not server
    other.answer(TEXT)
    implicit.listeners.close(listener)
    await until_stopped(pool, server)


async def test_a_process_is_stopped_after_it_has_been_told_that_nobody_listens_any_more(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, registry: SessionRegistry
) -> None:
    message, envelope = client.message("subscriptions/listen", notifications={"resourceSubscriptions": ["a://b"]})
    listener = await implicit.listen(client.caller, message, envelope)
    assert listener is not None
    sent, server = await start(client, pool)
    sent.call.leave()
    sweep(registry, CANCEL_GRACE_S + 1)
    implicit.listeners.close(listener)
    assert server.sent_with("resources/unsubscribe")
    assert server in pool.living, "its answer is waited for"
    await anyio.lowlevel.checkpoint()
    with anyio.fail_after(5):
        while server in pool.living:
            implicit.sweep(time.monotonic())
            await anyio.lowlevel.checkpoint()


async def test_a_client_that_leaves_in_its_retry_cancels_the_call(client: Client, pool: ServerPool) -> None:
    result, server = await asked(client, pool)
    retry = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x")
    retry.call.leave()
    await server.called("notifications/cancelled")
    await refused(client, result, "state_spent")


async def test_a_client_that_leaves_after_it_was_asked_may_come_back(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    server.ask("q1", message="q1")
    result = await sent.outcome()
    sent.call.leave()
    assert not server.sent_with("notifications/cancelled")
    await finish(client, server, result)


async def test_a_process_that_dies_in_a_call_is_an_error(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    server.die()
    with pytest.raises(BackendExited):
        await sent.outcome()


async def test_a_session_that_is_closed_under_a_call_is_no_missing_session(
    client: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    sent, _ = await start(client, pool)
    registry.close_where(lambda session: True, "backend_restarted")
    with pytest.raises(BackendExited):
        await sent.outcome()


async def test_a_line_that_cannot_be_written_to_is_free_again(
    client: Client, pool: ServerPool, implicit: ImplicitSessions, principal: Principal
) -> None:
    sent, server = await start(client, pool)
    server.answer(TEXT)
    await sent.outcome()
    server.is_busy = True
    with pytest.raises(GatewayError):
        await client.send(name="x")
    server.is_busy = False
    assert not held(implicit, principal)


async def test_an_unknown_resource_is_named_as_the_revision_has_it(client: Client, pool: ServerPool) -> None:
    sent = await client.send("resources/read", uri="a://b")
    server = pool.servers[0]
    server.say(id=server.sent[-1]["id"], error={"code": -32002, "message": "no such resource", "data": 7})
    assert await sent.outcome() == {"code": -32602, "message": "no such resource", "data": {"uri": "a://b"}}


async def test_what_a_modern_process_says_passes_as_it_is(client: Client, pool: ServerPool) -> None:
    pool.make = modern_server
    sent, server = await start(client, pool)
    server.ask("q1")
    assert (await server.replied("q1"))["error"]["code"] == -32601
    theirs = {
        "resultType": "input_required",
        "requestState": "theirs",
        "inputRequests": {"k": {"method": "roots/list"}},
    }
    server.answer(theirs, to=server.sent.index(server.sent_with("tools/call")[0]))
    assert await sent.outcome() == theirs
    retry = await client.send(name="x", requestState="theirs", inputResponses={"k": {"roots": []}})
    assert server.sent[-1]["params"]["requestState"] == "theirs"
    server.answer(TEXT)
    assert await retry.outcome() == TEXT
