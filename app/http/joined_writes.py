"""JoinedWrites: uvicorn's HTTP protocol, with the head of an answer and what follows at once in one packet.

uvicorn writes them one after the other, and uvloop sends each at once: one system call too many here, and often there.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

JOINED_BYTES = 64 << 10  # what is longer is not worth a copy


class JoinedWrites(HttpToolsProtocol):
    """Hand it to uvicorn as `http`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Answers go through the transport that joins; flow control and addresses know the true one."""
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", _Joining(transport, self.loop))


class _Joining:
    """As much of a transport as uvicorn uses. A head waits for the next write, or for the loop's next turn."""

    __slots__ = ("_head", "_loop", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._head = transport, loop, b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        head = self._head
        if head:
            self._head = b""
            if len(data) > JOINED_BYTES:
                self._transport.write(head)
                self._transport.write(data)
            else:
                self._transport.write(head + data)
        elif data.startswith(b"HTTP/1.1 "):  # where a body begins so, it goes out a moment later
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)
