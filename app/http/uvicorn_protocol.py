"""HttpProtocol: uvicorn's HTTP protocol behind what the edge demands (`edge_protocol`), with one difference.

The head of an answer goes out with the beginning of its body, as ASGI has it. uvicorn writes them one after the other,
and uvloop sends each at once: one system call too many here, and often there.
"""

import asyncio
from typing import cast

from app.http.edge_protocol import EdgeProtocol

JOINED_BYTES = 64 << 10  # what is longer is not worth a copy
_HEAD, _INTERIM = b"HTTP/1.1 ", b"HTTP/1.1 1"  # the latter, like 100, is a whole answer


class HttpProtocol(EdgeProtocol):
    """Hand it to uvicorn as `http`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Answers go through the transport that joins; flow control and addresses know the true one."""
        super().connection_made(transport)
        self._joining = _Joining(transport)
        self.transport = cast("asyncio.Transport", self._joining)

    def on_response_complete(self) -> None:
        """uvicorn's; a head without a body has waited for it."""
        self._joining.flush()
        super().on_response_complete()


class _Joining:
    """As much of a transport as uvicorn uses. A head waits for the next write, or for the end of the answer."""

    __slots__ = ("_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
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
        elif data.startswith(_HEAD) and not data.startswith(_INTERIM):
            self._head = data
        else:
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Sends a head that has waited."""
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)
