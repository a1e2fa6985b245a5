"""EdgeProtocol: uvicorn's HTTP protocol with bounds on what one connection can make us keep or do:

1. While requests wait behind another one, nothing more is read; uvicorn would read on, without a bound.
2. It is counted in `Connections`, which also has its deadline instead of a timer. What unauthenticated clients send is
   read and parsed in turns.
3. Behind a trusted proxy each request has, and counts for, its client's address.
4. The framing of a body has a limit, and so has the rest of a body whose request is already answered.
5. Only HTTP/1.1 and 1.0 are accepted; nothing that an unauthenticated client sends is logged.

`LimitedParser` has the limits of heads.
"""

import asyncio
import fcntl
import math
import random
import sys
import termios
from typing import Any, Protocol, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.http.client_address import UNKNOWN, scheme_before
from app.http.edge._limited_parser import LimitedParser, Refused
from app.http.edge._refusals import (
    ADDRESS_LIMIT,
    BODY_TIMEOUT,
    CHUNKS_TOO_SMALL,
    HEAD_TIMEOUT,
    PIPELINE_TOO_LONG,
    SILENT,
    STALLED,
    UNREAD_BODY,
    VERSION,
    Refusal,
)  # fmt: skip
from app.http.edge.connections import PIECE_BYTES, Connection, Connections
from app.http.request_ids import RequestIds, named, request_ids
from app.http.scope import AT_ONCE, BY_NODE, LEFT, LET_IN, WHEN_GONE

# When a connection is read: not while requests of it wait, and unauthenticated clients in turn.
#
# The event loop reads up to 256 KB at once, up to 32 times per connection before the next one; parsing that much in
# small chunks takes a second. So an unauthenticated connection is read one piece at a time, and what is more than an
# ordinary request in a second waits for its turn, like the requests of such clients. While it waits, small pieces
# become a large one, which costs as much to read as each of them.

AT_ONCE_BYTES = 2 << 10  # of a connection between two sweeps, parsed without waiting: an ordinary request
PIECE_COST_BYTES = 512  # what a smaller piece counts as


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
        self._at_once_bytes, self._counted_at = 0, among.now

    def get_buffer(self, sizehint: int) -> memoryview:
        """One buffer for all connections; `buffer_updated` copies what was read."""
        return self._among.read_into

    def buffer_updated(self, nbytes: int) -> None:
        data, protocol = bytes(self._among.read_into[:nbytes]), self._protocol
        if self._may_go_at_once(nbytes) or protocol.is_let_in:
            protocol.data_received(data)
        else:
            self._in_line = data
            protocol.flow.stand_in_line()
            self._among.take_turns(self._parse)

    def _may_go_at_once(self, nbytes: int) -> bool:
        now = self._among.now  # the time of the last sweep
        if self._counted_at != now:
            self._at_once_bytes, self._counted_at = 0, now
        self._at_once_bytes += max(nbytes, PIECE_COST_BYTES)
        return self._at_once_bytes <= AT_ONCE_BYTES

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


MAX_WAITING = 16  # pipelined requests behind the one that is being answered
MAX_FRAMING_BYTES = 8 << 10  # of chunk framing, beyond 1 / 2^FRAMING_SHIFT of the body
FRAMING_SHIFT = 3
MAX_UNREAD_BYTES = 1 << 20  # of a body, after its answer
_VERSIONS = ("1.1", "1.0")
_ENDPOINTS = "/t/"


class EdgeProtocol(LimitedParser):
    """One connection of a client."""

    flow: Reading
    cycle: RequestResponseCycle | None  # type: ignore[assignment]

    def __init__(
        self,
        *args: Any,
        connections: Connections | None = None,
        handshake: Connection | None = None,
        **options: Any,
    ) -> None:
        """`handshake`: what was counted for this connection so far, where the gateway serves TLS."""
        super().__init__(*args, **options)
        self._among = Connections() if connections is None else connections
        self._handshake = handshake
        self.deadline, self.since = math.inf, self._among.now
        self._is_proxied = self._was_let_in = False
        self._counted: str | None = None  # the address behind a proxy that the current request counts for
        self._current: RequestResponseCycle | None = None  # being answered; `cycle` is the one that was parsed last
        self._app_in_turn: Any = None  # what will answer it when its turn has come
        self._framing_bytes = 0  # of the arriving body, less what its chunks allow
        self._unread_bytes = 0
        self._is_over = False  # what still arrives is ignored
        self._lingers = False  # everything is sent; waits to be closed
        self._ends_with_next = False  # the next answer closes it
        self._untaken_bytes, self._untaken_since = -1, 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admits the connection, or refuses it."""
        super().connection_made(transport)
        self._socket, self.flow = transport, Reading(transport)
        self.deadline = self._among.now + self._among.limits.head_s
        address = self.client[0] if self.client else UNKNOWN
        self._is_proxied = address in self._among.proxies
        after, self._handshake = self._handshake, None
        refusal = self._among.admit(self, address, transport.get_extra_info("socket").fileno(), after)
        if refusal is not None:
            self._refuse(refusal)
            transport.close()
        else:
            transport.set_protocol(StrangersReader(self, self._among))

    def connection_lost(self, exc: Exception | None) -> None:
        """Also tells the request that is being answered, and drops waiting ones; uvicorn tells only the last one."""
        self._is_over = True  # what stood in line when the client authenticated still arrives
        self.pipeline.clear()
        self._leave()
        super().connection_lost(exc)
        if self._current is not None:
            self._tell_it_is_over(self._current)
        self.cycle = self._current = None
        self.headers, self.scope = [], cast(Any, {})  # the scope leads back here

    def _leave(self) -> None:
        self._among.leave(self)
        self._among.leave_line(self._start_in_turn)
        self._no_longer_counts()

    # --- what comes in

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            if len(data) <= PIECE_BYTES:
                self._parse(data)
            else:
                view = memoryview(data)
                for start in range(0, len(data), PIECE_BYTES):
                    self._parse(view[start : start + PIECE_BYTES])
        except (httptools.HttpParserError, Refused):
            self._refuse(self._refusal)

    def on_message_begin(self) -> None:
        """Starts the deadline of a head; that of the first one runs since the connection was made."""
        if self._current is None and self.cycle is not None:
            self.deadline = self._among.now + self._among.limits.head_s
        self._in_head, self._arrived_bytes, self._trailer_bytes = True, self._piece_bytes, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Starts the request, or queues it behind earlier ones."""
        if not self._accept_head():
            return
        if self._is_proxied:
            self._believe_the_proxy()
        super().on_headers_complete()
        self._in_head, self._in_body, self._arrived_bytes = False, True, 0
        # It is not known where in this piece the body begins.
        self._framing_bytes, self._unread_bytes = -self._piece_bytes, 0
        if self.pipeline:
            self.flow.hold()
            if len(self.pipeline) > MAX_WAITING:
                self._stop_parsing(PIPELINE_TOO_LONG)

    def on_body(self, body: bytes) -> None:
        """Called for each chunk; the request hears of all chunks of a piece at once, in `_hand_on`."""
        self._arrived_bytes = 0
        self._framing_bytes -= len(body) + (len(body) >> FRAMING_SHIFT)
        if self._current is not None:
            self.cycle.body.extend(body)  # type: ignore[union-attr]

    def _hand_on(self) -> None:
        """Tells the request that more of its body has arrived, or counts what arrives after the answer."""
        self._framing_bytes += self._piece_bytes
        if self._framing_bytes > MAX_FRAMING_BYTES:
            self._stop_parsing(CHUNKS_TOO_SMALL)
        cycle = self.cycle
        assert cycle is not None
        if self._current is None:
            self._unread_bytes += self._piece_bytes
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self._stop_parsing(UNREAD_BODY)
        elif cycle.body:
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """A complete request has no deadline until it is answered."""
        if self._in_head:
            return  # it is read again without `Upgrade`
        self._in_body, self._arrived_bytes = False, 0
        self.deadline = math.inf if self._current is not None else self.since + self._among.limits.idle_s
        super().on_message_complete()
        if self.flow.read_paused:  # the request reads no more, and it must be noticed if its client goes
            self.flow.resume_reading()

    def _believe_the_proxy(self) -> None:
        assert self.client is not None
        self.scope["client"] = (self._among.proxies.client_behind(self.client[0], self.headers), 0)
        self.scope["scheme"] = scheme_before(self.headers) or self.scope["scheme"]

    # --- one request after the other

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        scope: Any = cycle.scope
        scope[WHEN_GONE] = None
        if self._among.node_leaves or self._ends_with_next:
            self.end_with_answer()
        if scope["http_version"] not in _VERSIONS:
            cycle.keep_alive, app = False, VERSION.answer
            self._tell_of(VERSION, named(scope))
        # A request that has waited is complete, or is read on from now.
        self.deadline = self._among.now + self._among.limits.body_s if cycle.more_body else math.inf
        if self._is_proxied:
            self._counted = self._among.counted_as(scope["client"][0])
            if self._counted is not None and not self._among.take(self._counted):
                self._counted, app = None, ADDRESS_LIMIT.answer
                self._tell_of(ADDRESS_LIMIT, named(scope))
        if self._was_let_in:
            super()._start_asgi_task(cycle, app)
        else:
            self._app_in_turn = app
            self._among.take_turns(self._start_in_turn)

    def _start_in_turn(self) -> None:
        if self._current is not None:  # else the connection was refused meanwhile
            super()._start_asgi_task(self._current, self._app_in_turn)

    def on_response_complete(self) -> None:
        """Starts the next request, or the wait for one. Reading goes on when the last waiting request is started."""
        self.server_state.total_requests += 1
        current, self._current = self._current, None
        if not self._was_let_in and current is not None and LET_IN in current.scope:
            self._let_in(current.scope)
        if self._counted is not None:
            self._no_longer_counts()
        self.since = now = self._among.now
        if self._socket.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            if not self.pipeline:
                self.flow.release()
            self._start_asgi_task(cycle, app)
        elif self._in_head:
            self.deadline = now + self._among.limits.head_s
        elif not self._in_body:  # else the body's deadline still holds
            self.deadline = now + self._among.limits.idle_s
        self.flow.resume_reading()

    def _no_longer_counts(self) -> None:
        self._among.give_back(self._counted)
        self._counted = None

    def _let_in(self, scope: Any) -> None:
        self._was_let_in = True
        self._socket.set_protocol(self)
        if scope[LET_IN] is BY_NODE and self.client is not None:
            self._among.trust_node(self, self.client[0])

    # --- for Connections and StrangersReader

    @property
    def is_let_in(self) -> bool:
        """Whether a credential was accepted, on this connection or for the request that is being answered."""
        return self._was_let_in or (self._current is not None and LET_IN in self._current.scope)

    @property
    def is_kept(self) -> bool:
        """Whether it is open for a request, its first or another one."""
        return self._current is None and not (self._lingers or self._is_over or self._socket.is_closing())

    @property
    def is_dispensable(self) -> bool:
        """Whether it may be closed to make room: not authenticated, and idle or not read by its client."""
        return not self.is_let_in and (self._current is None or self.flow.write_paused)

    @property
    def has_unread(self) -> bool:
        """Whether a request has arrived that the event loop has not read yet."""
        return self._current is None and not self._socket.is_closing() and unread_bytes(self._socket) > 0

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for the client to read what was written."""
        return self.flow.write_paused or self._socket.is_closing()

    def look(self) -> None:
        """Closes it if its deadline has passed, or its client reads nothing."""
        limits, now = self._among.limits, self._among.now
        if self._lingers and self.deadline <= now and self.flow.write_paused:
            self._socket.abort()
        elif self.is_stuck:
            untaken = self._socket.get_write_buffer_size()
            if untaken != self._untaken_bytes:
                self._untaken_bytes, self._untaken_since = untaken, now
            elif now - self._untaken_since >= (limits.closing_s if self._socket.is_closing() else limits.stalled_s):
                self.give_up(STALLED)
        elif self.deadline > now:
            return
        elif self._lingers:
            self._socket.close()
        elif self._in_head:
            self._refuse(HEAD_TIMEOUT)
        elif self._in_body:
            self.give_up(BODY_TIMEOUT)
        elif self.cycle is None:
            self.give_up(SILENT)
        else:
            self._socket.close()  # keep-alive timeout: not counted as a refusal

    def give_up(self, refusal: Refusal) -> None:
        """Closes it at once, without an answer."""
        self._tell_of(refusal)
        self._leave()
        self.pipeline.clear()
        self._socket.abort()

    def end_with_answer(self) -> None:
        """Has the current answer close the connection, if it has not begun and no request waits behind it."""
        cycle = self._current
        if cycle is None or cycle.response_started or self.pipeline:
            return
        if self._ends_with_next or cycle.scope["path"].startswith(_ENDPOINTS):
            cycle.keep_alive = False

    def pause_writing(self) -> None:
        self._untaken_bytes = -1
        super().pause_writing()

    # --- the end

    def _refuse(self, refusal: Refusal) -> None:
        """Ends the connection, with an answer if the refusal has one; earlier requests are answered first."""
        current, self._is_over = self._current, True
        ids = request_ids({})  # the client's own are in a head that was not parsed
        self._tell_of(refusal, None if refusal.status is None else ids)
        if refusal.status is None:
            self.pipeline.clear()
            if current is not None:
                self._tell_it_is_over(current)
            self._current = None
            self._linger(refusal)
        elif current is None:
            # In a body the request has been answered already.
            self._finish(refusal, ids, is_answered=self._in_body)
        elif self._in_body and current is self.cycle:  # the body of the request that is being answered
            self._tell_it_is_over(current)
            self._finish(refusal, ids, is_answered=current.response_started)
        else:
            current.keep_alive = False
            self.pipeline.clear()
            self.cycle = current
            self.flow.hold()

    def _tell_of(self, refusal: Refusal, ids: RequestIds | None = None) -> None:
        client = self.scope.get("client") if self.cycle is not None else self.client
        self._among.on_refused(refusal.reason, (client or ("",))[0], "" if ids is None else ids.request)

    def _finish(self, refusal: Refusal, ids: RequestIds, *, is_answered: bool) -> None:
        """Sends the answer, unless another one has begun."""
        if not (is_answered or self._socket.is_closing()):
            self._socket.write(refusal.response(self.url, ids))
        self._linger(refusal)

    def _linger(self, refusal: Refusal) -> None:
        """Stops reading, and closes later: closing while the client still sends would reset the connection before the
        answer is read. The delay after a flood is random, so that clients do not return all at once."""
        limits = self._among.limits
        self._lingers = True
        self.flow.hold()
        spread = random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        self.deadline = self._among.now + (limits.left_alone_s * spread if refusal.is_flood else limits.lingering_s)

    def shutdown(self) -> None:
        """Closes it when it is idle. A request that has arrived is answered first, even if nobody has read it: without
        an answer its client could not know whether it was carried out."""
        if self._lingers:
            self._socket.close()
        elif self.is_kept and (self._in_head or unread_bytes(self._socket)):
            self._ends_with_next = True
        else:
            super().shutdown()

    def _tell_it_is_over(self, cycle: RequestResponseCycle) -> None:
        scope = cast(dict[str, Any], cycle.scope)
        cycle.disconnected = scope[LEFT] = True
        cycle.message_event.set()
        if scope.get(WHEN_GONE) is not None:
            scope[WHEN_GONE]()


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
