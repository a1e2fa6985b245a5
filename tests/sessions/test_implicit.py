"""ImplicitSessions: eras, lines and subscriptions of clients that open no session, over processes that are fakes."""

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from app.auth.sealing import Sealer
from app.domain import Principal
from app.errors import BackendExited, BackendUnavailable, NodeUnavailable
from app.metrics import Metrics
from app.protocol.jsonrpc import Request
from app.protocol.modern import SUPPORTED
from app.sessions import lines
from app.sessions.directory import BackendDirectory
from app.sessions.implicit import ImplicitSessions
from app.sessions.line import MAX_SHARED_CALLS
from app.sessions.lines import MAX_CAPABILITY_SETS, CallerKey
from app.sessions.listeners import MAX_LISTENERS, Listener
from app.sessions.registry import SessionRegistry
from tests.sessions.conftest import SPEC
from tests.sessions.fakes import FakeStore, alone
from tests.sessions.modern_client import ELICITS, Client
from tests.sessions.servers import (
    ERROR,
    FakeServer,
    ServerPool,
    legacy_server,
    modern_server,
    silent_server,
)

TEXT = {"content": [{"type": "text", "text": "hi"}]}


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


@pytest.fixture
async def registry(pool: ServerPool, store: FakeStore, directory: BackendDirectory) -> AsyncIterator[SessionRegistry]:
    """Every test ends with nothing held: no line, no suspended call, no call counted."""
    typed_pool: Any = pool
    async with SessionRegistry(directory, typed_pool, Metrics("test"), alone(), max_sessions=50) as registry:
        yield registry
        gates = {session.gate for session in registry}
    assert all(gate.in_flight == 0 for gate in gates)
    assert not pool.living


@pytest.fixture
def implicit(registry: SessionRegistry) -> ImplicitSessions:
    return ImplicitSessions(registry, Sealer(b"k" * 32))


@pytest.fixture
def client(implicit: ImplicitSessions, principal: Principal) -> Client:
    return Client(implicit, principal)


@pytest.fixture
def asked(implicit: ImplicitSessions, principal: Principal) -> Client:
    """A client that answers questions."""
    return Client(implicit, principal, ELICITS)


async def run(client: Client, pool: ServerPool, name: str = "x") -> FakeServer:
    """One whole call; the process that had it."""
    before = [len(server.sent) for server in pool.servers]
    sent = await client.send(name=name)
    server = next(
        server
        for index, server in enumerate(pool.servers)
        if any(
            message.get("method") == "tools/call" for message in server.sent[(before[index : index + 1] or [0])[0] :]
        )
    )
    server.answer(TEXT)
    assert (await sent.outcome())["content"] == TEXT["content"]
    return server


def in_flight(registry: SessionRegistry) -> int:
    return sum({session.gate: session.gate.in_flight for session in registry}.values())


# --- which era


async def test_a_backend_that_refuses_discover_is_opened_with_a_handshake(client: Client, pool: ServerPool) -> None:
    server = await run(client, pool)
    assert [message.get("method") for message in server.sent] == [
        "server/discover", "initialize", "notifications/initialized", "tools/call",
    ]  # fmt: skip
    assert "_meta" not in server.sent[-1]["params"]


async def test_a_backend_that_never_answers_discover_is_opened_with_a_handshake(
    client: Client, pool: ServerPool, registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "PROBE_S", 0.01)
    pool.make = silent_server
    server = await run(client, pool)
    methods = [message.get("method") for message in server.sent]
    assert methods[:4] == ["server/discover", "initialize", "notifications/initialized", "notifications/cancelled"]
    for session in registry:
        session.sweep(1e12)
    assert in_flight(registry) == 0


async def test_a_backend_that_answers_discover_is_spoken_to_in_its_own_words(client: Client, pool: ServerPool) -> None:
    pool.make = modern_server
    server = await run(client, pool)
    assert [message.get("method") for message in server.sent] == ["server/discover", "tools/call"]
    assert "io.modelcontextprotocol/protocolVersion" in server.sent[-1]["params"]["_meta"]


async def test_a_modern_backend_that_starts_slowly_is_not_taken_for_a_silent_one(
    client: Client, pool: ServerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "PROBE_S", 0.01)

    class Slow(FakeServer):
        """Answers `server/discover` once it reads `initialize`, and refuses that."""

        def send(self, line: bytes) -> None:
            super().send(line)
            if self.sent[-1].get("method") == "initialize":
                self.say(id=self.sent[0]["id"], result=modern_server().answers["server/discover"])

    pool.make = lambda: Slow({"initialize": legacy_server().answers["initialize"]})
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            sent = await client.send(name="x")
            pool.servers[-1].answer(TEXT)
            await sent.outcome()

        tasks.start_soon(call)
        with anyio.fail_after(5):
            while not pool.servers:
                await anyio.lowlevel.checkpoint()
        pool.make = modern_server
    assert len(pool.servers) == 2
    assert pool.leases[0].released
    assert [message.get("method") for message in pool.servers[1].sent] == ["server/discover", "tools/call"]


async def test_the_era_is_found_once_per_version_of_the_backend(
    asked: Client, pool: ServerPool, store: FakeStore, directory: BackendDirectory, implicit: ImplicitSessions
) -> None:
    first = await asked.send(name="a")
    second = await asked.send(name="b")
    assert [len(server.sent_with("server/discover")) for server in pool.servers] == [1, 0]
    for sent, server in zip((first, second), pool.servers, strict=True):
        server.answer(TEXT)
        await sent.outcome()
    store.specs[SPEC.key] = dataclasses.replace(SPEC, version=SPEC.version + 1)
    directory.forget("acme", "echo")
    implicit.forget("acme", "echo")
    pool.make = modern_server
    server = await run(asked, pool)
    assert server is pool.servers[2]
    assert not server.sent_with("initialize")


async def test_a_backend_that_dies_during_the_probe_is_an_error_and_leaves_nothing(
    client: Client, pool: ServerPool, registry: SessionRegistry, implicit: ImplicitSessions
) -> None:
    class Dying(FakeServer):
        def send(self, line: bytes) -> None:
            super().send(line)
            self.die()

    pool.make = lambda: Dying({})
    with pytest.raises(BackendExited):
        await client.send(name="x")
    assert len(registry) == len(implicit.lines) == 0


async def test_a_backend_that_dies_with_its_greeting_leaves_no_line(
    client: Client, pool: ServerPool, registry: SessionRegistry, implicit: ImplicitSessions
) -> None:
    class Dying(FakeServer):
        def say(self, **message: Any) -> None:
            super().say(**message)
            if "serverInfo" in (message.get("result") or {}):
                self.die()

    pool.make = lambda: Dying(legacy_server().answers)
    with pytest.raises(BackendExited):
        await client.send(name="x")
    assert len(registry) == len(implicit.lines) == 0
    pool.make = legacy_server
    await run(client, pool)


async def test_a_pool_without_a_process_is_an_error_and_leaves_nothing(
    client: Client, pool: ServerPool, registry: SessionRegistry, implicit: ImplicitSessions
) -> None:
    pool.error = BackendUnavailable()
    with pytest.raises(BackendUnavailable):
        await client.send(name="x")
    assert len(registry) == len(implicit.lines) == 0


async def test_a_client_that_leaves_while_its_line_opens_leaves_nothing(
    client: Client, pool: ServerPool, registry: SessionRegistry, implicit: ImplicitSessions
) -> None:
    pool.make = lambda: FakeServer({})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.send)
        with anyio.fail_after(5):
            while not pool.servers:
                await anyio.lowlevel.checkpoint()
        await pool.servers[0].called("server/discover")
        tasks.cancel_scope.cancel()
    assert len(registry) == len(implicit.lines) == 0


async def test_a_line_for_a_caller_that_another_node_has_by_now_is_closed(
    client: Client, registry: SessionRegistry, implicit: ImplicitSessions
) -> None:
    implicit.lines.may_serve = lambda session: False
    with pytest.raises(NodeUnavailable):
        await client.send(name="x")
    assert len(registry) == len(implicit.lines) == 0


async def test_a_caller_is_gone_with_its_last_line_but_not_before_its_requests(
    client: Client, pool: ServerPool, registry: SessionRegistry, implicit: ImplicitSessions
) -> None:
    gone: list[CallerKey] = []
    implicit.lines.on_caller_gone = gone.append
    with implicit.expecting(client.caller):
        await run(client, pool)
        registry.close_where(lambda session: True, "idle")
        assert not gone
    assert gone == [client.caller.key]
    await run(client, pool)
    registry.close_where(lambda session: True, "idle")
    assert gone == [client.caller.key] * 2


async def test_the_lines_of_a_caller_that_another_node_has_taken_end(
    client: Client, pool: ServerPool, registry: SessionRegistry, implicit: ImplicitSessions, principal: Principal
) -> None:
    other = Client(implicit, dataclasses.replace(principal, subject="somebody else"))
    for each in (client, other):
        await run(each, pool)
    implicit.lines.lost(client.caller.key)
    assert [session.principal.subject for session in registry] == ["somebody else"]


# --- which line


async def test_consecutive_calls_get_the_process_used_last(asked: Client, pool: ServerPool) -> None:
    first, second = await asked.send(name="a"), await asked.send(name="b")
    one, other = pool.servers
    other.answer(TEXT)
    await second.outcome()
    one.answer(TEXT)
    await first.outcome()
    assert [await run(asked, pool) for _ in range(3)] == [other] * 3


async def test_calls_that_may_be_asked_have_a_process_each_and_others_share(
    asked: Client, client: Client, pool: ServerPool
) -> None:
    sent = [await asked.send(name=name) for name in "ab"]
    assert len(pool.servers) == 2
    sent += [await client.send(name=name) for name in "cd"]
    assert len(pool.servers) == 3
    for each in sent:
        each.call.leave()


async def test_a_list_is_asked_of_a_process_that_is_in_a_call(asked: Client, pool: ServerPool) -> None:
    call = await asked.send(name="a")
    listing = await asked.send("tools/list")
    assert len(pool.servers) == 1
    assert (await listing.outcome())["tools"] == []
    call.call.leave()


async def test_calls_that_want_a_log_do_not_hear_that_of_others(
    pool: ServerPool, implicit: ImplicitSessions, principal: Principal
) -> None:
    quiet, loud = Client(implicit, principal), Client(implicit, principal, log_level="info")
    sent = [await loud.send(name="a"), await quiet.send(name="b"), await loud.send(name="c")]
    assert [len(server.sent_with("tools/call")) for server in pool.servers] == [1, 1, 1]
    for each in sent:
        each.call.leave()


async def test_each_set_of_capabilities_is_what_its_process_hears(
    pool: ServerPool, implicit: ImplicitSessions, principal: Principal
) -> None:
    offered: dict[str, Any] = {"sampling": {}, "roots": {}, "extensions": {"x": {}}}
    client = Client(implicit, principal, offered)
    server = await run(client, pool)
    hello = await server.called("initialize")
    assert hello["params"]["capabilities"] == {"sampling": {}, "roots": {}}
    assert await run(Client(implicit, principal, dict(reversed(offered.items()))), pool) is server
    assert await run(Client(implicit, principal, {"sampling": {}}), pool) is not server


async def test_a_modern_process_serves_every_set_of_capabilities(
    pool: ServerPool, implicit: ImplicitSessions, principal: Principal
) -> None:
    pool.make = modern_server
    server = await run(Client(implicit, principal), pool)
    assert await run(Client(implicit, principal, ELICITS), pool) is server


async def test_principals_share_no_process(pool: ServerPool, implicit: ImplicitSessions, principal: Principal) -> None:
    other = Principal("acme", "key", "k2", frozenset({"mcp:connect"}))
    assert await run(Client(implicit, principal), pool) is not await run(Client(implicit, other), pool)


async def test_a_principal_has_at_most_four_sets_of_capabilities(
    pool: ServerPool, implicit: ImplicitSessions, principal: Principal
) -> None:
    clients = [Client(implicit, principal, {"sampling": {"n": n}}) for n in range(MAX_CAPABILITY_SETS + 1)]
    servers = [await run(client, pool) for client in clients[:MAX_CAPABILITY_SETS]]
    assert await run(clients[0], pool) is servers[0]
    fifth = await run(clients[-1], pool)
    assert pool.living == [servers[0], *servers[2:], fifth]


async def test_a_replaced_set_ends_after_its_calls(
    pool: ServerPool, implicit: ImplicitSessions, principal: Principal
) -> None:
    clients = [Client(implicit, principal, {"sampling": {"n": n}}) for n in range(MAX_CAPABILITY_SETS + 1)]
    sent = await clients[0].send(name="long")
    for client in clients[1:]:
        await run(client, pool)
    busy = pool.servers[0]
    assert busy in pool.living
    busy.answer(TEXT)
    await sent.outcome()
    await anyio.wait_all_tasks_blocked()
    assert busy not in pool.living


async def test_a_process_has_a_bounded_number_of_calls_and_then_there_is_another(
    client: Client, pool: ServerPool
) -> None:
    pool.make = modern_server
    sent = [await client.send(name="x") for _ in range(MAX_SHARED_CALLS + 1)]
    assert [len(server.sent_with("tools/call")) for server in pool.servers] == [MAX_SHARED_CALLS, 1]
    for each in sent:
        each.call.leave()


async def test_a_changed_backend_gets_new_processes_and_calls_end_where_they_are(
    client: Client, pool: ServerPool, implicit: ImplicitSessions
) -> None:
    sent = await client.send(name="x")
    implicit.forget("acme", "echo")
    new = await run(client, pool)
    assert new is not pool.servers[0]
    pool.servers[0].answer(TEXT)
    await sent.outcome()
    await anyio.wait_all_tasks_blocked()
    assert pool.living == [new]


async def test_a_dead_process_is_replaced(client: Client, pool: ServerPool, implicit: ImplicitSessions) -> None:
    (await run(client, pool)).die()
    assert len(implicit.lines) == 0
    await run(client, pool)


async def test_nothing_is_kept_of_callers_without_a_line(
    client: Client, pool: ServerPool, implicit: ImplicitSessions
) -> None:
    (await run(client, pool)).die()
    assert not implicit.lines._callers
    assert repr(implicit) == "<ImplicitSessions [0 lines, 0 suspended, 0 listeners]>"


async def test_closing_every_session_twice_leaves_nothing(
    client: Client, asked: Client, registry: SessionRegistry, implicit: ImplicitSessions
) -> None:
    sent = [await client.send(name="a"), await asked.send(name="b")]
    for _ in range(2):
        registry.close_where(lambda session: True, "shutdown")
    for each in sent:
        with pytest.raises(BackendExited):
            await each.outcome()
    assert len(implicit.lines) == len(implicit.suspended) == 0


# --- discover, and the tools


async def test_discover_says_what_the_handshake_said(client: Client, pool: ServerPool) -> None:
    _, envelope = client.message("server/discover")
    found = json.loads(await client.implicit.discover(client.caller, envelope))
    assert found["supportedVersions"] == list(SUPPORTED)
    assert set(found["capabilities"]) == {"tools", "resources", "logging"}
    assert (found["instructions"], found["resultType"], found["cacheScope"]) == ("hi", "complete", "private")
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "fake"


MIRRORED = {"name": "t", "inputSchema": {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}}


async def test_the_tools_are_asked_for_once_for_many_calls_and_again_when_they_change(
    client: Client, pool: ServerPool
) -> None:
    pages = {None: {"tools": ["no tool"], "nextCursor": "2"}, "2": {"tools": [MIRRORED]}}

    class Paged(FakeServer):
        def send(self, line: bytes) -> None:
            message = json.loads(line)
            if message.get("method") == "tools/list":
                self.answers["tools/list"] = pages[message["params"].get("cursor")]
            super().send(line)

    pool.make = lambda: Paged(legacy_server().answers)
    _, envelope = client.message("tools/call", name="t")
    found: list[list[str]] = []

    async def look() -> None:
        found.append([each.header for each in await client.implicit.mirrored(client.caller, envelope, "t")])

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(look)
    assert found == [["Region"]] * 100
    server = pool.servers[0]
    assert len(server.sent_with("tools/list")) == 2
    await look()
    assert len(server.sent_with("tools/list")) == 2
    server.say(method="notifications/tools/list_changed")
    await look()
    assert len(server.sent_with("tools/list")) == 4


async def test_a_backend_that_lists_nonsense_has_no_mirrored_parameters(client: Client, pool: ServerPool) -> None:
    _, envelope = client.message("tools/call", name="t")
    for nonsense in ("text", {"tools": 7}, {"tools": [7, {"name": 7, "inputSchema": 7}]}, {"tools": "[" * 9000}):
        pool.make = lambda answer=nonsense: FakeServer({**legacy_server().answers, "tools/list": answer})  # type: ignore[misc]
        assert await client.implicit.mirrored(client.caller, envelope, "t") == []
        client.implicit.forget("acme")


# --- listening


async def listen(client: Client, **wanted: Any) -> Listener:
    message, envelope = client.message("subscriptions/listen", notifications=wanted)
    listener = await client.implicit.listen(client.caller, message, envelope)
    assert listener is not None
    return listener


async def heard(listener: Listener) -> dict[str, Any]:
    with anyio.fail_after(5):
        item = await listener.stream.next()
    assert isinstance(item, bytes)
    return json.loads(item)  # type: ignore[no-any-return]


def subscription(message: dict[str, Any]) -> bytes:
    found = (message.get("params") or message["result"])["_meta"]["io.modelcontextprotocol/subscriptionId"]
    return json.dumps(found).encode()


async def test_the_acknowledgement_names_what_can_be_had(client: Client) -> None:
    listener = await listen(
        client, toolsListChanged=True, promptsListChanged=True, resourceSubscriptions=["a://b", 7], unknown=True
    )
    message = await heard(listener)
    assert message["method"] == "notifications/subscriptions/acknowledged"
    assert message["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
    assert subscription(message) == listener.subscription_id


async def test_a_resource_that_cannot_be_subscribed_to_is_not_acknowledged(client: Client, pool: ServerPool) -> None:
    pool.make = lambda: FakeServer({**legacy_server().answers, "resources/subscribe": ERROR})
    message = await heard(await listen(client, resourceSubscriptions=["a://b"]))
    assert message["params"]["notifications"] == {}


async def test_a_change_reaches_every_listener_that_asked_for_it_under_its_own_id(
    client: Client, pool: ServerPool
) -> None:
    tools, resources = await listen(client, toolsListChanged=True), await listen(client, resourcesListChanged=True)
    watching = await listen(client, resourceSubscriptions=["a://b"], toolsListChanged=True)
    for listener in (tools, resources, watching):
        await heard(listener)
    server = pool.servers[0]
    server.say(method="notifications/tools/list_changed")
    server.say(method="notifications/resources/updated", params={"uri": "a://b"})
    server.say(method="notifications/resources/updated", params={"uri": "a://other"})
    server.say(method="notifications/message", params={"level": "error", "data": "not on this stream"})
    server.say(method="notifications/resources/list_changed")
    for listener, methods in (
        (tools, ["tools/list_changed"]),
        (resources, ["resources/list_changed"]),
        (watching, ["tools/list_changed", "resources/updated"]),
    ):
        messages = [await heard(listener) for _ in methods]
        assert [message["method"].removeprefix("notifications/") for message in messages] == methods
        assert {subscription(message) for message in messages} == {listener.subscription_id}
        assert repr(listener.stream).endswith("[0 events, 0 bytes]>")


async def test_other_principals_hear_nothing(client: Client, pool: ServerPool, implicit: ImplicitSessions) -> None:
    other = Client(implicit, Principal("acme", "key", "k2", frozenset({"mcp:connect"})))
    mine, theirs = await listen(client, toolsListChanged=True), await listen(other, toolsListChanged=True)
    for listener in (mine, theirs):
        await heard(listener)
    pool.servers[0].say(method="notifications/tools/list_changed")
    assert (await heard(mine))["method"] == "notifications/tools/list_changed"
    assert repr(theirs.stream).endswith("[0 events, 0 bytes]>")


async def test_a_resource_is_subscribed_to_once_and_until_the_last_listener_leaves(
    client: Client, pool: ServerPool, implicit: ImplicitSessions
) -> None:
    first, second = [await listen(client, resourceSubscriptions=["a://b"]) for _ in range(2)]
    server = pool.servers[0]
    assert len(server.sent_with("resources/subscribe")) == 1
    implicit.listeners.close(first)
    implicit.listeners.close(first)
    assert not server.sent_with("resources/unsubscribe")
    implicit.listeners.close(second)
    assert (await server.called("resources/unsubscribe"))["params"] == {"uri": "a://b"}
    assert len(implicit.listeners) == 0


async def test_a_line_is_not_idle_while_somebody_listens(
    client: Client, implicit: ImplicitSessions, registry: SessionRegistry
) -> None:
    listener = await listen(client, toolsListChanged=True)
    session = next(iter(registry))
    soon = session.last_seen + session.spec.timeouts.idle_s + 1
    assert session.expired(soon) is None
    implicit.listeners.close(listener)
    assert session.expired(soon) == "idle"


async def test_a_subscription_ends_with_its_result_when_the_process_dies(
    client: Client, asked: Client, pool: ServerPool, implicit: ImplicitSessions
) -> None:
    listener = await listen(client, toolsListChanged=True)
    await heard(listener)
    other = await asked.send(name="x")  # a line of the same caller that goes on
    pool.servers[0].die()
    end = await heard(listener)
    assert json.dumps(end["id"]).encode() == listener.subscription_id == subscription(end)
    assert end["result"]["resultType"] == "complete"
    assert await listener.stream.next() is None
    assert len(implicit.listeners) == 0
    other.call.leave()


async def test_a_process_that_dies_before_it_acknowledges_leaves_no_listener(
    client: Client, pool: ServerPool, implicit: ImplicitSessions
) -> None:
    class Dying(FakeServer):
        def send(self, line: bytes) -> None:
            super().send(line)
            if self.sent[-1].get("method") == "resources/subscribe":
                self.die()

    pool.make = lambda: Dying(legacy_server().answers)
    with pytest.raises(BackendExited):
        await listen(client, resourceSubscriptions=["a://b"])
    assert len(implicit.listeners) == 0


async def test_listeners_are_bounded_and_the_oldest_is_told_that_it_ends(
    client: Client, implicit: ImplicitSessions
) -> None:
    listeners = [await listen(client, toolsListChanged=True) for _ in range(MAX_LISTENERS + 1)]
    await heard(listeners[0])
    assert "result" in await heard(listeners[0])
    assert listeners[0].stream.is_spent
    assert len(implicit.listeners) == MAX_LISTENERS


async def test_a_question_without_a_call_is_refused(client: Client, pool: ServerPool) -> None:
    server = await run(client, pool)
    server.ask("q1")
    assert (await server.replied("q1"))["error"]["code"] == -32601


async def test_a_modern_backend_serves_subscriptions_itself(client: Client, pool: ServerPool) -> None:
    pool.make = modern_server
    message, envelope = client.message("subscriptions/listen", notifications={"toolsListChanged": True})
    assert await client.implicit.listen(client.caller, message, envelope) is None
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
    assert {subscription(message) for message in messages} == {sent.message.id}
    assert isinstance(sent.message, Request)
