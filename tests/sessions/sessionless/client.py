"""A 2026-07-28 client over SessionlessRequests, without HTTP: one object per request."""

import itertools
import json
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import StateRefused
from app.protocol.commands import Failed
from app.protocol.eras.sessionless_envelope import (
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    SESSIONLESS,
    VERSION_KEY,
    Envelope,
    RoutingHeaders,
    validate,
)
from app.protocol.jsonrpc import Request, parse_client
from app.sessions.sessionless.call import SessionlessCall
from app.sessions.sessionless.pooled_sessions import Caller
from app.sessions.sessionless.requests import SessionlessRequests
from app.sessions.streams.streams import Reply
from tests.sessions.sessionless.servers import FakeServer, ServerPool

ELICITS: dict[str, Any] = {"elicitation": {}}
ACCEPT = {"action": "accept", "content": {"name": "Ada"}}
TEXT = {"content": [{"type": "text", "text": "hi"}]}
_ids = itertools.count(1)


class Sent:
    """One request of a client, and what comes of it."""

    def __init__(self, message: Request, reply: Reply, call: SessionlessCall | None) -> None:
        self.message, self.reply, self.maybe_call = message, reply, call

    @property
    def call(self) -> SessionlessCall:
        assert self.maybe_call is not None
        return self.maybe_call

    def leave(self) -> None:
        """Closes its connection."""
        self.call.leave(self.reply)

    async def outcome(self) -> Any:
        """The result or the error as JSON; what the gateway itself refuses is raised."""
        with anyio.fail_after(20):
            await self.reply.outcome
        assert self.reply.stream is None, "it is a stream"
        outcome = self.reply.outcomes[0]
        if isinstance(outcome, Failed):
            raise outcome.error
        answer = json.loads(outcome.payload())
        assert answer["id"] == json.loads(self.message.id)
        return answer.get("result", answer.get("error"))

    async def stream(self) -> list[Any]:
        """Every message of the stream, until its end."""
        with anyio.fail_after(20):
            await self.reply.outcome
            assert self.reply.stream is not None
            messages = []
            while (item := await self.reply.stream.next()) is not None:
                assert isinstance(item, bytes)
                messages.append(json.loads(item))
        return messages


class Client:
    """Sends requests as one principal with one set of capabilities."""

    def __init__(
        self,
        sessionless: SessionlessRequests,
        principal: Principal,
        capabilities: dict[str, Any] | None = None,
        log_level: str | None = None,
    ) -> None:
        self.sessionless, self.capabilities, self.log_level = sessionless, capabilities or {}, log_level
        self.caller = Caller(principal, "acme", "echo")

    def message(self, method: str, *, meta: dict[str, Any] | None = None, **params: Any) -> tuple[Request, Envelope]:
        level = {LOG_LEVEL_KEY: self.log_level} if self.log_level else {}
        envelope = {VERSION_KEY: SESSIONLESS, CAPABILITIES_KEY: self.capabilities, **level, **(meta or {})}
        body = {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": {**params, "_meta": envelope}}
        message = parse_client(json.dumps(body).encode())
        assert isinstance(message, Request)
        name = next((str(params[key]) for key in ("name", "uri", "taskId") if key in params), None)
        found = validate(message, RoutingHeaders(SESSIONLESS, method, name))
        assert isinstance(found, Envelope), found
        return message, found

    def _reply(self, calls: list[SessionlessCall]) -> Reply:
        return Reply(1, may_stream=True, make_stream=lambda: calls[-1].session.streams.new())  # noqa: PLW0108

    async def send(self, method: str = "tools/call", **params: Any) -> Sent:
        calls: list[SessionlessCall] = []
        message, envelope = self.message(method, **params)
        reply = self._reply(calls)
        calls.append(await self.sessionless.call(self.caller, message, envelope, reply))
        return Sent(message, reply, calls[-1])

    async def go_on(self, result: dict[str, Any], answers: Any, method: str = "tools/call", **params: Any) -> Sent:
        """The retry after an `input_required` result."""
        calls: list[SessionlessCall] = []
        message, envelope = self.message(method, **params, inputResponses=answers, requestState=result["requestState"])
        reply = self._reply(calls)
        calls.append(await self.sessionless.resume(self.caller, message, envelope, reply))
        return Sent(message, reply, calls[-1])


async def start(client: Client, pool: ServerPool, **params: Any) -> tuple[Sent, FakeServer]:
    """A call, and the process that has it."""
    sent = await client.send(**{"name": "x", **params})
    server = next(server for server in reversed(pool.servers) if server.sent[-1].get("method") == "tools/call")
    return sent, server


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


async def suspend(
    client: Client, pool: ServerPool, *questions: str, **params: Any
) -> tuple[dict[str, Any], FakeServer]:
    """A call that is suspended with these questions."""
    sent, server = await start(client, pool, **params)
    for question in questions or ("q1",):
        server.ask(question, message=question)
    return await sent.outcome(), server


def keys(result: dict[str, Any]) -> dict[str, str]:
    """The key of each question, by its message."""
    return {asked["params"]["message"]: key for key, asked in result["inputRequests"].items()}


async def finish(client: Client, server: FakeServer, result: dict[str, Any], **answers: Any) -> None:
    """Answers every question and lets the process answer the call."""
    given = {key: answers.get(message, ACCEPT) for message, key in keys(result).items()}
    sent = await client.go_on(result, given, name="x")
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[-1]))
    assert (await sent.outcome())["resultType"] == "complete"


async def refused(client: Client, result: dict[str, Any], reason: str, **params: Any) -> None:
    """The retry with the result's state must be refused so."""
    with pytest.raises(StateRefused) as error:
        await client.go_on(result, {}, **{"name": "x", **params})
    assert error.value.reason == reason


def held(sessionless: SessionlessRequests, principal: Principal) -> list[object]:
    """The principal's pooled sessions that a call has for itself."""
    pooled_sessions = sessionless.pooled_sessions.of((principal.identity, "acme", "echo"))
    return [pooled for pooled in pooled_sessions if pooled.held_by is not None]
