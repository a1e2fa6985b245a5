"""RespawningConnection: a session's connection that outlives its process (`recovery: respawn`).

It stands between the session and the connection to its present process. When that process dies, the calls in flight
fail and are never run again; later ones wait for the next process, with which it repeats the handshake first. An idle
one can be parked: it gives its process back, and the next message waits for another in the same way; as does one whose
process died while there is no place for another.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from enum import Enum

import anyio
import anyio.abc

from app.backends.connections.source import ConnectionLease, Keeper, NoProcess, Probed
from app.errors import (
    BackendBusy,
    BackendError,
    BackendExited,
    BackendUnavailable,
    GatewayError,
    InvalidMessage,
    InvalidResponse,
    is_refusal,
)
from app.processes.connection import BackendListener, CallListener
from app.processes.endings import Exit
from app.protocol.handshake_record import HandshakeRecord
from app.protocol.jsonrpc import ABSENT, Notification, Request, Response, parse_backend, several

MAX_WAITING = 1024  # requests while there is no process: as many as one session may have running
MAX_WAITING_BYTES = 4 << 20
MAX_TRIES = 2  # processes that die in the handshake; the pool waits longer after each, and so does the client
SPACING_S = 0.2  # between two starts for one session: calls that kill their process must not start many

log = logging.getLogger(__name__)

_NODE_GONE = Exit("killed", "its node is gone")
_REFUSED = Exit("exited", "its next process refused the handshake that the backend had accepted before")

Again = Callable[[], Awaitable[ConnectionLease]]


class ConnectionState(Enum):
    """Whether there is a process."""

    LIVE = "live"
    LOST = "lost"  # it is gone, or about to be; another one is being started
    PARKED = "parked"  # it was given back; another one is started for the next message
    WAKING = "waking"  # that message waits for it
    ENDED = "ended"


_RESTS = frozenset({ConnectionState.PARKED, ConnectionState.WAKING})


class RespawningConnection:
    """Fulfils ProcessConnection, and is its own lease. `again` leases the next process; `within_s` is for its
    handshake.

    The task that starts it runs in `tasks`, and ends with `release`. `may_wait`: it may be without a process until the
    next message, as nothing but an answer would reach it.
    """

    def __init__(
        self,
        lease: ConnectionLease,
        again: Again,
        tasks: anyio.abc.TaskGroup,
        within_s: float,
        *,
        may_wait: bool = True,
    ) -> None:
        self._lease, self._again, self._tasks, self._within_s, self._may_wait = lease, again, tasks, within_s, may_wait
        self.record = HandshakeRecord()
        self._state, self._is_paused = ConnectionState.LIVE, False
        self._listener: CallListener | None = None
        self._waiting: dict[bytes, bytes] = {}  # requests, by id
        self._greeted: asyncio.Future[Response | None] | None = None  # None: the new process died
        self._scope = anyio.CancelScope()
        self._started_at, self._woken_at, self._has_news = time.monotonic(), 0.0, True
        self._keeper: Keeper | None = None  # while it is parked
        self._is_lost = False  # its process has died, and there was no other since
        self._notified = 0  # notifications that have waited

    @classmethod
    def restored(
        cls,
        record: HandshakeRecord,
        again: Again,
        tasks: anyio.abc.TaskGroup,
        within_s: float,
        *,
        is_parked: bool = False,
        may_wait: bool = True,
    ) -> "RespawningConnection":
        """The connection of a session whose handshake was on another node; its process is being started, unless it was
        parked there: then it is here too."""
        connection = cls(NoProcess(), again, tasks, within_s, may_wait=may_wait)
        connection.record, connection._started_at, connection._is_lost = record, 0.0, not is_parked
        connection._state = ConnectionState.PARKED if is_parked else ConnectionState.LOST
        if not is_parked:
            tasks.start_soon(connection._respawn, _NODE_GONE, name="respawn a backend")
        return connection

    # --- ConnectionLease

    @property
    def connection(self) -> "RespawningConnection":
        return self

    @property
    def was_warm(self) -> bool:
        return self._lease.was_warm

    def probed(self) -> None:
        if isinstance(self._lease, Probed):
            self._lease.probed()

    def handshake_succeeded(self) -> None:
        self._lease.handshake_succeeded()

    def release(self, reason: str) -> None:
        self._state, self._listener = ConnectionState.ENDED, None
        self._scope.cancel()
        self._lease.release(reason)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.gone()

    # --- Parkable

    def park(self, keeper: Keeper, with_news: bool = True) -> bool:
        """As Parkable.park. Nothing else runs between the checks and the end of the lease."""
        # It was parked on another node, or there was no place for its next process.
        if self._state is ConnectionState.PARKED and self._keeper is None:
            self._keeper, self._has_news = keeper, with_news
            return True
        if self._state is not ConnectionState.LIVE or self._is_paused or not self.record.is_at_rest:
            return False
        if self._lease.connection.answering() is not None:
            return False
        self._state, self._keeper, self._has_news = ConnectionState.PARKED, keeper, with_news
        lease, self._lease = self._lease, NoProcess()
        lease.release("parked")
        return True

    @property
    def has_process(self) -> bool:
        return self._state is ConnectionState.LIVE

    def unsent(self) -> Collection[bytes]:
        return self._waiting.keys()

    # --- ProcessConnection

    @property
    def id(self) -> str:
        """Of the present process, or the last one; empty while it is parked."""
        return self._lease.connection.id

    def attach(self, listener: BackendListener) -> None:
        """As BackendConnection.attach. A second listener (a BridgedConnection) replaces the first."""
        assert isinstance(listener, CallListener)
        is_first = self._listener is None
        self._listener = listener
        if is_first:
            self._lease.connection.attach(self)

    def send(self, line: bytes) -> None:
        """As BackendConnection.send; requests wait while there is no process."""
        if self._state is not ConnectionState.LIVE:
            self._wait_for_process(line)
        elif self.record.sent(line):
            try:
                self._lease.connection.send(line)
            except BackendError as error:
                self.record.unsent(line)
                if not isinstance(error, BackendExited) or self.record.hello is None:
                    raise
                self._state = ConnectionState.LOST  # `backend_exited` will be called in a moment
                self._wait_for_process(line)

    def pause_reading(self) -> None:
        self._is_paused = True
        self._lease.connection.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._lease.connection.resume_reading()

    def asked_for(self, size: int) -> None:
        self._lease.connection.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        self._lease.connection.heard_noise(line)

    def answering(self) -> bytes | None:
        return self._lease.connection.answering()

    def _wait_for_process(self, line: bytes) -> None:
        """Requests wait, and can be cancelled. Other messages would mean nothing to the process after one that was
        lost; after one that was given back notifications mean what they did before."""
        message = parse_backend(line)
        if type(message) is Request:
            self._keep(message.id, line)
        elif type(message) is Notification and message.method == "notifications/cancelled":
            self._waiting.pop(bytes((message.params or {}).get("requestId", ABSENT)), None)
        elif type(message) is Notification and self._state in _RESTS:
            self._notified += 1
            self._keep(b"notification %d" % self._notified, line)

    def _keep(self, name: bytes, line: bytes) -> None:
        """Until there is a process; wakes a parked connection."""
        if self._state is ConnectionState.ENDED:
            raise BackendExited
        size = sum(map(len, self._waiting.values())) if self._waiting else 0
        if len(self._waiting) >= MAX_WAITING or (size and size + len(line) > MAX_WAITING_BYTES):
            raise BackendBusy("the backend is being started, and too many messages wait for it")
        self._waiting[name] = line
        if self._state is ConnectionState.PARKED:
            self._state, self._woken_at = ConnectionState.WAKING, time.monotonic()
            self._tasks.start_soon(self._wake, name="wake a session")

    # --- BackendListener

    def backend_sent(self, line: bytes) -> None:
        if self._greeted is not None and not self._greeted.done():
            answer = self._answer_to_hello(line)
            if answer is not None:
                self._greeted.set_result(answer)
                if answer.member == "result":
                    self._go_on()  # not in the task that waits: the process may die before it runs
                return
        try:
            is_for_session = self.record.received(line)
        except InvalidMessage:
            messages = several(line)
            for each in messages:
                self.backend_sent(each)
            is_for_session = not messages
        if is_for_session and self._listener is not None:
            self._listener.backend_sent(line)

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        if self._greeted is not None and not self._greeted.done() and call == self.record.hello_id:
            self._greeted.set_result(None)
        elif self._listener is not None:
            self._listener.backend_failed(call, error)

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self.record.received_too_much(beginning, end)
        if self._listener is not None:
            self._listener.backend_sent_too_much(beginning, end)

    def backend_exited(self, exit: Exit) -> None:
        """Three cases: 1. the new process died in its handshake: `_greet` deals with it; 2. there was no handshake yet:
        the session ends; 3. another process is started."""
        if self._greeted is not None:
            if not self._greeted.done():
                self._greeted.set_result(None)
        elif self.record.hello is None:
            self._end(exit)
        else:
            self._lose(exit)
            self._tasks.start_soon(self._respawn, exit, name="respawn a backend")

    def _answer_to_hello(self, line: bytes) -> Response | None:
        try:
            message = parse_backend(line)
        except InvalidMessage:
            return None
        return message if type(message) is Response and message.id == self.record.hello_id else None

    # --- another process

    def _lose(self, exit: Exit) -> None:
        self._state, self._is_lost = ConnectionState.LOST, True
        self._lease.release("backend_exited")
        calls, withdrawn = self.record.lose()
        error = exit.error()
        for line in withdrawn:
            self._tell(line)
        for call in calls:
            self.backend_failed(call, error)

    def _tell(self, line: bytes) -> None:
        if self._listener is not None:
            self._listener.backend_sent(line)

    def _end(self, exit: Exit) -> None:
        listener, self._listener = self._listener, None
        self._state = ConnectionState.ENDED
        if listener is not None:
            listener.backend_exited(exit)

    async def _respawn(self, exit: Exit) -> None:
        """Starts a process and repeats the handshake with it, or ends the session; but not if there is only no place
        for one: then it waits for the next message."""
        if self._state is ConnectionState.ENDED:
            return
        with anyio.CancelScope() as self._scope:
            try:
                for _ in range(MAX_TRIES):
                    if await self._greet():
                        return
            except (GatewayError, TimeoutError) as error:
                if isinstance(error, BackendBusy) and self._may_wait and self.record.is_at_rest:
                    self._stay_parked(error)
                    return
            except Exception:
                log.exception("Could not start another process for a session; the session ends")
            self._end(exit)

    async def _wake(self) -> None:
        """As `_respawn`, for messages that wait for it. Without a process they fail, and the connection stays parked:
        nothing is lost that was not lost before."""
        if self._state is not ConnectionState.WAKING:
            return
        with anyio.CancelScope() as self._scope:
            try:
                for _ in range(MAX_TRIES):
                    if await self._greet():
                        return
                self._stay_parked(BackendUnavailable("the session's process ended before it was initialized, twice"))
            except InvalidResponse:
                self._end(_REFUSED)
            except TimeoutError:
                words = f"the session's process was not initialized within {self._within_s:g} s"
                self._stay_parked(BackendUnavailable(words))
            except GatewayError as error:
                self._stay_parked(error)
            except Exception:
                log.exception("Could not start another process for a parked session; it stays parked")
                self._stay_parked(BackendUnavailable("the session's process could not be started"))

    def _stay_parked(self, error: GatewayError) -> None:
        if self._state is ConnectionState.ENDED:
            return
        self._state, self._lease, self._greeted = ConnectionState.PARKED, NoProcess(), None
        waiting, self._waiting = self._waiting, {}
        # None of them was sent: whatever the reason, they can be tried again.
        refusal = error if is_refusal(error) else _not_started(error)
        for call in waiting:
            self.backend_failed(call, refusal)
        if self._keeper is not None:
            self._keeper.not_woken(error)

    async def _greet(self) -> bool:
        """Leases a process, where the pool limits the wait, and repeats the handshake; False if it died meanwhile.
        Raises GatewayError: no process is available, or it refuses; TimeoutError: it does not answer.
        """
        await anyio.sleep(max(0.0, self._started_at + SPACING_S - time.monotonic()))
        self._started_at = time.monotonic()
        self._greeted = None
        self._lease = lease = await self._again()
        greeted = self._greeted = asyncio.get_running_loop().create_future()
        lease.connection.attach(self)
        assert self.record.hello is not None
        try:
            lease.connection.send(self.record.hello)
            with anyio.fail_after(self._within_s):
                answer = await greeted
        except BackendExited:
            answer = None
        except BaseException:
            lease.release("not_initialized")
            raise
        if answer is None:
            lease.release("backend_exited")
            return False
        if answer.member == "error":
            lease.release("not_initialized")
            raise InvalidResponse("the backend refused the handshake that it had accepted before")
        return True

    def _go_on(self) -> None:
        """The new process is ready."""
        self._greeted = None
        was_lost, self._is_lost, self._state = self._is_lost, False, ConnectionState.LIVE
        self._lease.handshake_succeeded()
        if self._is_paused:
            self._lease.connection.pause_reading()
        waiting, self._waiting = self._waiting, {}
        try:
            for line in self.record.replay():
                self._lease.connection.send(line)
        except BackendError:
            pass  # `backend_exited` will be called, and deals with it
        for call, line in waiting.items():
            try:
                self.send(line)
            except BackendError as error:
                self.backend_failed(call, error)
        if was_lost or self._has_news:
            for line in self.record.news(lost=was_lost):
                self._tell(line)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.woken(was_warm=self._lease.was_warm, waited_s=time.monotonic() - self._woken_at)


def _not_started(error: GatewayError) -> BackendUnavailable:
    return BackendUnavailable(f"the session's process could not be started: {error}", hint=error.hint or None)
