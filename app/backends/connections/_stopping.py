"""StoppingConnection: a session's connection whose process is stopped while the session is idle (`recovery: end`).

It keeps its state, and its memory where that is not pushed out, and takes no time of a processor. Whatever is sent to
it has it go on: the line waits in its pipe meanwhile.
"""

import errno
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import Enum
from typing import Protocol, runtime_checkable

from app.backends.connections._captured import PassingConnection
from app.backends.connections.source import ConnectionLease, Keeper, Probed
from app.errors import BackendError, BackendUnavailable, GatewayError, InvalidMessage
from app.processes.connection import BackendListener, CallListener
from app.processes.endings import Exit
from app.protocol.handshake_record import HandshakeRecord
from app.protocol.jsonrpc import several

_GROUP_IS_GONE = (errno.ENOENT, errno.ENODEV)  # the latter, if it went while it was being written to


@runtime_checkable
class Freezable(Protocol):
    """What can be stopped: a BackendProcess."""

    def freeze(self, told: Callable[[OSError | None], None]) -> bool:
        """Stops it soon, and says whether it stands still; False, if that is not even tried."""

    def thaw(self, told: Callable[[OSError | None], None]) -> None:
        """Has it go on soon, if it was stopped."""

    def kill(self, cause: str | None = None) -> None: ...


class Stillness(Enum):
    """What the process does."""

    RUNNING = "running"
    FROZEN = "frozen"  # or about to be
    THAWING = "thawing"
    ENDED = "ended"  # it was given back


class StoppingConnection(PassingConnection):
    """Fulfils ProcessConnection toward the session, and CallListener toward its process, which can be frozen. Is its
    own lease."""

    def __init__(self, lease: ConnectionLease, process: Freezable) -> None:
        super().__init__(lease.connection)
        self._lease, self._process = lease, process
        self._record = HandshakeRecord()
        self._listener: CallListener | None = None
        self._stillness = Stillness.RUNNING
        self._keeper: Keeper | None = None  # while it is frozen, or thawing
        self._is_paused = self._was_refused = False

    # --- ConnectionLease

    @property
    def connection(self) -> "StoppingConnection":
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
        self._stillness, self._listener = Stillness.ENDED, None
        self._lease.release(reason)  # it goes on, to end
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.gone()

    # --- Parkable

    def park(self, keeper: Keeper, with_news: bool = True) -> bool:
        """As Parkable.park; it never has news. What cannot be frozen is not tried again before its next message."""
        if self._stillness is not Stillness.RUNNING or self._is_paused or self._was_refused:
            return False
        if not self._record.is_at_rest or self._connection.answering() is not None:
            return False

        def told(error: OSError | None) -> None:
            keeper.stopped(error)
            if error is None or self._keeper is not keeper:
                return
            self._keeper = None
            if self._stillness is Stillness.FROZEN:  # else it is about to go on
                self._stillness, self._was_refused = Stillness.RUNNING, True
            keeper.gone()

        if not self._process.freeze(told):
            return False
        self._stillness, self._keeper = Stillness.FROZEN, keeper
        return True

    @property
    def has_process(self) -> bool:
        return True

    def unsent(self) -> Collection[bytes]:
        """None: each is written at once."""
        return ()

    def _go_on(self) -> None:
        """Thaws it, and does not wait for that."""
        self._stillness = Stillness.THAWING
        began = time.monotonic()

        def told(error: OSError | None) -> None:
            keeper = self._keeper
            if self._stillness is not Stillness.THAWING or (error is not None and error.errno in _GROUP_IS_GONE):
                return  # the session has ended; or the process, which it is told in a moment
            if error is not None:
                self._process.kill("could not be thawed")  # what waits for its answer is told of its end
                if keeper is not None:
                    keeper.not_woken(BackendUnavailable(f"the process could not be thawed: {error.strerror}"))
                return
            self._keeper, self._stillness = None, Stillness.RUNNING
            if keeper is not None:
                keeper.woken(was_warm=True, waited_s=time.monotonic() - began)

        self._process.thaw(told)

    # --- ProcessConnection

    @property
    def id(self) -> str:
        return self._lease.connection.id

    def attach(self, listener: BackendListener) -> None:
        """As BackendConnection.attach. A second listener (a BridgedConnection) replaces the first."""
        assert isinstance(listener, CallListener)
        is_first = self._listener is None
        self._listener = listener
        if is_first:
            self._connection.attach(self)

    def send(self, line: bytes) -> None:
        self._was_refused = False
        if self._stillness is Stillness.FROZEN:
            self._go_on()
        self._record.sent(line)
        try:
            self._connection.send(line)
        except BackendError:
            self._record.unsent(line)
            raise

    def pause_reading(self) -> None:
        self._is_paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        super().resume_reading()

    # --- CallListener

    def backend_sent(self, line: bytes) -> None:
        if self._stillness is Stillness.FROZEN:  # it had something to say when it was stopped
            self._go_on()
        self._note(line)
        if self._listener is not None:
            self._listener.backend_sent(line)

    def _note(self, line: bytes) -> None:
        try:
            self._record.received(line)
        except InvalidMessage:
            for each in several(line):
                with suppress(InvalidMessage):
                    self._record.received(each)

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        if self._listener is not None:
            self._listener.backend_failed(call, error)

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self._record.received_too_much(beginning, end)
        if self._listener is not None:
            self._listener.backend_sent_too_much(beginning, end)

    def backend_exited(self, exit: Exit) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.backend_exited(exit)
