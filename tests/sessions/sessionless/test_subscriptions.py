"""Subscriptions of clients that open no session, and what reaches them."""

import json
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import BackendExited
from app.protocol.jsonrpc import Request
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless._subscriptions import MAX_SUBSCRIPTIONS, Subscription
from app.sessions.sessionless.requests import SessionlessRequests
from app.sessions.sweeping import why_over
from tests.sessions.sessionless.client import Client, run
from tests.sessions.sessionless.servers import ERROR, FakeServer, ServerPool, legacy_server, sessionless_server


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


async def listen(client: Client, **wanted: Any) -> Subscription:
    message, envelope = client.message("subscriptions/listen", notifications=wanted)
    subscription = await client.sessionless.listen(client.caller, message, envelope)
    assert subscription is not None
    return subscription


async def heard(subscription: Subscription) -> dict[str, Any]:
    with anyio.fail_after(20):
        item = await subscription.stream.next()
    assert isinstance(item, bytes)
    return json.loads(item)  # type: ignore[no-any-return]


def subscription_of(message: dict[str, Any]) -> bytes:
    found = (message.get("params") or message["result"])["_meta"]["io.modelcontextprotocol/subscriptionId"]
    return json.dumps(found).encode()


async def test_the_acknowledgement_names_what_can_be_had(client: Client) -> None:
    subscription = await listen(
        client, toolsListChanged=True, promptsListChanged=True, resourceSubscriptions=["a://b", 7], unknown=True
    )
    message = await heard(subscription)
    assert message["method"] == "notifications/subscriptions/acknowledged"
    assert message["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
    assert subscription_of(message) == subscription.id


async def test_a_resource_that_cannot_be_subscribed_to_is_not_acknowledged(client: Client, pool: ServerPool) -> None:
    pool.make = lambda: FakeServer({**legacy_server().answers, "resources/subscribe": ERROR})
    message = await heard(await listen(client, resourceSubscriptions=["a://b"]))
    assert message["params"]["notifications"] == {}


async def test_a_resource_with_a_long_name_is_not_acknowledged(client: Client, pool: ServerPool) -> None:
    long = "a://" + "b" * 2048
    message = await heard(await listen(client, resourceSubscriptions=[long, "a://b"]))
    assert message["params"]["notifications"] == {"resourceSubscriptions": ["a://b"]}


async def test_a_change_reaches_every_listener_that_asked_for_it_under_its_own_id(
    client: Client, pool: ServerPool
) -> None:
    tools, resources = await listen(client, toolsListChanged=True), await listen(client, resourcesListChanged=True)
    watching = await listen(client, resourceSubscriptions=["a://b"], toolsListChanged=True)
    for subscription in (tools, resources, watching):
        await heard(subscription)
    server = pool.servers[0]
    server.say(method="notifications/tools/list_changed")
    server.say(method="notifications/resources/updated", params={"uri": "a://b"})
    server.say(method="notifications/resources/updated", params={"uri": "a://other"})
    server.say(method="notifications/message", params={"level": "error", "data": "not on this stream"})
    server.say(method="notifications/resources/list_changed")
    for subscription, methods in (
        (tools, ["tools/list_changed"]),
        (resources, ["resources/list_changed"]),
        (watching, ["tools/list_changed", "resources/updated"]),
    ):
        messages = [await heard(subscription) for _ in methods]
        assert [message["method"].removeprefix("notifications/") for message in messages] == methods
        assert {subscription_of(message) for message in messages} == {subscription.id}
        assert subscription.stream.bytes == 0


async def test_other_principals_hear_nothing(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    other = Client(sessionless, Principal("acme", "key", "k2", frozenset({"mcp:connect"})))
    mine, theirs = await listen(client, toolsListChanged=True), await listen(other, toolsListChanged=True)
    for subscription in (mine, theirs):
        await heard(subscription)
    pool.servers[0].say(method="notifications/tools/list_changed")
    assert (await heard(mine))["method"] == "notifications/tools/list_changed"
    assert theirs.stream.bytes == 0


async def test_a_resource_is_subscribed_to_once_and_until_the_last_listener_leaves(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    first, second = [await listen(client, resourceSubscriptions=["a://b"]) for _ in range(2)]
    server = pool.servers[0]
    assert len(server.sent_with("resources/subscribe")) == 1
    sessionless.subscriptions.close(first)
    sessionless.subscriptions.close(first)
    assert not server.sent_with("resources/unsubscribe")
    sessionless.subscriptions.close(second)
    assert (await server.called("resources/unsubscribe"))["params"] == {"uri": "a://b"}
    assert len(sessionless.subscriptions) == 0


async def test_a_line_is_not_idle_while_somebody_listens(
    client: Client, sessionless: SessionlessRequests, registry: SessionRegistry
) -> None:
    subscription = await listen(client, toolsListChanged=True)
    session = next(iter(registry))
    soon = session.last_seen + session.spec.timeouts.idle_s + 1
    assert why_over(session, soon) is None
    sessionless.subscriptions.close(subscription)
    assert why_over(session, soon) == "idle"


async def test_a_subscription_ends_with_its_result_when_the_process_dies(
    client: Client, asked: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    subscription = await listen(client, toolsListChanged=True)
    await heard(subscription)
    other = await asked.send(name="x")  # a pooled session of the same caller that goes on
    pool.servers[0].die()
    end = await heard(subscription)
    assert json.dumps(end["id"]).encode() == subscription.id == subscription_of(end)
    assert end["result"]["resultType"] == "complete"
    assert await subscription.stream.next() is None
    assert len(sessionless.subscriptions) == 0
    other.leave()


async def test_a_process_that_dies_before_it_acknowledges_leaves_no_listener(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    class Dying(FakeServer):
        def send(self, line: bytes) -> None:
            super().send(line)
            if self.sent[-1].get("method") == "resources/subscribe":
                self.die()

    pool.make = lambda: Dying(legacy_server().answers)
    with pytest.raises(BackendExited):
        await listen(client, resourceSubscriptions=["a://b"])
    assert len(sessionless.subscriptions) == 0


async def test_listeners_are_bounded_and_the_oldest_is_told_that_it_ends(
    client: Client, sessionless: SessionlessRequests
) -> None:
    subscriptions = [await listen(client, toolsListChanged=True) for _ in range(MAX_SUBSCRIPTIONS + 1)]
    await heard(subscriptions[0])
    assert "result" in await heard(subscriptions[0])
    assert subscriptions[0].stream.is_spent
    assert len(sessionless.subscriptions) == MAX_SUBSCRIPTIONS


async def test_a_question_without_a_call_is_refused(client: Client, pool: ServerPool) -> None:
    server = await run(client, pool)
    server.ask("q1")
    assert (await server.replied("q1"))["error"]["code"] == -32601


async def test_a_sessionless_backend_serves_subscriptions_itself(client: Client, pool: ServerPool) -> None:
    pool.make = sessionless_server
    message, envelope = client.message("subscriptions/listen", notifications={"toolsListChanged": True})
    assert await client.sessionless.listen(client.caller, message, envelope) is None
    sent = await client.send("subscriptions/listen", notifications={"toolsListChanged": True})
    server = pool.servers[0]
    inner = (await server.called("subscriptions/listen"))["id"]
    meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": inner}}
    server.say(method="notifications/subscriptions/acknowledged", params={**meta, "notifications": {}})
    server.say(method="notifications/tools/list_changed", params=meta)
    server.say(id=inner, result={"resultType": "complete", **meta})
    messages = await sent.stream()
    assert [message.get("method", "result") for message in messages] == [
        "notifications/subscriptions/acknowledged", "notifications/tools/list_changed", "result",
    ]  # fmt: skip
    assert {subscription_of(message) for message in messages} == {sent.message.id}
    assert isinstance(sent.message, Request)
