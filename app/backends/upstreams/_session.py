"""UpstreamSession: one upstream session, which a session uses like a process of its own: lines in, lines out.

Calls are posted at once, and answered in any order. Other messages (notifications, answers to questions) are posted one
after the other, and what is sent after one waits until the server has accepted it: a process reads them in that order,
too.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from app.backends.upstreams._api import ApiAccess, ApiWire
from app.backends.upstreams._calls import Call, Calls
from app.backends.upstreams._channel import Channel, NotReached
from app.backends.upstreams._http_sse import OldStream
from app.backends.upstreams._streamable import Streamable
from app.backends.upstreams._wire import OlderServer, SessionLost, Side, Wire
from app.backends.upstreams.requests import RoutingHeaders
from app.concurrency.loop_share import charged
from app.domain import BackendSpec
from app.errors import BackendBusy, BackendExited, GatewayError
from app.processes.connection import BackendListener, CallListener
from app.processes.endings import Exit
from app.protocol.jsonrpc import ABSENT, Message, Notification, Request, Response, members_of, parse_backend, string_of

MAX_CALLS = 64  # that are posted at once; later ones wait their turn
MAX_UNSENT_BYTES = 4 << 20  # of messages that wait to be sent
CANCEL_GRACE_S = 5.0  # for a server to end the stream of a call that it has been told is cancelled
RETRY_S = (0.5, 1.0)  # for a message that has not reached the server at all

log = logging.getLogger(__name__)


class Owner(Protocol):
    """Who has made the session: it is told what happens to it."""

    def asked(self, session: "UpstreamSession", result: str, seconds: float) -> None:
        """A call is over. `result`: `answered`, `cancelled`, or the reason of its error."""

    def dropped(self, reason: str) -> None:
        """A message could not be delivered."""

    def works(self, session: "UpstreamSession") -> None:
        """The server has answered `initialize`."""

    def failed(self, session: "UpstreamSession", error: GatewayError) -> None:
        """`initialize` has failed."""

    def released(self, session: "UpstreamSession", reason: str) -> None:
        """Nobody uses it any more: `close` is to be called."""


class UpstreamSession:
    """Fulfils ProcessConnection, and is its own lease. Its tasks end with `close`, which its owner calls after
    `release`. `access`: it is with an HTTP API, not with a server of MCP."""

    was_warm = False

    def __init__(
        self,
        spec: BackendSpec,
        channel: Channel,
        routing: RoutingHeaders,
        owner: Owner,
        limit_bytes: int,
        access: ApiAccess | None = None,
    ) -> None:
        self.spec, self.id = spec, f"u-{secrets.token_hex(6)}"
        self.opened_at = time.monotonic()
        self._channel, self._flow, self._routing, self._owner = channel, channel.flow, routing, owner
        self._access = access
        self._calls = Calls(self._deliver, self._saw_answer, owner.dropped, channel.flow)
        self._side = Side(self._calls, self._run, limit_bytes, random.random)
        self._wire: Wire = self._first_wire()
        self._turns = asyncio.Semaphore(min(MAX_CALLS, spec.calls_per_session))
        self._tasks = set[asyncio.Task[None]]()
        self._last_post: asyncio.Task[None] | None = None
        self._unsent = dict[asyncio.Task[None], int]()  # bytes of messages that wait to be sent
        self._listener: CallListener | None = None
        self._exit: Exit | None = None
        self._is_released = self.has_worked = False

    def __repr__(self) -> str:
        return f"<UpstreamSession {self.id} [{len(self._calls)} calls, {len(self._tasks)} tasks]>"

    def _first_wire(self) -> Wire:
        if self._access is not None:
            return ApiWire(self._channel, self._side, self._access)
        if self.spec.transport == "sse":
            return OldStream(self._channel, self._side)
        return Streamable(self._channel, self._side, self._routing)

    # --- ConnectionLease

    @property
    def connection(self) -> "UpstreamSession":
        return self

    def handshake_succeeded(self) -> None:
        if not self.has_worked:
            self.has_worked = True
            self._owner.works(self)

    def release(self, reason: str) -> None:
        """As ConnectionLease.release."""
        if self._is_released:
            return
        self._is_released, self._listener = True, None
        self._calls.close()
        self._cancel_tasks()
        self._owner.released(self, reason)

    async def close(self) -> None:
        """Ends the session at the server too, and closes every connection. After `release`."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        try:
            if self._exit is None:
                await self._wire.goodbye()
        finally:
            await self._channel.aclose()

    # --- BackendConnection

    def attach(self, listener: BackendListener) -> None:
        assert isinstance(listener, CallListener)
        self._listener = listener
        if self._exit is not None:
            asyncio.get_running_loop().call_soon(self._tell_end, self._exit)

    def send(self, line: bytes) -> None:
        """As BackendConnection.send. Nothing is written at once: what cannot be sent fails later."""
        if self._exit is not None:
            raise self._exit.error("the session with the server has ended")
        if self._is_released:
            raise BackendExited
        if self._unsent and sum(self._unsent.values()) + len(line) > MAX_UNSENT_BYTES:
            raise BackendBusy("the server does not accept what it is sent")
        message = parse_backend(line)
        if isinstance(message, Request):
            call = self._calls.begin(message)
            work = self._call(call, message, line, self._last_post)
            call.runs_in(self._run(work, "call an upstream", len(line)))
        elif isinstance(message, Notification) and message.method == "notifications/cancelled":
            self._cancel(message, line)
        else:
            self._post_in_order(message, line)

    def pause_reading(self) -> None:
        self._flow.pause()

    def resume_reading(self) -> None:
        self._flow.resume()

    def asked_for(self, size: int) -> None:
        self._flow.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        """What is no message is not passed on."""

    def answering(self) -> bytes | None:
        return None

    # --- calls

    async def _call(self, call: Call, request: Request, line: bytes, before: asyncio.Task[None] | None) -> None:
        started, result = time.monotonic(), "cancelled"
        try:
            await _over(before)
            async with self._turns:
                self._sends()
                if call.is_open:
                    await self._ask(call, request, line)
            result = "answered"
        except GatewayError as error:
            result = error.reason
            self._failed(call, error)
        finally:
            self._owner.asked(self, result, time.monotonic() - started)

    async def _ask(self, call: Call, request: Request, line: bytes) -> None:
        try:
            await self._wire.call(call, request, line)
        except OlderServer as older:
            if self.spec.transport != "auto":
                raise older.failure from None
            log.info("A server does not speak Streamable HTTP: HTTP+SSE is tried", extra=self._fields)
            self._wire = stream = OldStream(self._channel, self._side)
            try:
                await stream.call(call, request, line)
            except GatewayError:
                if stream.is_offered:
                    raise
                raise older.failure from None

    def _failed(self, call: Call, error: GatewayError) -> None:
        if call.method == "initialize" and not self.has_worked:
            self._owner.failed(self, error)
        self._calls.fail(call, error, self._tell_failure)

    def _tell_failure(self, call: bytes, error: GatewayError) -> None:
        if self._listener is not None:
            self._listener.backend_failed(call, error)

    def _cancel(self, message: Notification, line: bytes) -> None:
        """In 2026-07-28 the end of the response cancels. Before it is told, and has a moment to end its stream."""
        call = self._calls.give_up(bytes((message.params or {}).get("requestId", ABSENT)))
        if call is None or call.task is None:
            return
        if call.is_sessionless or self._wire.cancels_at_once:
            call.task.cancel()
        else:
            self._post_in_order(message, line)
            asyncio.get_running_loop().call_later(CANCEL_GRACE_S, call.task.cancel)

    # --- other messages

    def _post_in_order(self, message: Message, line: bytes) -> None:
        self._last_post = self._run(self._post(message, line, self._last_post), "post to an upstream", len(line))

    async def _post(self, message: Message, line: bytes, before: asyncio.Task[None] | None) -> None:
        try:
            await _over(before)
            await self._post_soon(message, line)
        except GatewayError as error:
            self._owner.dropped("upstream_refused_it")
            log.warning("A server did not accept a message: %s", error, extra=self._fields)
        if isinstance(message, Notification) and message.method == "notifications/initialized":
            self._run(self._wire.listen(), "listen to an upstream")

    async def _post_soon(self, message: Message, line: bytes) -> None:
        """Once more if it has not reached the server."""
        for wait_s in RETRY_S:
            try:
                await self._wire.post(message, line)
                return
            except NotReached:
                await asyncio.sleep(wait_s)
        await self._wire.post(message, line)

    # --- what comes

    def _deliver(self, line: bytes) -> None:
        if self._listener is not None:
            self._listener.backend_sent(line)

    def _saw_answer(self, call: Call, response: Response) -> None:
        if call.method == "tools/list":
            self._routing.saw(response)
        if call.method == "initialize" and response.member == "result":
            self._wire.negotiated(string_of(members_of(response.value).get("protocolVersion", ABSENT)))

    # --- tasks and the end

    def _run(self, work: Coroutine[Any, Any, None], name: str, waiting_bytes: int = 0) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guarded(work), name=name)
        self._tasks.add(task)
        if waiting_bytes:
            self._unsent[task] = waiting_bytes
        task.add_done_callback(lambda _: self._has_run(task, work))
        return task

    def _has_run(self, task: asyncio.Task[None], work: Coroutine[Any, Any, None]) -> None:
        self._tasks.discard(task)
        self._unsent.pop(task, None)
        work.close()  # it was never begun, if the task was cancelled at once

    def _sends(self) -> None:
        """The running task's message does not wait any more."""
        task = asyncio.current_task()
        assert task is not None
        self._unsent.pop(task, None)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await charged(work, self._flow.share.took)
        except SessionLost as lost:
            self._end(str(lost))
        except Exception:
            log.exception("Could not go on with an upstream session; it ends", extra=self._fields)
            self._end("an error of the gateway")

    def _end(self, description: str) -> None:
        """The session is over, for a reason that is not the gateway's."""
        if self._exit is not None or self._is_released:
            return
        self._exit = Exit("exited", description)
        log.info("An upstream session has ended: %s", description, extra=self._fields)
        self._cancel_tasks()
        self._tell_end(self._exit)

    def _tell_end(self, exit: Exit) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.backend_exited(exit)

    def _cancel_tasks(self) -> None:
        running = asyncio.current_task()
        for task in self._tasks:
            if task is not running:
                task.cancel()

    @property
    def _fields(self) -> dict[str, str]:
        return {"tenant": self.spec.tenant, "backend": self.spec.name, "upstream": self.id}


async def _over(before: asyncio.Task[None] | None) -> None:
    """Waits for an earlier message to be accepted."""
    if before is not None and not before.done():
        await asyncio.wait([before])
