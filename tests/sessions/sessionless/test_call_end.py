"""SessionlessCall: how a call ends, and whether its process may have another."""

import time

import anyio
import anyio.lowlevel
import pytest

from app.domain import Principal
from app.errors import BackendExited, BackendTimeout, CallCutOff, GatewayError, ResponseTooLarge
from app.protocol.commands import CANCEL_GRACE_S
from app.protocol.eras.sessionless_envelope import LOG_LEVEL_KEY
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless.requests import SessionlessRequests
from tests.sessions.sessionless.client import ACCEPT, ELICITS, TEXT, Client, finish, held, keys, refused, start, suspend
from tests.sessions.sessionless.servers import FakeServer, ServerPool


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


@pytest.fixture
def client(sessionless: SessionlessRequests, principal: Principal) -> Client:
    return Client(sessionless, principal, {**ELICITS, "sampling": {}})


def sweep(registry: SessionRegistry, seconds: float) -> None:
    """What happens that much later."""
    for session in registry:
        session.sweep(time.monotonic() + seconds)


async def until_stopped(pool: ServerPool, server: FakeServer) -> None:
    with anyio.fail_after(20):
        while server in pool.living:
            await anyio.lowlevel.checkpoint()


@pytest.mark.usefixtures("stateless")
async def test_a_closed_stream_cancels_and_the_process_is_not_given_away_before_it_has_stopped(
    client: Client, pool: ServerPool
) -> None:
    sent, server = await start(client, pool)
    sent.leave()
    sent.leave()
    cancelled = await server.called("notifications/cancelled")
    assert cancelled["params"]["requestId"] == server.sent_with("tools/call")[0]["id"]
    second, other = await start(client, pool)
    assert other is not server
    server.ask("late", message="of the call that was cancelled")
    assert (await server.replied("late"))["error"]["code"] == -32601
    other.answer(TEXT)
    await second.outcome()


@pytest.mark.usefixtures("stateless")
async def test_a_process_that_never_answered_a_cancelled_call_takes_no_other(
    client: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    """stdio does not say whose a question is: one of the cancelled call must not reach the next call's client."""
    sent, server = await start(client, pool)
    sent.leave()
    sweep(registry, CANCEL_GRACE_S + 1)
    second, other = await start(client, pool)
    assert other is not server
    await until_stopped(pool, server)
    other.answer(TEXT)
    await second.outcome()


@pytest.mark.usefixtures("stateless")
async def test_a_process_that_answered_a_cancelled_call_is_used_again(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    sent.leave()
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[0]))
    second, again = await start(client, pool)
    assert again is server
    again.answer(TEXT)
    await second.outcome()


@pytest.mark.usefixtures("stateless")
@pytest.mark.parametrize("names_its_call", [True, False])
async def test_a_line_too_long_is_the_answer_only_if_it_says_so(
    client: Client, pool: ServerPool, *, names_its_call: bool
) -> None:
    """Else it may have been another's, and the process may still work on the call."""
    sent, server = await start(client, pool)
    assert server.listener is not None
    call_id = str(server.sent[-1]["id"]).encode()
    prefix = b'"id":%b,"result":' % call_id if names_its_call else b'"result":'
    server.listener.backend_sent_too_much(b'{"jsonrpc":"2.0",' + prefix, b"}}")
    with pytest.raises(ResponseTooLarge):
        await sent.outcome()
    if names_its_call:
        assert (await start(client, pool))[1] is server
        server.answer(TEXT)
    else:
        await until_stopped(pool, server)


@pytest.mark.usefixtures("stateless")
async def test_a_process_whose_call_took_too_long_takes_no_other(
    client: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    sent, server = await start(client, pool)
    sweep(registry, 1000)
    with pytest.raises(BackendTimeout):
        await sent.outcome()
    await until_stopped(pool, server)


@pytest.mark.usefixtures("stateless")
async def test_a_process_that_somebody_listens_to_answers_lists_until_they_leave(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, registry: SessionRegistry
) -> None:
    message, envelope = client.message("subscriptions/listen", notifications={"toolsListChanged": True})
    subscription = await sessionless.listen(client.caller, message, envelope)
    assert subscription is not None
    sent, server = await start(client, pool)
    sent.leave()
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
    sessionless.subscriptions.close(subscription)
    await until_stopped(pool, server)


@pytest.mark.usefixtures("stateless")
async def test_a_process_is_stopped_after_it_has_been_told_that_nobody_listens_any_more(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, registry: SessionRegistry
) -> None:
    message, envelope = client.message("subscriptions/listen", notifications={"resourceSubscriptions": ["a://b"]})
    subscription = await sessionless.listen(client.caller, message, envelope)
    assert subscription is not None
    sent, server = await start(client, pool)
    sent.leave()
    sweep(registry, CANCEL_GRACE_S + 1)
    sessionless.subscriptions.close(subscription)
    assert server.sent_with("resources/unsubscribe")
    assert server in pool.living, "its answer is waited for"
    await anyio.lowlevel.checkpoint()
    with anyio.fail_after(20):
        while server in pool.living:
            sessionless.sweep(time.monotonic())
            await anyio.lowlevel.checkpoint()


async def test_a_client_that_leaves_in_its_retry_cancels_the_call(client: Client, pool: ServerPool) -> None:
    result, server = await suspend(client, pool)
    retry = await client.go_on(result, {keys(result)["q1"]: ACCEPT}, name="x")
    retry.leave()
    await server.called("notifications/cancelled")
    await refused(client, result, "state_spent")


async def test_a_client_that_leaves_after_it_was_asked_may_come_back(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    server.ask("q1", message="q1")
    result = await sent.outcome()
    sent.leave()
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
    with pytest.raises(CallCutOff):
        await sent.outcome()


@pytest.mark.usefixtures("stateless")
async def test_a_line_that_cannot_be_written_to_is_free_again(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    sent, server = await start(client, pool)
    server.answer(TEXT)
    await sent.outcome()
    server.is_busy = True
    with pytest.raises(GatewayError):
        await client.send(name="x")
    server.is_busy = False
    assert not held(sessionless, principal)
