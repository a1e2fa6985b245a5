"""Pooled sessions: which process a call of a client that opens no session gets, and when a pooled session ends."""

import dataclasses
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import NodeLost, NodeUnavailable
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless.pooled_session import CallerKey, max_shared
from app.sessions.sessionless.pooled_sessions import MAX_CAPABILITY_SETS
from app.sessions.sessionless.requests import SessionlessRequests
from tests.sessions.fakes import FakeStore
from tests.sessions.rig import SPEC
from tests.sessions.sessionless.client import ELICITS, TEXT, Client, run
from tests.sessions.sessionless.servers import ServerPool, sessionless_server


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


@pytest.mark.usefixtures("stateless")
async def test_consecutive_calls_get_the_oldest_process_that_is_free(asked: Client, pool: ServerPool) -> None:
    first, second = await asked.send(name="a"), await asked.send(name="b")
    one, other = pool.servers
    other.answer(TEXT)
    await second.outcome()
    one.answer(TEXT)
    await first.outcome()
    assert [await run(asked, pool) for _ in range(3)] == [one] * 3


@pytest.mark.usefixtures("stateless")
async def test_calls_that_may_be_asked_have_a_process_each_and_others_share(
    asked: Client, client: Client, pool: ServerPool
) -> None:
    sent = [await asked.send(name=name) for name in "ab"]
    assert len(pool.servers) == 2
    sent += [await client.send(name=name) for name in "cd"]
    assert len(pool.servers) == 3
    for each in sent:
        each.leave()


async def test_a_list_is_asked_of_a_process_that_is_in_a_call(asked: Client, pool: ServerPool) -> None:
    call = await asked.send(name="a")
    listing = await asked.send("tools/list")
    assert len(pool.servers) == 1
    assert (await listing.outcome())["tools"] == []
    call.leave()


@pytest.mark.usefixtures("stateless")
async def test_calls_that_want_a_log_do_not_hear_that_of_others(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    quiet, loud = Client(sessionless, principal), Client(sessionless, principal, log_level="info")
    sent = [await loud.send(name="a"), await quiet.send(name="b"), await loud.send(name="c")]
    assert [len(server.sent_with("tools/call")) for server in pool.servers] == [1, 1, 1]
    for each in sent:
        each.leave()


async def test_each_set_of_capabilities_is_what_its_process_hears(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    offered: dict[str, Any] = {"sampling": {}, "roots": {}, "tasks": {}, "extensions": {"x": {}}}
    client = Client(sessionless, principal, offered)
    server = await run(client, pool)
    hello = await server.called("initialize")
    assert hello["params"]["capabilities"] == {"sampling": {}, "roots": {}, "extensions": {"x": {}}}
    assert await run(Client(sessionless, principal, dict(reversed(offered.items()))), pool) is server
    assert await run(Client(sessionless, principal, {"sampling": {}}), pool) is not server


async def test_a_sessionless_process_serves_every_set_of_capabilities(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    pool.make = sessionless_server
    server = await run(Client(sessionless, principal), pool)
    assert await run(Client(sessionless, principal, ELICITS), pool) is server


async def test_principals_share_no_process(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    other = Principal("acme", "key", "k2", frozenset({"mcp:connect"}))
    assert await run(Client(sessionless, principal), pool) is not await run(Client(sessionless, other), pool)


async def test_a_principal_has_at_most_four_sets_of_capabilities(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    clients = [Client(sessionless, principal, {"sampling": {"n": n}}) for n in range(MAX_CAPABILITY_SETS + 1)]
    servers = [await run(client, pool) for client in clients[:MAX_CAPABILITY_SETS]]
    assert await run(clients[0], pool) is servers[0]
    fifth = await run(clients[-1], pool)
    assert pool.living == [servers[0], *servers[2:], fifth]


async def test_a_replaced_set_ends_after_its_calls(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    clients = [Client(sessionless, principal, {"sampling": {"n": n}}) for n in range(MAX_CAPABILITY_SETS + 1)]
    sent = await clients[0].send(name="long")
    for client in clients[1:]:
        await run(client, pool)
    busy = pool.servers[0]
    assert busy in pool.living
    busy.answer(TEXT)
    await sent.outcome()
    await anyio.wait_all_tasks_blocked()
    assert busy not in pool.living


@pytest.mark.usefixtures("stateless")
async def test_a_process_has_a_bounded_number_of_calls_and_then_there_is_another(
    client: Client, pool: ServerPool
) -> None:
    sent = [await client.send(name="x") for _ in range(max_shared(SPEC) + 1)]
    assert [len(server.sent_with("tools/call")) for server in pool.servers] == [max_shared(SPEC), 1]
    for each in sent:
        each.leave()


async def test_a_changed_backend_gets_new_processes_and_calls_end_where_they_are(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    sent = await client.send(name="x")
    sessionless.forget("acme", "echo")
    new = await run(client, pool)
    assert new is not pool.servers[0]
    pool.servers[0].answer(TEXT)
    await sent.outcome()
    await anyio.wait_all_tasks_blocked()
    assert pool.living == [new]


async def test_a_dead_process_is_replaced(client: Client, pool: ServerPool, sessionless: SessionlessRequests) -> None:
    (await run(client, pool)).die()
    assert len(sessionless.pooled_sessions) == 0
    await run(client, pool)


async def test_nothing_is_kept_of_callers_without_a_pooled_session(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    (await run(client, pool)).die()
    assert not sessionless.pooled_sessions._callers
    assert (
        len(sessionless.pooled_sessions) == len(sessionless.suspended.waiting()) == len(sessionless.subscriptions) == 0
    )


async def test_closing_every_session_twice_leaves_nothing(
    client: Client, asked: Client, registry: SessionRegistry, sessionless: SessionlessRequests
) -> None:
    sent = [await client.send(name="a"), await asked.send(name="b")]
    for _ in range(2):
        registry.close_where(lambda session: True, "shutdown")
    for each in sent:
        with pytest.raises(NodeLost):
            await each.outcome()
    assert len(sessionless.pooled_sessions) == len(sessionless.suspended.waiting()) == 0


async def test_a_line_for_a_caller_that_another_node_has_by_now_is_closed(
    client: Client, registry: SessionRegistry, sessionless: SessionlessRequests
) -> None:
    sessionless.pooled_sessions._may_serve = lambda session: False
    with pytest.raises(NodeUnavailable):
        await client.send(name="x")
    assert len(registry) == len(sessionless.pooled_sessions) == 0


async def test_a_caller_is_gone_with_its_last_line_but_not_before_its_requests(
    client: Client, pool: ServerPool, registry: SessionRegistry, sessionless: SessionlessRequests
) -> None:
    gone: list[CallerKey] = []
    sessionless.pooled_sessions._on_caller_gone = gone.append
    with sessionless.pooled_sessions.expecting(client.caller.key):
        await run(client, pool)
        registry.close_where(lambda session: True, "idle")
        assert not gone
    assert gone == [client.caller.key]
    await run(client, pool)
    registry.close_where(lambda session: True, "idle")
    assert gone == [client.caller.key] * 2


async def test_the_lines_of_a_caller_that_another_node_has_taken_end(
    client: Client, pool: ServerPool, registry: SessionRegistry, sessionless: SessionlessRequests, principal: Principal
) -> None:
    other = Client(sessionless, dataclasses.replace(principal, subject="somebody else"))
    for each in (client, other):
        await run(each, pool)
    sessionless.pooled_sessions.lost(client.caller.key)
    assert [session.principal.subject for session in registry] == ["somebody else"]


async def test_a_call_that_waits_for_what_the_gateway_asks_itself_is_not_sent_once_its_client_has_left(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal, store: FakeStore
) -> None:
    store.specs[SPEC.key] = dataclasses.replace(SPEC, calls_per_session=1)
    client = Client(sessionless, principal, log_level="info")
    sent = await client.send(name="a")
    (server,) = pool.servers
    assert server.sent[-1]["method"] == "logging/setLevel"
    sent.leave()
    await anyio.wait_all_tasks_blocked()  # the log level is set
    assert server.sent_with("tools/call") == server.sent_with("notifications/cancelled") == []
    assert await run(client, pool) is server


async def test_a_principal_in_other_groups_has_a_process_for_these(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    """What a session may use depends on them."""
    analyst = dataclasses.replace(principal, groups=frozenset({"analysts"}))
    server = await run(Client(sessionless, analyst), pool)
    assert await run(Client(sessionless, principal), pool) is not server
    assert await run(Client(sessionless, dataclasses.replace(analyst, expires_at=9e9)), pool) is server
