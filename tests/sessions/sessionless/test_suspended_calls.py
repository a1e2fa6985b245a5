"""Suspended: the state that a client brings back goes on with its own call, once, and not for ever."""

import time
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import CallCutOff, StateRefused
from app.protocol.commands import CANCEL_GRACE_S
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless import suspended_calls
from app.sessions.sessionless.requests import SessionlessRequests
from app.sessions.sessionless.suspended_calls import SUSPENDED_S
from tests.sessions.sessionless.client import ACCEPT, ELICITS, TEXT, Client, Sent, finish, keys, refused, start, suspend
from tests.sessions.sessionless.servers import ServerPool


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


@pytest.fixture
def client(sessionless: SessionlessRequests, principal: Principal) -> Client:
    return Client(sessionless, principal, {**ELICITS, "sampling": {}})


async def test_a_state_that_was_changed_is_refused_and_spends_nothing(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool)
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


async def test_what_the_request_said_is_not_kept_while_its_client_is_asked(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    result, server = await suspend(client, pool, arguments={"a": "x" * 100_000})
    assert [call.message.params for call in sessionless.suspended.waiting()] == [None]
    sent = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x", arguments={"a": "x" * 100_000})
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    assert (await sent.outcome())["content"] == TEXT["content"]


async def test_a_state_is_good_for_its_principal_backend_and_request_only(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    result, server = await suspend(client, pool, arguments={"a": 1})
    stranger = Client(sessionless, Principal("acme", "key", "k2", principal.scopes), client.capabilities)
    await refused(stranger, result, "state_invalid", arguments={"a": 1})
    await refused(client, result, "state_invalid", arguments={"a": 2})
    await refused(client, result, "state_invalid")
    await refused(client, result, "state_invalid", arguments={"a": 1}, more=True)
    await refused(client, result, "state_invalid", arguments={"a": 1}, method="prompts/get")
    for tenant, backend in (("evil", "echo"), ("acme", "other")):
        elsewhere = Client(sessionless, principal, client.capabilities)
        elsewhere.caller = elsewhere.caller._replace(tenant=tenant, backend=backend)
        await refused(elsewhere, result, "state_invalid", arguments={"a": 1})
    sent = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x", arguments={"a": 1})
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    await sent.outcome()


async def test_a_state_is_spent_by_the_first_who_brings_it(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool)
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


async def test_a_call_whose_process_died_is_lost(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    result, server = await suspend(client, pool)
    server.die()
    assert len(sessionless.suspended.waiting()) == 0
    await refused(client, result, "state_lost")
    assert len(pool.servers) == 1, "nothing runs twice"


async def test_a_call_whose_client_does_not_come_back_is_cancelled_and_lost(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, registry: SessionRegistry
) -> None:
    result, server = await suspend(client, pool)
    sessionless.sweep(time.monotonic() + SUSPENDED_S - 1)
    assert len(sessionless.suspended.waiting()) == 1
    sessionless.sweep(time.monotonic() + SUSPENDED_S + 1)
    assert (await server.replied("q1"))["error"]["code"] == -32602
    cancelled = await server.called("notifications/cancelled")
    assert cancelled["params"]["requestId"] == server.sent_with("tools/call")[0]["id"]
    assert len(sessionless.suspended.waiting()) == 0
    for session in registry:
        session.sweep(time.monotonic() + CANCEL_GRACE_S + 1)
    assert registry.calls_in_flight() == 0
    await refused(client, result, "state_lost")


async def test_a_state_that_is_too_old_is_lost(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = await suspend(client, pool)
    later = time.time() + SUSPENDED_S + 2
    monkeypatch.setattr("app.sessions.sessionless.suspended_calls.time.time", lambda: later)
    await refused(client, result, "state_lost")
    sessionless.sweep(time.monotonic() + SUSPENDED_S + 1)


async def test_a_node_keeps_a_bounded_number_of_suspended_calls(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspended_calls, "MAX_SUSPENDED", 1)
    first, server = await suspend(client, pool)
    second, again = await suspend(client, pool, "q2")
    assert server is again
    assert len(sessionless.suspended.waiting()) == 1
    await refused(client, first, "state_lost")
    await finish(client, server, second)


async def test_a_node_that_stops_waits_for_no_suspended_call(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, registry: SessionRegistry
) -> None:
    result, server = await suspend(client, pool)
    running, _ = await start(client, pool)
    registry.take_no_more()
    sessionless.sweep(time.monotonic())
    assert len(server.sent_with("notifications/cancelled")) == 1
    assert server in pool.living, "a call whose client waits for it goes on"
    await refused(client, result, "state_lost")
    server.ask("q2", message="q2")
    late = await running.outcome()
    sessionless.sweep(time.monotonic())
    assert server not in pool.living
    await refused(client, late, "state_lost")


async def test_a_stopping_node_lets_a_list_on_the_process_of_a_suspended_call_be_answered(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, registry: SessionRegistry
) -> None:
    _, server = await suspend(client, pool)
    del server.answers["tools/list"]
    listing = await client.send("tools/list")
    registry.take_no_more()
    sessionless.sweep(time.monotonic())
    server.answer({"tools": []}, to=server.sent.index(server.sent_with("tools/list")[-1]))
    assert (await listing.outcome())["tools"] == []


async def test_a_process_that_takes_no_answer_ends_the_call(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool)
    server.is_busy = True
    with pytest.raises(CallCutOff):  # no refusal: the call was sent
        await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x")
    server.is_busy = False
    await refused(client, result, "state_spent")
