"""How a connection is read: not while something that came on it waits, and strangers in turn.

A read of the event loop has up to 256 KB, and it reads a connection up to 32 times before it looks at the next. With
small chunks in it that is a second. So the connection of a stranger is read a piece at a time, and what is more than an
ordinary request waits for its turn, as the requests of strangers do.
"""

import asyncio
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from app.edge.connections import Connections

AT_ONCE_BYTES = 2 << 10  # parsed without waiting: an ordinary request, and what trickles


class Reading(FlowControl):
    """uvicorn's flow control, which a request resumes whenever it wants more of its body; unless reading is on hold, or
    what was read stands in line."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.is_on_hold = self._is_in_line = False

    def hold(self) -> None:
        """Reads nothing more, whoever asks."""
        self.is_on_hold = True
        if not self._transport.is_closing():
            self.pause_reading()

    def stand_in_line(self) -> None:
        """The same until `leave_line`."""
        self._is_in_line = True
        self.pause_reading()

    def leave_line(self) -> None:
        """What stood there is parsed now, and says whether more is wanted."""
        self._is_in_line = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not (self.is_on_hold or self._is_in_line or self._transport.is_closing()):
            super().resume_reading()


class Parsing(Protocol):
    """The protocol behind a `StrangersReader`."""

    flow: Reading

    @property
    def is_let_in(self) -> bool:
        """Whether a credential was accepted, be it for the request whose body is coming."""

    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class StrangersReader(asyncio.BufferedProtocol):
    """Stands between a transport and its protocol, until somebody is let in there."""

    def __init__(self, protocol: Parsing, among: Connections) -> None:
        self._protocol, self._among = protocol, among
        self._in_line = b""  # what was read, and has not had its turn

    def get_buffer(self, sizehint: int) -> memoryview:
        """That of all connections: what is read is taken from it at once."""
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
