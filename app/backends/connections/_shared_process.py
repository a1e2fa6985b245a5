"""SharedProcess: one process of many sessions, and SharedConnection: the connection of each of them to it.

`protocol/shared/multiplex.py` decides what keeps the sessions apart; this carries it out. A session that does not read,
asks too much or fails is held up, refused or dropped alone; the process is still read.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import anyio

from app.backends.inventory import Lease
from app.domain import Principal
from app.errors import BackendError, BackendTimeout, GatewayError, InvalidResponse
from app.processes.connection import BackendListener, CallListener
from app.processes.endings import Exit
from app.processes.process import BackendProcess
from app.protocol.commands import NOISE, Dropped
from app.protocol.shared.cached_handshake import INITIALIZED
from app.protocol.shared.multiplex import Multiplex
from app.protocol.shared.shared_call import FailCall, Out, ToAll, ToMember, ToProcess
from app.telemetry.metrics import Metrics

FAN_OUT_S = 0.05  # between two notifications of the same change to all sessions: one process cannot flood many
JOINED_WITHIN_S = 1.0  # those who have waited for a new process join it; then it is known that nobody does

log = logging.getLogger(__name__)


class SharedProcess:
    """Listens to the process. Made while the pool starts it (`greet`); its lease owns it afterwards (`adopt`)."""

    def __init__(self, process: BackendProcess, metrics: Metrics) -> None:
        self.id = process.id
        self.exit: Exit | None = None
        self._on_gone: Callable[[SharedProcess], None] = lambda process: None
        self._process, self._metrics = process, metrics
        self._lease: Lease | None = None
        self._multiplex = Multiplex(broadcast=process.spec.broadcast)
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._for_all: dict[bytes, ToAll] = {}
        self.empty_since = time.monotonic()

    # --- its life

    async def greet(self, within_s: float) -> None:
        """Initializes the process for all sessions to come.

        Raises:
            BackendError: it died, did not answer, or refused.
        """
        self._process.attach(self)
        self._process.send(self._multiplex.hello())
        try:
            with anyio.fail_after(within_s):
                await self._greeted
        except TimeoutError:
            raise BackendTimeout(f"the backend did not answer `initialize` within {within_s:.0f} s") from None
        greeting = self._multiplex.greeting
        if greeting is not None and not greeting.is_sessionless:
            self._process.send(INITIALIZED)

    def adopt(self, lease: Lease, on_gone: Callable[["SharedProcess"], None]) -> None:
        """Takes the lease of the process, given back by `release`; `on_gone` is called when the process ends."""
        self._lease, self._on_gone, self.empty_since = lease, on_gone, time.monotonic()
        lease.handshake_succeeded()

    @property
    def may_be_joined(self) -> bool:
        """Whether it serves new sessions: it lives, and is not to end; see `Lease.is_current`."""
        return self.exit is None and self._lease is not None and self._lease.is_current

    @property
    def busyness(self) -> tuple[int, int]:
        """Calls that run or wait, and sessions."""
        return self._multiplex.busyness

    def join(self, principal: Principal) -> "SharedConnection":
        """A connection for one more session of this principal; the session releases it."""
        if self._lease is not None:
            self._lease.used()
        return SharedConnection(self, self._multiplex, principal)

    def tick(self) -> None:
        """To be called every few seconds."""
        self._multiplex.tick()
        if time.monotonic() - self.empty_since > JOINED_WITHIN_S:
            self._tell_if_unused()

    def release(self, reason: str) -> None:
        """Stops the process. Idempotent."""
        if self._lease is not None:
            self._lease.release(reason)

    # --- from its sessions

    def send(self, connection: "SharedConnection", line: bytes) -> None:
        """As BackendConnection.send; later failures go to the listener."""
        if self.exit is not None:
            raise self.exit.error("the backend has ended")
        self._carry_out_soon(self._multiplex.from_session(connection.member, line))

    def pause(self, connection: "SharedConnection") -> None:
        """Holds up the session's calls, as it cannot take more."""
        self._multiplex.pause(connection.member)

    def resume(self, connection: "SharedConnection") -> None:
        if self.exit is None:
            self._carry_out_soon(self._multiplex.resume(connection.member))

    def leave(self, connection: "SharedConnection") -> None:
        """The session has ended. Idempotent."""
        if self.exit is None:
            self._carry_out_soon(self._multiplex.leave(connection.member))
            self.empty_since = time.monotonic()
            self._tell_if_unused()

    def _tell_if_unused(self) -> None:
        if self._lease is not None and not self.busyness[1]:
            self._lease.unused(self.empty_since)

    def asked_for(self, size: int) -> None:
        self._process.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        """Counts a line that is no JSON, as BackendConnection.heard_noise."""
        self._process.heard_noise(line)

    def answering(self, connection: "SharedConnection") -> bytes | None:
        """As BackendConnection.answering, but only calls of this session, or that may be."""
        named = self._process.answering()
        return self._multiplex.call_of(connection.member, named) if named else named

    def _carry_out_soon(self, outs: list[Out]) -> None:
        """Writes to the process at once; calls the listeners later, as one of them may be the caller."""
        for out in outs:
            if type(out) is ToProcess:
                self._write(out)
            else:
                asyncio.get_running_loop().call_soon(self._carry_out, out)

    # --- from the process (BackendListener)

    def backend_sent(self, line: bytes) -> None:
        if not self._greeted.done():
            self._hear_greeting(partial(self._received, line))
            return
        for out in self._received(line):
            self._carry_out(out)

    def _received(self, line: bytes) -> list[Out]:
        outs = self._multiplex.from_process(line)
        if any(type(out) is Dropped and out.reason == NOISE for out in outs):
            self.heard_noise(line)
        return outs

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        if not self._greeted.done():
            self._hear_greeting(partial(self._multiplex.oversized, beginning, end))
            return
        for out in self._multiplex.oversized(beginning, end):
            self._carry_out(out)

    def backend_exited(self, exit: Exit) -> None:
        self.exit = exit
        if not self._greeted.done():
            hint = "It ended before it answered `initialize`."
            self._greeted.set_exception(exit.error(started=False, hint=hint))
            self._greeted.exception()  # perhaps nobody waits any more: asyncio would log it
        for member in list(self._multiplex.members):
            member.owner.tell_exit(exit)
        self._on_gone(self)

    def _hear_greeting(self, receive: Callable[[], list[Out]]) -> None:
        try:
            outs = receive()
        except InvalidResponse as error:
            self._greeted.set_exception(error)
            self._greeted.exception()
            return
        if self._multiplex.greeting is not None:
            self._greeted.set_result(None)
        for out in outs:
            self._carry_out(out)

    # --- what is to be done

    def _carry_out(self, out: Out) -> None:
        match out:
            case ToMember(member=member, line=line):
                member.owner.tell(line)
            case ToProcess():
                self._write(out)
            case FailCall(member=member):
                member.owner.tell_failed(out.id, out.error)
            case ToAll(key=key):
                if not self._for_all:
                    loop = asyncio.get_running_loop()
                    # In two steps: uvloop runs timers first, and a session's answers may wait to be carried out.
                    loop.call_later(FAN_OUT_S, loop.call_soon, self._tell_all)
                self._for_all[key] = out
            case _:
                self._metrics.messages_dropped.labels(out.reason).inc()

    def _write(self, out: ToProcess) -> None:
        try:
            self._process.send(out.line)
        except BackendError as error:
            call = out.call
            if call is None or call.member is None:
                self._metrics.messages_dropped.labels("backend_deaf").inc()
                return
            asyncio.get_running_loop().call_soon(self._carry_out, FailCall(call.member, call.id, error))
            self._carry_out_soon(self._multiplex.abandon(call))

    def _tell_all(self) -> None:
        for_all, self._for_all = self._for_all, {}
        for out in for_all.values():
            for member in out.members:
                member.owner.tell(out.line)


class SharedConnection:
    """One session's connection to a shared process; fulfils ProcessConnection, and is its own lease."""

    def __init__(self, process: SharedProcess, multiplex: Multiplex, principal: Principal) -> None:
        self.member = multiplex.join(self, principal.identity)
        self._process = process
        self._listener: CallListener | None = None

    # --- ConnectionLease

    @property
    def connection(self) -> "SharedConnection":
        return self

    @property
    def was_warm(self) -> bool:
        return True

    def handshake_succeeded(self) -> None:
        """Does nothing: the process was initialized before."""

    def release(self, reason: str) -> None:
        """As ConnectionLease.release; the process goes on for the others."""
        self._listener = None
        self._process.leave(self)

    # --- ProcessConnection

    @property
    def id(self) -> str:
        return self._process.id

    def attach(self, listener: BackendListener) -> None:
        assert isinstance(listener, CallListener)
        self._listener = listener
        if self._process.exit is not None:
            asyncio.get_running_loop().call_soon(self.tell_exit, self._process.exit)

    def send(self, line: bytes) -> None:
        self._process.send(self, line)

    def pause_reading(self) -> None:
        """Holds up this session's calls; the process is still read."""
        self._process.pause(self)

    def resume_reading(self) -> None:
        self._process.resume(self)

    def asked_for(self, size: int) -> None:
        self._process.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        self._process.heard_noise(line)

    def answering(self) -> bytes | None:
        return self._process.answering(self)

    # --- from the process; an error of one listener must not keep the others from being called

    def tell(self, line: bytes) -> None:
        if self._listener is not None:
            try:
                self._listener.backend_sent(line)
            except Exception:
                log.exception("A session could not handle a line of shared process %s", self.id)

    def tell_failed(self, call: bytes, error: GatewayError) -> None:
        if self._listener is not None:
            try:
                self._listener.backend_failed(call, error)
            except Exception:
                log.exception("A session could not handle the failure of a call of shared process %s", self.id)

    def tell_exit(self, exit: Exit) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            try:
                listener.backend_exited(exit)
            except Exception:
                log.exception("A session could not handle the end of shared process %s", self.id)
