"""LateHeads: tells the forwarding node that its request is being worked on, before the answer has a head."""

import asyncio
import time
from typing import Any

from starlette.types import Message, Send

from app.cluster.peers.late_head import BREATH, LATE_HEAD, LATE_S, encode_late_head

_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(LATE_HEAD, b"1"), (b"content-type", b"application/octet-stream"), (b"cache-control", b"no-store")],
}


class LateHeads:
    """Watches the answers that have not begun: one timer for all, and a task for each that is late."""

    def __init__(self, *, late_s: float = LATE_S, keepalive_s: float = 15.0) -> None:
        self._late_s, self._keepalive_s = min(late_s, keepalive_s), keepalive_s
        self._waiting = dict[LateSend, float]()  # since when; the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, send: Send) -> "LateSend":
        """The `send` to use from now on; call its `done` at the end of the answer."""
        late = LateSend(send, self._waiting, self._keepalive_s)
        self._waiting[late] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._late_s, self._look)
        return late

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        for late, since in list(self._waiting.items()):
            if now - since < self._late_s:
                break
            del self._waiting[late]
            late.breathe(loop)
        self._timer = None
        if self._waiting:
            oldest = next(iter(self._waiting.values()))
            self._timer = loop.call_later(max(0.01, oldest + self._late_s - now), self._look)


class LateSend:
    """The `send` of one answer. Once that is late, a substitute head is sent and the real one goes into the body."""

    __slots__ = ("_breathing", "_has_begun", "_head", "_keepalive_s", "_send", "_waiting")

    def __init__(self, send: Send, waiting: "dict[LateSend, float]", keepalive_s: float) -> None:
        self._send, self._waiting, self._keepalive_s = send, waiting, keepalive_s
        self._breathing: asyncio.Task[None] | None = None
        self._has_begun = False  # with the substitute head
        self._head: bytes | None = None  # the real one, until it is sent with the first part of the body

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._waiting.pop(self, None)
            if self._breathing is not None:
                await self._stop()
            if self._has_begun:  # else the task was cancelled before its first step
                self._head = encode_late_head(message["status"], message.get("headers", ()))
                return
        elif self._head is not None:
            message = {**message, "body": self._head + message.get("body", b"")}
            self._head = None
        await self._send(message)

    async def done(self) -> None:
        self._waiting.pop(self, None)
        if self._breathing is not None:
            await self._stop()

    def breathe(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sends the substitute head, and then a byte every `keepalive_s`."""
        self._breathing = loop.create_task(self._breathe())

    async def _breathe(self) -> None:
        await self._send(_START)
        self._has_begun = True
        breath: Any = {"type": "http.response.body", "body": BREATH, "more_body": True}
        while True:
            await self._send(breath)
            await asyncio.sleep(self._keepalive_s)

    async def _stop(self) -> None:
        assert self._breathing is not None
        self._breathing.cancel()
        await asyncio.wait([self._breathing])
