"""What is queued for a client is sent in turns with what else the loop has to do."""

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from app.concurrency import loop_share
from app.concurrency.loop_share import UNLIMITED
from app.http.transports.event_stream import EVENTS_A_TURN, StreamOptions, send_events
from app.http.transports.request import PIECE_BYTES
from app.protocol.commands import Answer, Call, LargeResult
from app.protocol.jsonrpc import Response
from app.telemetry.metrics import Metrics
from tests.concurrency.test_loop_share import Shares

COUNT = 20 * EVENTS_A_TURN


class Queued:
    """A source whose messages are all there."""

    event_id, retry_ms = None, None

    def __init__(self) -> None:
        self.left = COUNT

    async def next(self) -> bytes | None:
        self.left -= 1
        return b"{}" if self.left >= 0 else None


class Large:
    """A source of one large answer."""

    event_id, retry_ms = b"1", None

    def __init__(self) -> None:
        large = LargeResult(b'"%b"' % (b"x" * 10 * PIECE_BYTES))
        call = Call(b"1", b"1", "tools/call", None, True, 0.0, 0.0)
        self.left: list[Answer] = [Answer(call, Response(b"1", "result", msgspec.Raw(large.json)), large)]

    async def next(self) -> Answer | None:
        return self.left.pop() if self.left else None


async def test_an_answer_in_pieces_has_no_comment_within() -> None:
    """Its client reads slowly: keep-alives are due meanwhile."""
    sent, due = list[bytes](), asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        body = message.get("body", b"")
        sent.append(body)
        if len(body) == PIECE_BYTES:
            due.clear()
            await due.wait()
        elif len(sent) > 2:  # a keep-alive, or the rest
            due.set()

    async with asyncio.timeout(30):
        await sending(Large(), send, keepalive_s=0.001)
    text = b"".join(sent)
    event = text[text.index(b"event:") :]
    assert event.startswith(b"event: message\nid: 1\ndata: {")
    assert b":" not in event[event.index(b"result") + 9 : event.index(b"\n\n")]


def sent_to(bodies: list[bytes], shares: Any = UNLIMITED) -> Coroutine[Any, Any, None]:
    """Sends all messages of such a source."""

    async def send(message: dict[str, Any]) -> None:
        if b"data: {}" in message.get("body", b""):
            bodies.append(message["body"])

    return sending(Queued(), send, shares)


def sending(source: Any, send: Any, shares: Any = UNLIMITED, keepalive_s: float = 3600.0) -> Coroutine[Any, Any, None]:
    """Sends all messages of this source."""

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)
        raise AssertionError

    request: Any = SimpleNamespace(
        scope={"type": "http", "method": "GET"},
        receive=receive,
        send=send,
        while_credential_lasts=lambda on_expired: nullcontext(),
        shares=shares,
        tenant="acme",
    )
    options = StreamOptions(Metrics("test").streams.labels("post"), keepalive_s)
    return send_events(request, source, options, lambda: None, lambda: None)


async def test_the_loop_runs_for_others_between_messages_that_are_there() -> None:
    sent, most = list[bytes](), 0

    async def others() -> None:
        nonlocal most
        while True:
            before = len(sent)
            await asyncio.sleep(0)
            most = max(most, len(sent) - before)

    busy = asyncio.create_task(others())
    await sent_to(sent)
    busy.cancel()
    assert len(sent) == COUNT
    assert most <= EVENTS_A_TURN


async def test_what_a_stream_costs_is_charged_and_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_share, "PIECE_S", 0.0)
    sent, shares = list[bytes](), Shares()
    shares.over = True
    async with asyncio.timeout(30):
        sending = asyncio.create_task(sent_to(sent, shares))
        while not (shares.turns or sending.done()):
            await asyncio.sleep(0)
        assert {tenant for tenant, _ in shares.charges} == {"acme"}
        assert len(sent) == EVENTS_A_TURN
        shares.gate.set()
        await sending
    assert len(sent) == COUNT
