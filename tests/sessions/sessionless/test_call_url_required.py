"""A server of 2025-11-25 that wants URLs opened first (-32042), in front of clients of 2026-07-28."""

import time
from typing import Any

import pytest

from app.domain import Principal
from app.protocol.eras.input_required import MAX_ROUNDS
from app.sessions.sessionless.requests import SessionlessRequests
from app.sessions.sessionless.suspended_calls import SUSPENDED_S
from tests.sessions.sessionless.client import ELICITS, TEXT, Client, held, refused, start
from tests.sessions.sessionless.servers import FakeServer, ServerPool


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


def required(*urls: str) -> dict[str, Any]:
    elicitations = [{"mode": "url", "url": url, "message": url, "elicitationId": "e"} for url in urls]
    return {"code": -32042, "message": "sign in first", "data": {"elicitations": elicitations}}


@pytest.fixture
def browsing(sessionless: SessionlessRequests, principal: Principal) -> Client:
    """A client that can open URLs."""
    return Client(sessionless, principal, {"elicitation": {"form": {}, "url": {}}})


async def sent_to(client: Client, pool: ServerPool, *urls: str) -> tuple[dict[str, Any], FakeServer]:
    """A call whose process wants these opened."""
    sent, server = await start(client, pool)
    server.say(id=server.sent[-1]["id"], error=required(*urls))
    return await sent.outcome(), server


async def test_urls_that_must_be_opened_first_are_asked_for_and_then_the_request_is_sent_again(
    browsing: Client, pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    result, server = await sent_to(browsing, pool, "https://a.example", "https://b.example")
    assert result["resultType"] == "input_required"
    assert [asked["params"] for asked in result["inputRequests"].values()] == [
        {"mode": "url", "url": "https://a.example", "message": "https://a.example"},
        {"mode": "url", "url": "https://b.example", "message": "https://b.example"},
    ]
    assert not held(sessionless, principal), "the process has answered: it is free while the person is at the browser"
    given = {key: {"action": "accept"} for key in result["inputRequests"]}
    sent = await browsing.go_on(result, given, name="x")
    assert [call["params"] for call in server.sent_with("tools/call")] == [{"name": "x"}] * 2
    await refused(browsing, result, "state_spent")
    server.answer(TEXT)
    assert (await sent.outcome())["content"] == TEXT["content"]


async def test_a_url_that_was_not_answered_for_is_asked_again_and_nothing_is_sent(
    browsing: Client, pool: ServerPool
) -> None:
    result, server = await sent_to(browsing, pool, "https://a.example", "https://b.example")
    first, second = result["inputRequests"]
    answers: list[Any] = [{first: {"action": "accept"}}, {}, {second: "yes"}, {second: {"action": "?"}}]
    for answer in answers:
        result = await (await browsing.go_on(result, answer, name="x")).outcome()
        assert list(result["inputRequests"]) == [second]
    assert len(server.sent_with("tools/call")) == 1
    sent = await browsing.go_on(result, {second: {"action": "accept"}}, name="x")
    server.answer(TEXT)
    await sent.outcome()


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_url_that_is_not_opened_ends_the_call_with_the_servers_words(
    browsing: Client, pool: ServerPool, action: str
) -> None:
    result, server = await sent_to(browsing, pool, "https://a.example")
    (key,) = result["inputRequests"]
    outcome = await (await browsing.go_on(result, {key: {"action": action}}, name="x")).outcome()
    assert (outcome["code"], outcome["message"]) == (-32603, "sign in first")
    assert outcome["data"]["reason"] == "elicitation_declined"
    assert len(server.sent_with("tools/call")) == 1


async def test_a_request_that_waits_for_a_url_outlives_the_process_that_asked(
    browsing: Client, pool: ServerPool
) -> None:
    result, server = await sent_to(browsing, pool, "https://a.example")
    server.die()
    (key,) = result["inputRequests"]
    sent = await browsing.go_on(result, {key: {"action": "accept"}}, name="x")
    assert pool.servers[-1] is not server
    pool.servers[-1].answer(TEXT)
    await sent.outcome()


async def test_a_server_that_wants_urls_without_end_is_stopped(browsing: Client, pool: ServerPool) -> None:
    result, server = await sent_to(browsing, pool, "https://a.example")
    for _ in range(MAX_ROUNDS):
        assert result["resultType"] == "input_required"
        (key,) = result["inputRequests"]
        sent = await browsing.go_on(result, {key: {"action": "accept"}}, name="x")
        server.say(id=server.sent[-1]["id"], error=required("https://a.example"))
        result = await sent.outcome()
    assert result["code"] == -32603


async def test_a_url_that_nobody_comes_back_from_is_forgotten_in_time(
    browsing: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    result, server = await sent_to(browsing, pool, "https://a.example")
    sessionless.sweep(time.monotonic() + SUSPENDED_S + 1)
    assert not server.sent_with("notifications/cancelled"), "the process has nothing to cancel"
    await refused(browsing, result, "state_lost")


async def test_a_client_that_opens_no_urls_is_told_what_it_lacks(
    sessionless: SessionlessRequests, principal: Principal, pool: ServerPool
) -> None:
    outcome, _ = await sent_to(Client(sessionless, principal, ELICITS), pool, "https://a.example")
    assert (outcome["code"], outcome["data"]) == (-32021, {"requiredCapabilities": {"elicitation": {"url": {}}}})


@pytest.mark.parametrize("data", [None, {}, {"elicitations": []}, {"elicitations": [{"mode": "form"}]},
                                  {"elicitations": 7}, {"elicitations": [7]}])  # fmt: skip
async def test_an_error_without_urls_is_an_internal_one(browsing: Client, pool: ServerPool, data: Any) -> None:
    sent, server = await start(browsing, pool)
    server.say(id=server.sent[-1]["id"], error={"code": -32042, "message": "why?", "data": data})
    outcome = await sent.outcome()
    assert (outcome["code"], outcome["message"]) == (-32603, "why?")
