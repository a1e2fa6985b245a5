"""What is queued for a client is sent in turns with what else the loop has to do."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from app.metrics import Metrics
from app.transports.event_stream import EVENTS_A_TURN, StreamOptions, send_events

COUNT = 20 * EVENTS_A_TURN


class Queued:
    """A source whose messages are all there."""

    event_id, retry_ms = None, None

    def __init__(self) -> None:
        self.left = COUNT

    async def next(self) -> bytes | None:
        self.left -= 1
        return b"{}" if self.left >= 0 else None


async def test_the_loop_runs_for_others_between_messages_that_are_there() -> None:
    sent, turns, most = list[bytes](), 0, 0

    async def send(message: dict[str, Any]) -> None:
        if b"data: {}" in message.get("body", b""):
            sent.append(message["body"])

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)
        raise AssertionError

    async def others() -> None:
        nonlocal turns, most
        while True:
            before = len(sent)
            await asyncio.sleep(0)
            most, turns = max(most, len(sent) - before), turns + 1

    request: Any = SimpleNamespace(
        scope={"type": "http", "method": "GET"},
        receive=receive,
        send=send,
        while_credential_lasts=lambda on_expired: nullcontext(),
    )
    source: Any = Queued()
    busy = asyncio.create_task(others())
    options = StreamOptions(Metrics("test").streams.labels("post"), 3600.0)
    await send_events(request, source, options, lambda: None, lambda: None)
    busy.cancel()
    assert len(sent) == COUNT
    assert most <= EVENTS_A_TURN
