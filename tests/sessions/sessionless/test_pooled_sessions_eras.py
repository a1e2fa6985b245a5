"""Which era a backend speaks is found out once, by its first pooled session; what goes wrong then leaves nothing."""

import asyncio
import dataclasses
import json
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import BackendExited, BackendNotFound, BackendUnavailable, Disabled, InvalidResponse
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless import pooled_sessions
from app.sessions.sessionless.requests import SessionlessRequests
from tests.sessions.fakes import FakeStore
from tests.sessions.rig import SPEC
from tests.sessions.sessionless.client import TEXT, Client, run
from tests.sessions.sessionless.servers import (
    ERROR,
    FakeServer,
    ServerPool,
    legacy_server,
    sessionless_server,
    silent_server,
)


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


def in_flight(registry: SessionRegistry) -> int:
    return sum({session.gate: session.gate.in_flight for session in registry}.values())


async def test_a_backend_that_refuses_discover_is_opened_with_a_handshake(client: Client, pool: ServerPool) -> None:
    server = await run(client, pool)
    assert [message.get("method") for message in server.sent][:4] == [
        "server/discover", "initialize", "notifications/initialized", "tools/call",
    ]  # fmt: skip
    assert "_meta" not in server.sent[3]["params"]


async def test_a_backend_that_never_answers_discover_is_opened_with_a_handshake(
    client: Client, pool: ServerPool, registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_sessions, "probe_s", lambda initialize_s: 0.01)
    pool.make = silent_server
    server = await run(client, pool)
    methods = [message.get("method") for message in server.sent]
    assert methods[:4] == ["server/discover", "initialize", "notifications/initialized", "notifications/cancelled"]
    for session in registry:
        session.sweep(1e12)
    assert in_flight(registry) == 0


async def test_a_backend_that_answers_discover_is_spoken_to_in_its_own_words(client: Client, pool: ServerPool) -> None:
    pool.make = sessionless_server
    server = await run(client, pool)
    assert [message.get("method") for message in server.sent][:2] == ["server/discover", "tools/call"]
    assert "io.modelcontextprotocol/protocolVersion" in server.sent[1]["params"]["_meta"]


async def test_a_sessionless_backend_that_starts_slowly_is_not_taken_for_a_silent_one(
    client: Client, pool: ServerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_sessions, "probe_s", lambda initialize_s: 0.01)

    class Slow(FakeServer):
        """Answers `server/discover` once it reads `initialize`, and refuses that."""

        def send(self, line: bytes) -> None:
            super().send(line)
            if self.sent[-1].get("method") == "initialize":
                self.say(id=self.sent[0]["id"], result=sessionless_server().answers["server/discover"])

    pool.make = lambda: Slow({"initialize": legacy_server().answers["initialize"]})
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            sent = await client.send(name="x")
            pool.servers[-1].answer(TEXT)
            await sent.outcome()

        tasks.start_soon(call)
        with anyio.fail_after(20):
            while not pool.servers:
                await anyio.lowlevel.checkpoint()
        pool.make = sessionless_server
    assert len(pool.servers) == 2
    assert pool.leases[0].released
    assert [message.get("method") for message in pool.servers[1].sent][:2] == ["server/discover", "tools/call"]


@pytest.mark.usefixtures("stateless")
async def test_the_era_is_found_once_per_version_of_the_backend(
    asked: Client, pool: ServerPool, store: FakeStore, directory: BackendDirectory, sessionless: SessionlessRequests
) -> None:
    first = await asked.send(name="a")
    second = await asked.send(name="b")
    assert [len(server.sent_with("server/discover")) for server in pool.servers] == [1, 0]
    for sent, server in zip((first, second), pool.servers, strict=True):
        server.answer(TEXT)
        await sent.outcome()
    store.specs[SPEC.key] = dataclasses.replace(SPEC, version=SPEC.version + 1)
    directory.forget("acme", "echo")
    sessionless.forget("acme", "echo")
    pool.make = sessionless_server
    server = await run(asked, pool)
    assert server is pool.servers[2]
    assert not server.sent_with("initialize")


async def test_a_backend_that_refuses_the_handshake_it_took_before_is_looked_at_again(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    await run(client, pool)
    pool.make = lambda: FakeServer(
        {"initialize": ERROR, "server/discover": sessionless_server().answers["server/discover"]}
    )
    other = Client(sessionless, Principal("acme", "key", "k2", principal.scopes))
    with pytest.raises(InvalidResponse):  # which may be for any reason
        await other.send(name="x")
    pool.make = sessionless_server
    server = await run(other, pool)
    assert not server.sent_with("initialize")


class OldServer(FakeServer):
    """Ends unless its first message is `initialize`, as older Rust SDKs do; or hears and says nothing any more."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__({**legacy_server().answers})
        self._hangs, self._is_lost = hangs, False

    def send(self, line: bytes) -> None:
        if not self.sent and b'"initialize"' not in line:
            self._is_lost = True
        if not self._is_lost:
            super().send(line)
            return
        self.sent.append(json.loads(line))
        if not self._hangs:
            asyncio.get_running_loop().call_soon(self.die)


async def test_a_backend_that_ends_at_the_probe_gets_another_process_with_a_handshake_and_no_probe_again(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    pool.make = OldServer
    await run(client, pool)
    await run(Client(sessionless, Principal("acme", "key", "k2", principal.scopes)), pool)
    assert [server.sent[0]["method"] for server in pool.servers] == ["server/discover", "initialize", "initialize"]
    assert [lease.was_probed for lease in pool.leases] == [True, False, False]
    assert pool.leases[0].released


async def test_so_does_one_that_hears_nothing_more_after_the_probe(
    client: Client, pool: ServerPool, registry: SessionRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_sessions, "probe_s", lambda initialize_s: 0.01)
    pool.make = lambda: OldServer(hangs=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, client, pool)
        with anyio.fail_after(60):
            while not pool.servers or len(pool.servers[0].sent) < 2:
                await anyio.sleep(0.01)
            for session in registry:
                session.sweep(1e12)  # `initialize` has no answer in time
    assert [server.sent[0]["method"] for server in pool.servers] == ["server/discover", "initialize"]


async def test_a_backend_that_dies_during_the_probe_is_an_error_and_leaves_nothing(
    client: Client, pool: ServerPool, registry: SessionRegistry, sessionless: SessionlessRequests
) -> None:
    class Dying(FakeServer):
        def send(self, line: bytes) -> None:
            super().send(line)
            asyncio.get_running_loop().call_soon(self.die)

    pool.make = lambda: Dying({})
    with pytest.raises(BackendExited):
        await client.send(name="x")
    assert len(registry) == len(sessionless.pooled_sessions) == 0


async def test_a_backend_that_dies_before_it_answers_initialize_has_not_run_the_call(
    client: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    class Dying(FakeServer):
        def send(self, line: bytes) -> None:
            super().send(line)
            if self.sent[-1].get("method") == "initialize":
                asyncio.get_running_loop().call_soon(self.die)

    pool.make = lambda: Dying({"server/discover": ERROR})
    with pytest.raises(BackendExited) as raised:
        await client.send(name="x")
    assert not raised.value.started
    assert not registry


async def test_a_backend_that_dies_with_its_greeting_leaves_no_line(
    client: Client, pool: ServerPool, registry: SessionRegistry, sessionless: SessionlessRequests
) -> None:
    class Dying(FakeServer):
        def say(self, **message: Any) -> None:
            super().say(**message)
            if "serverInfo" in (message.get("result") or {}):
                self.die()

    pool.make = lambda: Dying(legacy_server().answers)
    with pytest.raises(BackendExited):
        await client.send(name="x")
    assert len(registry) == len(sessionless.pooled_sessions) == 0
    pool.make = legacy_server
    await run(client, pool)


async def test_a_pool_without_a_process_is_an_error_and_leaves_nothing(
    client: Client, pool: ServerPool, registry: SessionRegistry, sessionless: SessionlessRequests
) -> None:
    pool.error = BackendUnavailable()
    with pytest.raises(BackendUnavailable):
        await client.send(name="x")
    assert len(registry) == len(sessionless.pooled_sessions) == 0


@pytest.mark.parametrize("waits_for", ["process", "server/discover", "initialize"])
@pytest.mark.parametrize("is_removed", [True, False])
async def test_a_backend_that_is_removed_or_switched_off_at_its_start_is_said_to_be(
    client: Client, pool: ServerPool, registry: SessionRegistry, store: FakeStore, directory: BackendDirectory,
    *, waits_for: str, is_removed: bool,
) -> None:  # fmt: skip
    pool.make = lambda: FakeServer({"server/discover": ERROR} if waits_for == "initialize" else {})
    pool.gate = anyio.Event()
    if waits_for != "process":
        pool.gate.set()

    async def change() -> None:
        await anyio.wait_all_tasks_blocked()
        if waits_for != "process":
            await pool.servers[0].called(waits_for)
        off = None if is_removed else Disabled("backend", SPEC.name)
        store.specs = {} if is_removed else {SPEC.key: dataclasses.replace(SPEC, enabled=False)}
        directory.forget(*SPEC.key)
        registry.close_where(lambda session: True, "backend_removed" if is_removed else "backend_disabled", off)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(change)
        with pytest.raises(BackendNotFound if is_removed else Disabled), anyio.fail_after(20):
            await client.send(name="x")
    assert not registry


async def test_a_client_that_leaves_while_its_line_opens_leaves_nothing(
    client: Client, pool: ServerPool, registry: SessionRegistry, sessionless: SessionlessRequests
) -> None:
    pool.make = lambda: FakeServer({})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.send)
        with anyio.fail_after(20):
            while not pool.servers:
                await anyio.lowlevel.checkpoint()
        await pool.servers[0].called("server/discover")
        tasks.cancel_scope.cancel()
    assert len(registry) == len(sessionless.pooled_sessions) == 0
