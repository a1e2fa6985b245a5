"""When a connection is read: not while requests of it wait, and unauthenticated clients in turn.

The event loop reads up to 256 KB at once, up to 32 times per connection before the next one; parsing that much in small
chunks takes a second. So an unauthenticated connection is read one piece at a time, and a piece that is more than an
ordinary request waits for its turn, like the requests of such clients.
"""

import asyncio
import fcntl
import sys
import termios
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from app.http.edge.connections import Connections

AT_ONCE_BYTES = 2 << 10  # parsed without waiting: an ordinary request


def unread_bytes(transport: asyncio.Transport) -> int:
    """How much has arrived that the event loop has not read yet."""
    size = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(size, sys.byteorder)


class Reading(FlowControl):
    """uvicorn's flow control, which a request resumes when it wants more of its body; here not while reading is on hold
    or a piece is queued."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_on_hold = self._is_in_line = False

    def hold(self) -> None:
        """Pauses reading until `release`."""
        self._is_on_hold = True
        if not self._transport.is_closing():
            self.pause_reading()

    def release(self) -> None:
        """Allows reading; the next `resume_reading` starts it."""
        self._is_on_hold = False

    def stand_in_line(self) -> None:
        """Pauses reading until `leave_line`."""
        self._is_in_line = True
        self.pause_reading()

    def leave_line(self) -> None:
        self._is_in_line = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not (self._is_on_hold or self._is_in_line or self._transport.is_closing()):
            super().resume_reading()


class Parsing(Protocol):
    """The part of an `EdgeProtocol` that a `StrangersReader` uses."""

    flow: Reading

    @property
    def is_let_in(self) -> bool: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class StrangersReader(asyncio.BufferedProtocol):
    """Stands between a transport and its protocol until the client has authenticated."""

    def __init__(self, protocol: Parsing, among: Connections) -> None:
        self._protocol, self._among = protocol, among
        self._in_line = b""  # what was read and waits for its turn

    def get_buffer(self, sizehint: int) -> memoryview:
        """One buffer for all connections; `buffer_updated` copies what was read."""
        return self._among.read_into

    def buffer_updated(self, nbytes: int) -> None:
        data, protocol = bytes(self._among.read_into[:nbytes]), self._protocol
        if nbytes <= AT_ONCE_BYTES or protocol.is_let_in:
            protocol.data_received(data)
        else:
            self._in_line = data
            protocol.flow.stand_in_line()
            self._among.take_turns(self._parse)

    def _parse(self) -> None:
        data, self._in_line = self._in_line, b""
        self._protocol.flow.leave_line()
        self._protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.leave_line(self._parse)
        self._protocol.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
