"""HttpProtocol: uvicorn's HTTP protocol behind what the edge demands (`edge_protocol`), with three differences.

Every answer has the ids of its request, whoever makes it. The head of an answer goes out with the beginning of its
body, as ASGI has it. uvicorn writes them one after the other, and uvloop sends each at once: one system call too many
here, and often there. And a short answer to a call can be written at once, without ASGI's two steps and the checks of
headers that are always the same.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.edge.edge_protocol import EdgeProtocol
from app.http.request_ids import named
from app.http.scope import AT_ONCE

JOINED_BYTES = 64 << 10  # what is longer is not worth a copy
_CRLF = b"\r\n"
_HEAD, _INTERIM = b"HTTP/1.1 ", b"HTTP/1.1 1"  # the latter, like 100, is a whole answer


class HttpProtocol(EdgeProtocol):
    """Hand it to uvicorn as `http`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Answers go through the transport that joins; flow control and addresses know the true one."""
        super().connection_made(transport)
        self._joining = _Joining(transport)
        self.transport = cast("asyncio.Transport", self._joining)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope = self._joining.scope = cast("dict[str, Any]", cycle.scope)
        scope[AT_ONCE] = self.answer_at_once
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn's. The last request has named us, and is named here: forgotten, so that both go at once."""
        self._joining.scope = None
        super().connection_lost(exc)

    def answer_at_once(self, scope: dict[str, Any], body: bytes) -> bool:
        """Writes a whole answer, JSON with the status 200; False where it has to go the long way: the connection ends
        with it, or its client reads nothing, or has left, or something has been said already."""
        cycle = self._current
        if (
            cycle is None
            or cast("dict[str, Any]", cycle.scope) is not scope
            or cycle.response_started
            or cycle.disconnected
            or not cycle.keep_alive
            or scope["method"] == "HEAD"
            or self.flow.write_paused
            or len(body) > JOINED_BYTES
        ):
            return False
        self._joining.scope = None
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        same = _same_in_all(cycle.default_headers)
        self._socket.write(b"%b%d\r\n%b\r\n%b" % (same, len(body), named(scope).lines, body))
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        """uvicorn's; a head without a body has waited for it."""
        self._joining.flush()
        super().on_response_complete()


class _Same:
    """The beginning of every answer that is written at once, as long as uvicorn's own headers are the same list: for a
    second, since the date is among them."""

    def __init__(self) -> None:
        self._of: object = None
        self._text = b""

    def __call__(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._of:
            lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
            self._text = b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\ncontent-length: " % lines
            self._of = headers
        return self._text


_same_in_all = _Same()


class _Joining:
    """As much of a transport as uvicorn uses. A head gets the ids of its request, and waits for the next write, or for
    the end of the answer."""

    __slots__ = ("_head", "_transport", "is_closing", "scope")
    scope: dict[str, Any] | None  # of the request whose answer has not begun

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self.scope = None
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
            scope, self.scope = self.scope, None  # what looks like a head later on belongs to a body
            self._head = data if scope is None else data[:-2] + named(scope).lines + _CRLF
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
