"""ToolsetMember: a session's process of one member of a toolset. It starts with the first call for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum

import anyio
import anyio.abc

from app.backends.connections._bridged import BridgedConnection
from app.backends.connections._captured import Capture, recaptured
from app.backends.connections.era import Era, probe_s
from app.backends.connections.source import ConnectionLease, Keeper, MemberSide, Parkable, Probed
from app.errors import (
    BackendBusy,
    BackendError,
    BackendExited,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
    InvalidMessage,
    InvalidResponse,
)
from app.processes.connection import BackendConnection
from app.processes.endings import Exit
from app.protocol.eras.sessionless_envelope import refuses_handshake
from app.protocol.exchange import PING
from app.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    Request,
    Response,
    dump_request,
    dump_response,
    error_response,
    is_without_id,
    parse_backend,
    result_response,
    several,
)
from app.protocol.toolset.greeting import hello_for, speaks_sessionless
from app.protocol.toolset.offer import Offer
from app.protocol.toolset.pages import Pages

MAX_WAITING = 256  # calls while the process starts
MAX_WAITING_BYTES = 4 << 20
_HELLO_ID = b'"toolset-hello"'
_PROBE_ID = b'"toolset-probe"'
_LIST_ID = b'"toolset-list-%d"'

log = logging.getLogger(__name__)


class State(Enum):
    """Whether there is a process."""

    IDLE = "idle"
    STARTING = "starting"
    OPEN = "open"
    ENDED = "ended"  # the session has ended


class ToolsetMember:
    """Fulfils BridgedSession toward its own connection. `lease` waits for a process; what it starts runs in `tasks`,
    and ends with `release`. Without `tasks` it is only asked what it offers (`inquire`)."""

    def __init__(
        self,
        index: int,
        side: MemberSide,
        lease: Callable[[], Awaitable[ConnectionLease]],
        tasks: anyio.abc.TaskGroup | None,
        within_s: float,
        era: Era,
    ) -> None:
        self._index, self._side, self._ask, self._tasks = index, side, lease, tasks
        self._within_s, self._era = within_s, era
        self.state = State.IDLE
        self._lease: ConnectionLease | None = None
        self._connection: BackendConnection | None = None
        self._waiting: dict[bytes, bytes] = {}  # calls, by id
        self._answers: dict[bytes, asyncio.Future[Response]] = {}  # to requests of our own
        self._scope = anyio.CancelScope()
        self._is_paused = self._has_guessed = False
        self._last_list = self._attempt = 0  # attempt to start the process: those before it are given up
        self._capture: Capture | None = None
        self._name = ""  # for the capture

    @property
    def process(self) -> str | None:
        """The id of its process."""
        return None if self._lease is None or self.state is not State.OPEN else self._lease.connection.id or None

    # --- from the session

    def send(self, line: bytes, call: bytes | None) -> None:
        """Passes a line on; a call starts the process, and waits for it. Other lines mean nothing without one.

        Raises:
            BackendBusy: too many calls wait, or too much waits to be read.
            BackendExited: the process is gone, or the session.
        """
        if self.state is State.OPEN:
            assert self._connection is not None
            self._connection.send(line)
        elif call is not None:
            self._wait(line, call)

    def capture(self, capture: Capture | None, name: str) -> None:
        """`capture` is told what passes under this name, from the end of a handshake on; None: nobody any more."""
        self._capture, self._name = capture, name
        if self._connection is not None and self.state is State.OPEN:
            self._connection = recaptured(self._connection, self, capture, name)

    def withdraw(self, call: bytes) -> bool:
        """Whether this call had not been sent, and never will be."""
        return self._waiting.pop(call, None) is not None

    def _wait(self, line: bytes, call: bytes) -> None:
        if self.state is State.ENDED or self._tasks is None:
            raise BackendExited
        size = sum(map(len, self._waiting.values()))
        if len(self._waiting) >= MAX_WAITING or (size and size + len(line) > MAX_WAITING_BYTES):
            raise BackendBusy("the server is being started, and too many calls wait for it")
        self._waiting[call] = line
        if self.state is State.IDLE:
            self.state = State.STARTING
            self._tasks.start_soon(self._start, name="start a member of a toolset")

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._connection is not None:
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._connection is not None:
            self._connection.resume_reading()

    def asked_for(self, size: int) -> None:
        if self._connection is not None:
            self._connection.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        if self._connection is not None:
            self._connection.heard_noise(line)

    def answering(self) -> bytes | None:
        return None if self._connection is None else self._connection.answering()

    @property
    def has_process(self) -> bool:
        """As Parkable.has_process."""
        lease: object = self._lease
        return self.state is State.OPEN and (not isinstance(lease, Parkable) or lease.has_process)

    def park(self, keeper: Keeper) -> bool:
        """As Parkable.park. The catalogue knows its lists: those of the next process are no news."""
        lease: object = self._lease
        return self.state is State.OPEN and isinstance(lease, Parkable) and lease.park(keeper, with_news=False)

    def release(self, reason: str) -> None:
        """Gives the process back. Idempotent."""
        self.state = State.ENDED
        self._waiting.clear()
        self._scope.cancel()
        self._let_go(reason)

    def lose(self, error: GatewayError, reason: str) -> None:
        """Ends the process for a reason of the gateway: the next call gets another one, if it may."""
        if self.state in (State.STARTING, State.OPEN):
            self._scope.cancel()
            self._end(error, None, reason)

    # --- starting

    async def _start(self) -> None:
        attempt = self._attempt = self._attempt + 1
        with anyio.CancelScope() as self._scope:
            try:
                await self._open()
                return
            except TimeoutError:
                error: GatewayError = BackendTimeout(f"the server did not start within {self._within_s:.0f} s")
                if self._lease is None:
                    words = f"there was no room for a process of this server within {self._within_s:.0f} s"
                    error = BackendBusy(f"{words}: the limits of the tenant or of the backend are reached")
            except GatewayError as problem:
                error = problem
            except Exception:
                log.exception("Could not start a member of a toolset")
                error = BackendUnavailable()
            if attempt == self._attempt:
                self._end(error, None, "not_initialized")

    async def _open(self) -> Response:
        """The answer to `initialize`, of another process if the question before it may be why the first one fails.
        Raises GatewayError, TimeoutError: there is no process, or its handshake fails."""
        self._has_guessed = False
        try:
            return await self._open_one()
        except (GatewayError, TimeoutError):
            if not self._has_guessed or self.state is not State.STARTING:
                raise
        self._let_go("not_initialized")
        return await self._open_one()

    async def _open_one(self) -> Response:
        attempt = self._attempt
        with anyio.fail_after(self._within_s):
            lease = await self._ask()
            if self.state is not State.STARTING or attempt != self._attempt:  # it was given up while it waited
                lease.release("session_closed")
                raise BackendExited
            self._lease, self._connection = lease, lease.connection
            answer = await self._discover(lease) or await self._shake_hands(lease)
            self._opened(lease)
            return answer

    async def _shake_hands(self, lease: ConnectionLease) -> Response:
        self._connection = lease.connection
        lease.connection.attach(self)
        hello, for_sessionless = hello_for(_HELLO_ID, self._side.hello), speaks_sessionless(self._side.hello)
        answer = await self._answer_to(_HELLO_ID, hello)
        if answer.member == "error" and refuses_handshake(dump_response(answer.id, answer)):
            self._era.learn(is_sessionless=True)
            self._connection = BridgedConnection(lease.connection, self, for_sessionless=for_sessionless)
            answer = await self._answer_to(_HELLO_ID, hello)
        elif for_sessionless and answer.member == "result":
            self._era.learn(is_sessionless=False)
        if answer.member == "error":
            raise InvalidResponse("the server refused `initialize`")
        return answer

    async def _discover(self, lease: ConnectionLease) -> Response | None:
        """What the server says of itself if it speaks 2026-07-28 as the client does; None: one of them does not, or it
        does not say so in time, as it is slow to start, or never answers what it does not know."""
        known = self._era.is_sessionless
        if not speaks_sessionless(self._side.hello) or known is False or (known is None and self._has_guessed):
            return None
        if known is None:
            self._has_guessed = True
            if isinstance(lease, Probed):
                lease.probed()
        self._connection = connection = BridgedConnection(lease.connection, self, for_sessionless=True)
        with anyio.move_on_after(self._within_s if known else probe_s(self._within_s)):
            if (answer := await self._answer_to(_PROBE_ID, hello_for(_PROBE_ID, self._side.hello))).member == "result":
                self._era.learn(is_sessionless=True)
                return answer
        connection.end()
        return None

    def _opened(self, lease: ConnectionLease) -> None:
        connection = self._connection
        if self.state is not State.STARTING or connection is None:
            return
        self.state = State.OPEN
        if self._capture is not None:
            self._connection = connection = recaptured(connection, self, self._capture, self._name)
        lease.handshake_succeeded()
        if self._is_paused:
            connection.pause_reading()
        waiting, self._waiting = self._waiting, {}
        try:
            for line in self._side.opened(self._index):
                connection.send(line)
        except BackendError:
            pass  # `backend_exited` will be called, and deals with it
        for call, line in waiting.items():
            try:
                connection.send(line)
            except GatewayError as error:
                self._side.member_failed(call, error)

    async def _answer_to(self, request_id: bytes, line: bytes) -> Response:
        """Raises BackendError: the process is gone."""
        assert self._connection is not None
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        try:
            self._connection.send(line)
            return await answer
        finally:
            self._answers.pop(request_id, None)

    # --- its lists

    async def greeted(self) -> Offer:
        """Starts the process; the offer has no lists yet. Raises GatewayError, TimeoutError: as `_open`."""
        self.state = State.STARTING
        answer = await self._open()
        return Offer.begun(answer.value, is_sessionless=isinstance(self._connection, BridgedConnection))

    async def listed(self, method: str, offer: Offer) -> Offer:
        """The offer with this list as it is in this session; what cannot be read stays as it was. Raises: as `read`."""
        pages = Pages(method)
        await self.read(pages)
        return pages.list_in(offer).completed_by(offer)

    async def read(self, pages: Pages) -> None:
        """One list. Raises GatewayError: the process is gone, or there are too many entries."""
        goes_on = True
        while goes_on:
            if self.state is not State.OPEN:
                raise BackendExited
            self._last_list += 1
            request_id = _LIST_ID % self._last_list
            line = dump_request(request_id, pages.method, pages.params)
            goes_on = pages.take(await self._answer_to(request_id, line))

    # --- BackendListener

    def backend_sent(self, line: bytes) -> None:
        if self._answers and self._is_our_answer(line):
            return
        if self.state is State.OPEN and self._tasks is not None:
            self._side.member_sent(self._index, line)
        else:
            self._heard_alone(line)

    def _heard_alone(self, line: bytes) -> None:
        """There is no client to ask, or not yet: pings are answered, and other questions refused."""
        try:
            message = parse_backend(line)
        except InvalidMessage:
            for each in several(line):
                self.backend_sent(each)
            return
        if type(message) is not Request or self._connection is None:
            return
        refusal = error_response(message.id, METHOD_NOT_FOUND, "nobody can be asked before the handshake is over")
        with suppress(GatewayError):  # it does not read, or has ended: that is noticed elsewhere
            self._connection.send(result_response(message.id, {}) if message.method == PING else refusal)

    def _is_our_answer(self, line: bytes) -> bool:
        try:
            message = parse_backend(line)
        except InvalidMessage:
            return False
        if type(message) is not Response:
            return False
        answer = self._answers.get(message.id)
        if answer is None and self._tasks is None and self._last_list > 1 and is_without_id(message):
            answer = next(iter(self._answers.values()), None)  # one before may be about `notifications/initialized`
        if answer is None:
            return False
        if not answer.done():
            answer.set_result(message)
        return True

    def backend_asked(self, line: bytes, among: tuple[bytes, ...]) -> None:
        """A question of a server of 2026-07-28 (BridgedSession)."""
        if self.state is State.OPEN:
            self._side.member_sent(self._index, line, among)

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        answer = self._answers.get(call)
        if answer is not None and not answer.done():
            answer.set_exception(error)
        else:
            self._side.member_failed(call, error)

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self._side.member_sent_too_much(self._index, beginning, end)

    def backend_exited(self, exit: Exit) -> None:
        was_open = self.state is State.OPEN
        hint = None if was_open else "It ended before it answered `initialize`."
        error = exit.error(started=was_open, hint=hint)
        if self.state is State.OPEN:
            self._end(error, exit, "backend_exited")
        else:
            self._give_up_answers(error)

    # --- the end

    def _end(self, error: GatewayError, exit: Exit | None, reason: str) -> None:
        """The calls that waited fail with the others; the next one starts another process."""
        if self.state is State.ENDED:
            return
        self.state = State.IDLE
        self._waiting.clear()
        self._let_go(reason)
        self._side.member_lost(self._index, error, exit)

    def _let_go(self, reason: str) -> None:
        lease, self._lease = self._lease, None
        connection, self._connection = self._connection, None
        self._give_up_answers(BackendExited())
        if isinstance(connection, BridgedConnection):
            connection.end()
        if lease is not None:
            lease.release(reason)

    def _give_up_answers(self, error: GatewayError) -> None:
        """Nobody will answer our own requests. They are not cancelled: that would cancel the task group that waits."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # who waits may be gone: that is no error
