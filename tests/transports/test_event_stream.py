"""What is queued for a client is sent in turns with what else the loop has to do."""

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from app.metrics import Metrics
from app.processes.output import loop_share
from app.processes.output.loop_share import UNLIMITED
from app.transports.event_stream import EVENTS_A_TURN, StreamOptions, send_events
from tests.processes.output.test_loop_share import Shares

COUNT = 20 * EVENTS_A_TURN


class Queued:
    """A source whose messages are all there."""

    event_id, retry_ms = None, None

    def __init__(self) -> None:
        self.left = COUNT

    async def next(self) -> bytes | None:
        self.left -= 1
        return b"{}" if self.left >= 0 else None


def sent_to(bodies: list[bytes], shares: Any = UNLIMITED) -> Coroutine[Any, Any, None]:
    """Sends all messages of such a source."""

    async def send(message: dict[str, Any]) -> None:
        if b"data: {}" in message.get("body", b""):
            bodies.append(message["body"])

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
    source: Any = Queued()
    options = StreamOptions(Metrics("test").streams.labels("post"), 3600.0)
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
