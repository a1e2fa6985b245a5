"""Processes for SessionlessRequests that greet by themselves; everything else is scripted by the test."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anyio

from app.protocol.eras.sessionless_envelope import SESSIONLESS
from tests.sessions.fakes import FakeConnection, FakePool

CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "logging": {},
    "tasks": {},
}
INFO = {"name": "fake", "version": "1"}
ERROR = {"code": -32601, "message": "no such method"}


class FakeServer(FakeConnection):
    """Answers what `answers` names by method; writes down everything; `called` waits for a line."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__()
        self.answers = answers
        self._news = anyio.Event()

    def send(self, line: bytes) -> None:
        super().send(line)
        message = self.sent[-1]
        self._news.set()
        self._news = anyio.Event()
        if "id" in message and message.get("method") in self.answers:
            found = self.answers[message["method"]]
            member = {"error": found} if found is ERROR else {"result": found}
            asyncio.get_running_loop().call_soon(lambda: self.say(id=message["id"], **member))

    def sent_with(self, method: str) -> list[dict[str, Any]]:
        """What it was sent of this method."""
        return [message for message in self.sent if message.get("method") == method]

    async def called(self, method: str, count: int = 1) -> dict[str, Any]:
        """The message of this method, once there are so many."""
        with anyio.fail_after(20):
            while len(self.sent_with(method)) < count:
                await self._news.wait()
        return self.sent_with(method)[count - 1]

    async def replied(self, question_id: Any) -> dict[str, Any]:
        """The answer to a question of the process."""
        with anyio.fail_after(20):
            while True:
                for message in self.sent:
                    if message.get("id") == question_id and "method" not in message:
                        return message
                await self._news.wait()

    def ask(self, question_id: Any, method: str = "elicitation/create", **params: Any) -> None:
        self.say(id=question_id, method=method, params=params)


def legacy_server() -> FakeServer:
    about = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": INFO, "instructions": "hi"}
    nothing: dict[str, Any] = {}
    return FakeServer({
        "server/discover": ERROR, "initialize": about, "logging/setLevel": nothing, "resources/subscribe": nothing,
        "resources/unsubscribe": nothing, "tools/list": {"tools": []},
    })  # fmt: skip


def silent_server() -> FakeServer:
    server = legacy_server()
    del server.answers["server/discover"]
    return server


def sessionless_server() -> FakeServer:
    about = {"supportedVersions": [SESSIONLESS], "capabilities": CAPABILITIES, "resultType": "complete", "ttlMs": 1}
    return FakeServer({"server/discover": about, "tools/list": {"tools": [], "resultType": "complete"}})


class ServerPool(FakePool):
    """Hands out what `make` makes."""

    def __init__(self, make: Callable[[], FakeServer] = legacy_server) -> None:
        super().__init__()
        self.make = make

    def _connection(self) -> FakeServer:
        return self.make()

    @property
    def servers(self) -> list[Any]:
        """Every process that was handed out."""
        return [lease.connection for lease in self.leases]

    @property
    def living(self) -> list[Any]:
        """Those that were not given back."""
        return [lease.connection for lease in self.leases if not lease.released]


def params_of(message: dict[str, Any]) -> str:
    return json.dumps(message.get("params"))
