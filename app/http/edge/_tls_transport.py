"""TlsTransport: what an HTTP protocol has as its transport where the gateway serves TLS; the handshake is over by then.

asyncio's own TLS reads as much as there is: a piece of 16 KiB may hold 500 records of a byte each, which take a
millisecond. So what unauthenticated clients send is decrypted in turns too.
"""

import asyncio
import contextlib
import ssl
from typing import Any, NamedTuple, Self

from app.http.edge._refusals import TLS_FAILED
from app.http.edge.connections import PIECE_BYTES, Connections
from app.http.edge.http_protocol import AT_ONCE_BYTES

MOST_ENCRYPTED_BYTES = 64 << 10  # at once: the buffer of a connection keeps the size that it once had


class Tls(NamedTuple):
    """The state of one connection; it neither reads nor writes a socket itself."""

    state: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO

    @classmethod
    def begin(cls, context: ssl.SSLContext) -> Self:
        """Before the first byte from a client."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        return cls(context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)

    @property
    def may_read(self) -> bool:
        """Whether a read could return something without more from the client."""
        return bool(self.incoming.pending or self.state.pending())


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """Two faces: the transport of an HTTP protocol, and the protocol of the TCP transport."""

    def __init__(self, socket: asyncio.Transport, tls: Tls, among: Connections) -> None:
        super().__init__()
        self._socket, self._tls, self._among = socket, tls, among
        self._protocol: Any = None
        self._is_buffered = False  # its protocol is a StrangersReader: the client has not authenticated
        self._is_paused = False

    def begin(self, protocol: asyncio.Protocol) -> None:
        """Gives the connection to its HTTP protocol, with what arrived together with the end of the handshake."""
        self._socket.set_protocol(self)
        self.set_protocol(protocol)
        protocol.connection_made(self)
        self._read_on()

    # --- the protocol of the TCP transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """One buffer for all connections; `buffer_updated` copies what was read."""
        return self._among.read_into

    def buffer_updated(self, nbytes: int) -> None:
        self._tls.incoming.write(self._among.read_into[:nbytes])
        if self._is_buffered and nbytes > AT_ONCE_BYTES:
            self._socket.pause_reading()
            self._among.take_turns(self._read_on)
        else:
            self._decrypt()

    def eof_received(self) -> bool | None:
        """Without the alert `close_notify` too: HTTP/1.1 itself says where a message ends."""
        self._protocol.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.leave_line(self._read_on)
        protocol, self._protocol = self._protocol, None  # they refer to each other
        protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def _read_on(self) -> None:
        self._decrypt()
        if not (self._is_paused or self._socket.is_closing()):
            self._socket.resume_reading()

    def _decrypt(self) -> None:
        """Hands on what has arrived, until its protocol wants no more."""
        try:
            while self._tls.may_read and not (self._is_paused or self._socket.is_closing()):
                if not self._hand_on():
                    self._protocol.eof_received()
                    self.close()
        except ssl.SSLWantReadError:
            pass  # the rest of a record has not arrived
        except ssl.SSLError:
            self._fail()

    def _hand_on(self) -> int:
        """One record, or less; 0 if the client says that it sends no more."""
        if not self._is_buffered:
            data = self._tls.state.read(PIECE_BYTES)
            if data:
                self._protocol.data_received(data)
            return len(data)
        into = self._protocol.get_buffer(PIECE_BYTES)
        count: int = self._tls.state.read(len(into), into)  # type: ignore[assignment]
        if count:
            self._protocol.buffer_updated(count)
        return count

    def _fail(self) -> None:
        address = self._socket.get_extra_info("peername")
        self._among.on_refused(TLS_FAILED.reason, str(address[0]) if address else "", "")
        self._flush()  # an alert
        self._socket.close()

    # --- the transport of the HTTP protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls.state.context if name == "sslcontext" else self._socket.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol, self._is_buffered = protocol, isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def pause_reading(self) -> None:
        self._is_paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """What has been read before comes in the next round of the event loop: not inside of the call that resumes."""
        if self._is_paused:
            self._is_paused = False
            asyncio.get_running_loop().call_soon(self._read_on)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._socket.is_closing():
            return
        try:
            if len(data) <= MOST_ENCRYPTED_BYTES:
                self._encrypt(memoryview(data))
            else:
                view = memoryview(data)
                for start in range(0, len(data), MOST_ENCRYPTED_BYTES):
                    self._encrypt(view[start : start + MOST_ENCRYPTED_BYTES])
        except ssl.SSLError:
            self._fail()

    def _encrypt(self, piece: memoryview) -> None:
        while piece:
            piece = piece[self._tls.state.write(piece) :]
        self._flush()

    def _flush(self) -> None:
        if self._tls.outgoing.pending and not self._socket.is_closing():
            self._socket.write(self._tls.outgoing.read())

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def close(self) -> None:
        """Tells the client with `close_notify`, and does not wait for its own."""
        if self._socket.is_closing():
            return
        with contextlib.suppress(ssl.SSLError):  # its own has not come, or this side has failed
            self._tls.state.unwrap()
        self._flush()
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()
