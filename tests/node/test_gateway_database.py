"""A node whose PostgreSQL stops under it, or takes no changes: what goes on, for how long, and what is refused."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psycopg
import pytest

from app.auth.authenticator import REMEMBER_S
from app.cluster import changes
from app.domain import ApiKey, BackendSpec
from app.node.application import create_app
from app.node.gateway import Gateway, open_gateway
from app.settings.settings import Settings
from app.storage import database_watch as watch
from app.storage import migrate
from tests.node.test_gateway import SERVER
from tests.postgres import postgres_server

ADMIN = frozenset({"platform:admin"})


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with postgres_server() as (url, process):
        migrate.upgrade(url)
        yield url, process


@pytest.fixture
def settings(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(watch, "WATCH_EVERY_S", 0.05)
    monkeypatch.setattr(changes, "LOOK_EVERY_S", 0.05)
    values = {"DATA_DIR": str(tmp_path), "DATABASE_URL": server[0], "SECRET_KEY": "ab" * 32, "MAX_PROCESSES": "20"}
    return Settings.from_env({f"TRUNKLINE_{name}": value for name, value in values.items()})


class Client:
    """Over the node's whole application, with one key."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._later_s, self._burst = gateway, 0.0, 100
        transport = httpx2.ASGITransport(app=create_app(gateway))
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", timeout=30)
        trail = gateway.records.trail
        gateway.credentials.authenticator._clock = trail._clock = lambda: time.monotonic() + self._later_s

    def sleep(self, seconds: float) -> None:
        """So much time passes for credentials, and for what is known of revocations."""
        self._later_s += seconds

    async def open(self, name: str) -> None:
        spec = BackendSpec("default", name, sys.executable, (SERVER,))
        await self._gateway.records.backends.create("default", spec)
        await self.new_key()
        self.path = f"/t/default/{name}/mcp"
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        hello = await self.post("initialize", params)
        assert hello.status_code == 200, hello.text
        self.headers["mcp-session-id"] = hello.headers["mcp-session-id"]

    async def new_key(self) -> None:
        made = self._gateway.credentials.key_maker.make()
        await self._gateway.records.keys.create(
            "default", ApiKey(made.id, "default", "", made.digest, 1, ADMIN, datetime.now(UTC))
        )
        self.headers = {"authorization": f"Bearer {made.text}", "accept": "application/json, text/event-stream"}

    async def post(self, method: str, params: dict[str, Any]) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.http.post(self.path, json=body, headers=self.headers)

    async def call(self) -> int:
        return (await self.post("tools/call", {"name": "echo", "arguments": {"text": "x"}})).status_code

    async def ready(self) -> tuple[int, str]:
        response = await self.http.get("/readyz")
        return response.status_code, response.json()["parts"]["database"].partition(". ")[0]

    async def change(self) -> tuple[int, str]:
        self._burst += 1
        response = await self.http.patch(
            "/api/v1/tenants/default", content=json.dumps({"limits": {"burst": self._burst}}),
            headers={**self.headers, "content-type": "application/merge-patch+json"},
        )  # fmt: skip
        return response.status_code, response.json().get("reason", "")


async def becomes(wanted: Any, ask: Any) -> None:
    found = None
    with anyio.move_on_after(20):
        while (found := await ask()) != wanted:
            await anyio.sleep(0.02)
    assert found == wanted


async def test_a_database_that_takes_no_changes_is_503_for_changes_and_for_readiness(settings: Settings) -> None:
    async with open_gateway(settings) as gateway:
        client = Client(gateway)
        await client.open("read-only")
        assert await client.change() == (200, "")
        with psycopg.connect(settings.database_url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")
        try:
            await becomes((503, "The database is read-only: it may be a standby"), client.ready)
            assert await client.change() == (503, "storage_read_only")
            assert await client.call() == 200
        finally:
            with psycopg.connect(settings.database_url, autocommit=True) as connection:
                connection.execute("SET default_transaction_read_only = off")
                connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
                connection.execute("SELECT pg_reload_conf()")
        await becomes((200, "ok"), client.ready)
        await becomes((200, ""), client.change)


async def test_while_the_database_is_gone_calls_go_on_for_thirty_seconds(settings: Settings, server: Any) -> None:
    """Last in this file: the server does not come back."""
    async with open_gateway(settings) as gateway:
        client = Client(gateway)
        await client.open("stopped")
        client.sleep(REMEMBER_S - 5)
        trail = gateway.records.trail
        await becomes(True, _soon(lambda: trail.age_s() < 4))
        assert await client.call() == 200
        server[1].send_signal(signal.SIGINT)  # the one that does not wait for its clients
        with anyio.fail_after(20):
            await anyio.to_thread.run_sync(server[1].wait)
        await becomes(503, _soon(lambda: _ready_status(gateway)))
        client.sleep(10)  # more than the key was good for
        for _ in range(5):
            assert await client.call() == 200
        assert await client.change() == (503, "storage_unavailable")
        client.sleep(REMEMBER_S)
        assert await client.call() == 503
        assert len(gateway.sessions.registry) == 1  # and the session is still there


def _soon(look: Any) -> Any:
    async def ask() -> Any:
        return look()

    return ask


def _ready_status(gateway: Gateway) -> int:
    return 503 if gateway.records.watch.problem else 200
