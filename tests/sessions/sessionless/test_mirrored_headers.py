"""MirroredHeaders: what is known of the arguments that clients repeat in headers, and that calls do not wait for it."""

import json
import time
from typing import Any

import anyio
import pytest

from app.errors import InvalidResponse
from app.protocol.commands import CANCEL_GRACE_S
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless import _mirrored_headers as mirrored_headers
from app.sessions.sessionless.requests import SessionlessRequests
from tests.sessions.sessionless.client import TEXT, Client, run
from tests.sessions.sessionless.servers import ERROR, FakeServer, ServerPool, legacy_server, sessionless_server

MIRRORED = {"name": "t", "inputSchema": {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}}
OTHER = {"name": "u", "inputSchema": {"properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}}}
PLAIN = {"name": "t", "inputSchema": {}}


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


class Paged(FakeServer):
    """Has these pages of tools, by cursor."""

    def __init__(self, pages: dict[str | None, Any], answers: dict[str, Any] | None = None) -> None:
        super().__init__(legacy_server().answers if answers is None else answers)
        self.pages = pages

    def send(self, line: bytes) -> None:
        message = json.loads(line)
        if message.get("method") == "tools/list":
            self.answers["tools/list"] = self.pages[message["params"].get("cursor")]
        super().send(line)


def known(client: Client, tool: str = "t") -> list[str] | None:
    _, envelope = client.message("tools/call", name=tool)
    found = client.sessionless.known_mirrors(client.caller, envelope, tool)
    return None if found is None else [each.header for each in found]


async def known_to_be(client: Client, headers: list[str]) -> None:
    with anyio.fail_after(20):
        while known(client) != headers:
            await anyio.lowlevel.checkpoint()


async def look(client: Client, tool: str = "t", *, max_age_s: float = 60.0) -> list[str]:
    _, envelope = client.message("tools/call", name=tool)
    found = await client.sessionless.mirrored(client.caller, envelope, tool, max_age_s=max_age_s)
    return [each.header for each in found]


async def test_the_tools_are_asked_for_once_for_many_and_again_when_they_change(
    client: Client, pool: ServerPool
) -> None:
    pages = {None: {"tools": ["no tool"], "nextCursor": "2"}, "2": {"tools": [MIRRORED]}}
    pool.make = lambda: Paged(pages)
    found: list[list[str]] = []

    async def one() -> None:
        found.append(await look(client))

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(one)
    assert found == [["Region"]] * 100
    server = pool.servers[0]
    assert len(server.sent_with("tools/list")) == 2
    await look(client)
    assert len(server.sent_with("tools/list")) == 2
    server.say(method="notifications/tools/list_changed")
    assert known(client) == ["Region"], "the old list is better than none"
    await look(client)
    assert len(server.sent_with("tools/list")) == 4


async def test_a_call_is_not_held_up_and_the_tools_are_looked_up_after_it(client: Client, pool: ServerPool) -> None:
    pool.make = lambda: Paged({None: {"tools": [MIRRORED]}})
    server = await run(client, pool)
    assert [message["method"] for message in server.sent[-1:]] == ["tools/call"]
    await known_to_be(client, ["Region"])
    await run(client, pool)
    await anyio.wait_all_tasks_blocked()
    assert len(server.sent_with("tools/list")) == 1, "once a minute will do"


async def test_a_client_that_discovers_the_server_has_its_tools_looked_up(client: Client, pool: ServerPool) -> None:
    pool.make = lambda: Paged({None: {"tools": [MIRRORED]}}, sessionless_server().answers)
    _, envelope = client.message("server/discover")
    await client.sessionless.discover(client.caller, envelope)
    await known_to_be(client, ["Region"])


async def test_what_a_client_lists_is_remembered(client: Client, pool: ServerPool) -> None:
    pages = {None: {"tools": [MIRRORED, OTHER], "nextCursor": "2"}, "2": {"tools": []}, "3": {"tools": [PLAIN, OTHER]}}
    pool.make = lambda: Paged(pages)
    assert known(client) is None
    await (await client.send("tools/list")).outcome()
    assert (known(client), known(client, "u"), known(client, "v")) == (["Region"], ["Zone"], [])
    await (await client.send("tools/list", cursor="2")).outcome()
    assert known(client) == ["Region"]
    await (await client.send("tools/list", cursor="3")).outcome()
    assert (known(client), known(client, "u")) == ([], ["Zone"])
    pool.servers[0].pages[None] = {"tools": [PLAIN]}
    await (await client.send("tools/list")).outcome()
    assert (known(client), known(client, "u")) == ([], [])


async def test_a_backend_that_lists_nonsense_has_no_mirrored_parameters(client: Client, pool: ServerPool) -> None:
    deep = '{"x-mcp-header":' + "[" * 9000
    for nonsense in (
        "text", {"tools": 7}, {"tools": [7, {"name": 7, "x-mcp-header": 7}]}, {"tools": deep}, ERROR,
    ):  # fmt: skip
        pool.make = lambda answer=nonsense: FakeServer({**legacy_server().answers, "tools/list": answer})  # type: ignore[misc]
        assert await look(client) == []
        client.sessionless.forget("acme")


async def test_a_backend_has_a_bounded_number_of_mirrored_parameters(
    client: Client, pool: ServerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrored_headers, "MAX_MIRRORED", 1)
    pool.make = lambda: Paged({None: {"tools": [MIRRORED, OTHER]}})
    assert (await look(client), await look(client, "u")) == (["Region"], [])


async def test_a_backend_with_pages_without_end_is_not_asked_for_ever(client: Client, pool: ServerPool) -> None:
    pool.make = lambda: Paged({None: {"tools": [MIRRORED], "nextCursor": None}, "x": {"tools": [], "nextCursor": "x"}})
    assert await look(client) == ["Region"]
    pool.servers[0].pages[None]["nextCursor"] = "x"
    assert await look(client, max_age_s=0) == ["Region"]
    assert len(pool.servers[0].sent_with("tools/list")) == 1 + mirrored_headers.MAX_PAGES


async def test_a_process_that_dies_while_it_lists_is_heard_by_who_waits(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    pool.make = lambda: FakeServer({key: each for key, each in legacy_server().answers.items() if key != "tools/list"})
    errors: list[Exception] = []

    async def one() -> None:
        with pytest.raises(InvalidResponse) as error:
            await look(client)
        errors.append(error.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        with anyio.fail_after(20):
            while not pool.servers:
                await anyio.lowlevel.checkpoint()
        await pool.servers[0].called("tools/list")
        pool.servers[0].die()
    assert len(errors) == 1
    assert len(sessionless.pooled_sessions) == 0


async def test_a_call_whose_process_dies_has_no_tools_looked_up(client: Client, pool: ServerPool) -> None:
    sent = await client.send(name="x")
    pool.servers[0].answer(TEXT)
    pool.servers[0].die()
    await sent.outcome()
    await anyio.wait_all_tasks_blocked()
    assert not pool.servers[0].sent_with("tools/list")


async def test_a_process_that_does_not_list_its_tools_is_not_kept_for_it(
    client: Client, pool: ServerPool, registry: SessionRegistry, sessionless: SessionlessRequests
) -> None:
    pool.make = lambda: FakeServer({key: each for key, each in legacy_server().answers.items() if key != "tools/list"})
    server = await run(client, pool)
    asked = await server.called("tools/list")
    sessionless.sweep(time.monotonic())
    assert not server.sent_with("notifications/cancelled")
    for _ in range(2):
        sessionless.sweep(time.monotonic() + mirrored_headers.LOOK_S + 1)
    (cancelled,) = server.sent_with("notifications/cancelled")
    assert cancelled["params"]["requestId"] == asked["id"]
    (session,) = registry
    session.sweep(time.monotonic() + CANCEL_GRACE_S + 1)
    await anyio.wait_all_tasks_blocked()
    assert session.exchange.in_flight == 0
    assert known(client) is None
    sessionless.sweep(time.monotonic())
    assert not sessionless._looking
