"""HttpProtocol: what uvicorn is given as its HTTP protocol: an EdgeProtocol with three differences in its answers.

1. Every answer has the ids of its request.
2. The head of an answer is sent together with the beginning of the body. uvicorn writes them separately, and uvloop
   sends each at once: a system call more for us, and often for the client.
3. A short answer to a call can be written at once, without ASGI's two steps and checks of headers that never change.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.http.edge._edge_protocol import EdgeProtocol
from app.http.request_ids import named
from app.http.scope import AT_ONCE

JOINED_BYTES = 64 << 10  # longer ones are not worth the copy
_CRLF = b"\r\n"
_HEAD, _INTERIM = b"HTTP/1.1 ", b"HTTP/1.1 1"  # an interim answer, like 100, has no body


class HttpProtocol(EdgeProtocol):
    """For uvicorn's `http` option."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Only answers go through the joining transport; flow control uses the real one."""
        super().connection_made(transport)
        self._joining = _Joining(transport)
        self.transport = cast("asyncio.Transport", self._joining)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope: Any = cycle.scope
        scope[AT_ONCE] = self.answer_at_once
        self._joining.expect_answer(scope)
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Also breaks the reference cycle with the last request."""
        self._joining.forget()
        super().connection_lost(exc)

    def answer_at_once(self, scope: dict[str, Any], body: bytes) -> bool:
        """Writes a whole answer, JSON with status 200. False if it has to go through ASGI: the connection closes after
        it, its client does not read or has left, or the answer has begun."""
        cycle: Any = self._current
        if (
            cycle is None
            or cycle.scope is not scope
            or cycle.response_started
            or cycle.disconnected
            or not cycle.keep_alive
            or scope["method"] == "HEAD"
            or self.flow.write_paused
            or len(body) > JOINED_BYTES
        ):
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        same = _same_in_all(cycle.default_headers)
        self._socket.write(b"%b%d\r\n%b\r\n%b" % (same, len(body), named(scope).lines, body))
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        """Also sends a head that has no body."""
        self._joining.flush()
        super().on_response_complete()


class _Same:
    """Caches the beginning of answers that are written at once, while uvicorn's default headers are the same list: for
    a second, because of the date."""

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
    """The part of a transport that uvicorn uses. Adds the ids of the request to a head, and holds it back until the
    next write or the end of the answer."""

    __slots__ = ("_head", "_scope", "_transport", "is_closing")
    _scope: dict[str, Any] | None  # of the request whose answer has not begun

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self._scope = None
        self.is_closing = transport.is_closing

    def expect_answer(self, scope: dict[str, Any]) -> None:
        """The next head answers this request."""
        self._scope = scope

    def forget(self) -> None:
        self._scope = None

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
            scope, self._scope = self._scope, None  # what looks like a head later on is part of a body
            self._head = data if scope is None else data[:-2] + named(scope).lines + _CRLF
        else:
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Sends a head that was held back."""
        head, self._head, self._scope = self._head, b"", None
        if head:
            self._transport.write(head)
