"""Who hears that a backend is switched off, whatever he asks for; and who hears what he always did."""

import json
from dataclasses import replace
from typing import Any

import pytest

from app.domain import BackendSpec
from app.errors import Disabled
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from tests.http.transports.conftest import Exchanged, Http
from tests.sessions.fakes import FakeStore

MCP, NOWHERE = "/t/acme/echo/mcp", "/t/acme/other/mcp"
BOTH = "application/json, text/event-stream"
PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
HELLO = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}})


@pytest.fixture
def spec() -> BackendSpec:
    return BackendSpec("acme", "echo", "echo-server")


@pytest.fixture
def store(registry: SessionRegistry, http: Http) -> FakeStore:
    """The registry's, which is empty; and the front knows the registry."""
    store, http.app._registry = FakeStore(), registry
    directory: Any = BackendDirectory(store.get_backend, store.get_tenant)
    registry._directory = directory
    return store


def reason(got: Exchanged) -> tuple[int, str]:
    return got.status, json.loads(got.body)["error"]["data"]["reason"]


async def test_whoever_may_connect_hears_it_and_nobody_else(http: Http, store: FakeStore, spec: BackendSpec) -> None:
    asked: list[tuple[bytes, dict[str, Any]]] = [(PING, {"mcp_session_id": "s" * 32}), (HELLO.encode(), {})]
    before = {}
    for key in ("alice", "bob", "eve", "nobody"):
        for body, headers in asked:
            got = await http.ask("POST", MCP, body, accept=BOTH, authorization=f"Bearer {key}", **headers)
            before[key, body] = got.status, got.body
    store.specs[spec.key] = replace(spec, enabled=False, reason="ask Kim")
    for (key, body), told in before.items():
        headers = dict(asked)[body]
        got = await http.ask("POST", MCP, body, accept=BOTH, authorization=f"Bearer {key}", **headers)
        if key == "alice":
            assert reason(got) == (403, "disabled")
            assert b"the backend `echo` is switched off: ask Kim" in got.body
        else:
            assert (got.status, got.body) == told, key


async def test_a_backend_that_is_missing_is_looked_up_once(http: Http, store: FakeStore) -> None:
    assert reason(await http.ask("POST", NOWHERE, HELLO.encode(), accept=BOTH)) == (404, "backend_not_found")
    assert store.asked == 1


async def test_what_a_node_was_told_it_says_though_it_cannot_look_sessions_up(
    registry: SessionRegistry, spec: BackendSpec
) -> None:
    registry._directory.told(spec, Disabled("backend", "echo", "ask Kim"))
    with pytest.raises(Disabled):
        registry.require_on("acme", "echo")
    registry._directory.told(spec, None)
    registry.require_on("acme", "echo")
