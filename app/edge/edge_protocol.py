"""EdgeProtocol: uvicorn's HTTP protocol, for clients that nobody knows yet. It differs in what one connection can make
us keep or do:

1. While a request waits behind another one, nothing more is read. uvicorn goes on after each answer, without a bound.
2. It has its place among the node's `Connections`, and a deadline there instead of a timer of its own. What strangers
   send is read and parsed in turns.
3. Behind a proxy of ours each request has, and counts for, the address of its client.
4. What of a body is not the body has a limit, and so has a body that goes on when it has been answered.
5. The only versions are 1.1 and 1.0; and nothing that a stranger sends is logged.

What a head may be is in `LimitedParser`.
"""

import asyncio
import math
import random
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.edge.connections import PIECE_BYTES, Connections
from app.edge.limited_parser import LimitedParser, Refused
from app.edge.reading import Reading, StrangersReader
from app.edge.refusals import (
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
from app.http.client_address import UNKNOWN, scheme_before
from app.http.request_ids import RequestIds, named, request_ids
from app.http.scope import BY_NODE, LEFT, LET_IN

MAX_WAITING = 16  # requests of a connection behind the one that is being answered
MAX_FRAMING_BYTES = 8 << 10  # what stands between chunks, beyond the following part of what stands in them
FRAMING_SHIFT = 3  # an eighth
MAX_UNREAD_BYTES = 1 << 20  # of a body, behind its answer
_VERSIONS = ("1.1", "1.0")
_ENDPOINTS = "/t/"


class EdgeProtocol(LimitedParser):
    """One connection. `HttpProtocol` is what uvicorn is handed."""

    flow: Reading
    cycle: RequestResponseCycle | None  # type: ignore[assignment]

    def __init__(self, *args: Any, connections: Connections | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._among = Connections() if connections is None else connections
        self.deadline, self.since = math.inf, self._among.now
        self._is_proxied = self._was_let_in = False
        self._counted: str | None = None  # the client behind a proxy for whose address the current request counts
        self._current: RequestResponseCycle | None = None  # what is being answered; `cycle` is what was parsed last
        self._app_in_turn: Any = None  # what that is answered by, when it is its turn
        self._framing_bytes = 0  # of the body that is coming, less what its chunks allow
        self._unread_bytes = 0
        self._is_over = False  # nothing that comes counts any more
        self._lingers = False  # all has been said
        self._untaken_bytes, self._untaken_since = -1, 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """uvicorn's, if there is a place for it."""
        super().connection_made(transport)
        self._socket, self.flow = transport, Reading(transport)
        self.deadline = self._among.now + self._among.limits.head_s
        address = self.client[0] if self.client else UNKNOWN
        self._is_proxied = address in self._among.proxies
        refusal = self._among.admit(self, address, transport.get_extra_info("socket").fileno())
        if refusal is not None:
            self._refuse(refusal)
            transport.close()
        else:
            transport.set_protocol(StrangersReader(self, self._among))

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn's, which tells only the request that came last; and what waits is forgotten."""
        self._is_over = True  # what stood in line when somebody was let in is still to come
        self.pipeline.clear()
        self._leave()
        super().connection_lost(exc)
        if self._current is not None:
            self._tell_it_is_over(self._current)
        self.cycle = self._current = None

    def _leave(self) -> None:
        self._among.leave(self)
        self._among.leave_line(self._start_in_turn)
        self._no_longer_counts()

    # --- what comes in

    def data_received(self, data: bytes) -> None:
        """Parses it, as long as it keeps to the limits."""
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
        """uvicorn's. The first head has had its time since the connection was made."""
        if self._current is None and self.cycle is not None:
            self.deadline = self._among.now + self._among.limits.head_s
        self._in_head, self._arrived_bytes, self._trailer_bytes = True, self._piece_bytes, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """uvicorn's, which starts the request, or lets it wait for those before it."""
        if not self._accept_head():
            return
        if self._is_proxied:
            self._believe_the_proxy()
        super().on_headers_complete()
        self._in_head, self._in_body, self._arrived_bytes = False, True, 0
        # Where in this piece the body begins is not known.
        self._framing_bytes, self._unread_bytes = -self._piece_bytes, 0
        if self.pipeline:
            self.flow.hold()
            if len(self.pipeline) > MAX_WAITING:
                self._stop_parsing(PIPELINE_TOO_LONG)

    def on_body(self, body: bytes) -> None:
        """Like uvicorn's, for one chunk of many: what a piece has brought of a body is handed on behind it."""
        self._arrived_bytes = 0
        self._framing_bytes -= len(body) + (len(body) >> FRAMING_SHIFT)
        if self._current is not None:
            self.cycle.body += body  # type: ignore[union-attr]

    def _hand_on(self) -> None:
        """Tells the request that more of its body has come. If it has been answered, nobody wants more."""
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
        """uvicorn's. What has come as a whole has no deadline until it is answered."""
        if self._in_head:
            return  # of one that comes again without the offer
        self._in_body, self._arrived_bytes = False, 0
        self.deadline = math.inf if self._current is not None else self.since + self._among.limits.idle_s
        super().on_message_complete()

    def _believe_the_proxy(self) -> None:
        assert self.client is not None
        self.scope["client"] = (self._among.proxies.client_behind(self.client[0], self.headers), 0)
        self.scope["scheme"] = scheme_before(self.headers) or self.scope["scheme"]

    # --- one request after the other

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        if self._among.node_leaves:
            self.end_with_answer()
        if cycle.scope["http_version"] not in _VERSIONS:
            cycle.keep_alive, app = False, VERSION.answer
            self._tell_of(VERSION, named(cast(dict[str, Any], cycle.scope)))
        # A request that has waited is complete, or goes on arriving now.
        self.deadline = self._among.now + self._among.limits.body_s if cycle.more_body else math.inf
        if self._is_proxied:
            assert cycle.scope["client"] is not None
            self._counted = self._among.counted_as(cycle.scope["client"][0])
            if self._counted is not None and not self._among.take(self._counted):
                self._counted, app = None, ADDRESS_LIMIT.answer
                self._tell_of(ADDRESS_LIMIT, named(cast(dict[str, Any], cycle.scope)))
        if self._was_let_in:
            super()._start_asgi_task(cycle, app)
        else:
            self._app_in_turn = app
            self._among.take_turns(self._start_in_turn)

    def _start_in_turn(self) -> None:
        if self._current is not None:  # else it was forgotten
            super()._start_asgi_task(self._current, self._app_in_turn)

    def on_response_complete(self) -> None:
        """uvicorn's, without a timer: the next request, or the wait for one. Only when the last of those that waited
        is begun is the connection read again."""
        self.server_state.total_requests += 1
        current, self._current = self._current, None
        if not self._was_let_in and current is not None and LET_IN in current.scope:
            self._remember_that_it_was_let_in(current.scope)
        if self._counted is not None:
            self._no_longer_counts()
        self.since = now = self._among.now
        if self._socket.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self.flow.is_on_hold = bool(self.pipeline)
            self._start_asgi_task(cycle, app)
        elif self._in_head:
            self.deadline = now + self._among.limits.head_s
        elif not self._in_body:  # else the rest of its body has the time that it had
            self.deadline = now + self._among.limits.idle_s
        self.flow.resume_reading()

    def _no_longer_counts(self) -> None:
        self._among.give_back(self._counted)
        self._counted = None

    def _remember_that_it_was_let_in(self, scope: Any) -> None:
        self._was_let_in = True
        self._socket.set_protocol(self)
        if scope[LET_IN] is BY_NODE and self.client is not None:
            self._among.trust_node(self, self.client[0])

    # --- what Connections and StrangersReader ask

    @property
    def is_let_in(self) -> bool:
        """Whether a credential was accepted, be it for the request that is being answered."""
        return self._was_let_in or (self._current is not None and LET_IN in self._current.scope)

    @property
    def is_dispensable(self) -> bool:
        """Whether nobody who was let in misses it."""
        return not self.is_let_in and (self._current is None or self.flow.write_paused)

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for the client to take what was written."""
        return self.flow.write_paused or self._socket.is_closing()

    def look(self) -> None:
        """Ends it, if its time is over."""
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
            self._socket.close()  # idle for too long, which is nobody's fault

    def give_up(self, refusal: Refusal) -> None:
        """Ends it at once."""
        self._tell_of(refusal)
        self._leave()
        self.pipeline.clear()
        self._socket.abort()

    def end_with_answer(self) -> None:
        """Lets the answer that is due say that the connection ends, if it has not begun and nothing waits behind it."""
        cycle = self._current
        if cycle is None or cycle.response_started or self.pipeline:
            return
        if cycle.scope["path"].startswith(_ENDPOINTS):
            cycle.keep_alive = False

    def pause_writing(self) -> None:
        """uvicorn's."""
        self._untaken_bytes = -1
        super().pause_writing()

    # --- the end

    def _refuse(self, refusal: Refusal) -> None:
        """Ends the connection, with an answer where one is due; what came before on it is answered first."""
        current, self._is_over = self._current, True
        ids = request_ids({})  # its own are in a head that nobody has read
        self._tell_of(refusal, None if refusal.status is None else ids)
        if refusal.status is None:
            self._forget()
            self._linger(refusal)
        elif current is None:
            # Where the rest of a body is at fault that nobody waits for, its request has had its answer.
            self._finish(refusal, ids, is_answered=self._in_body)
        elif self._in_body and current is self.cycle:  # the body of the request that is being answered
            self._tell_it_is_over(current)
            self._finish(refusal, ids, is_answered=current.response_started)
        else:
            current.keep_alive = False
            self.pipeline.clear()
            self.cycle = current
            self.flow.hold()

    def _forget(self) -> None:
        """All that the connection has brought."""
        self.pipeline.clear()
        if self._current is not None:
            self._tell_it_is_over(self._current)
        self._current = None

    def _tell_of(self, refusal: Refusal, ids: RequestIds | None = None) -> None:
        client = self.scope.get("client") if self.cycle is not None else self.client
        self._among.on_refused(refusal.reason, (client or ("",))[0], "" if ids is None else ids.request)

    def _finish(self, refusal: Refusal, ids: RequestIds, *, is_answered: bool) -> None:
        """Says why, unless something else was said already."""
        if not (is_answered or self._socket.is_closing()):
            self._socket.write(refusal.response(self.url, ids))
        self._linger(refusal)

    def _linger(self, refusal: Refusal) -> None:
        """Reads nothing more, and closes later. Closing at once on what is still being sent would reset the connection,
        and the answer with it; and floods that came together shall not come again together."""
        limits = self._among.limits
        self._lingers = True
        self.flow.hold()
        spread = random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        self.deadline = self._among.now + (limits.left_alone_s * spread if refusal.is_flood else limits.lingering_s)

    def shutdown(self) -> None:
        """uvicorn's, when the node stops."""
        if self._lingers:
            self._socket.close()
        else:
            super().shutdown()

    def _tell_it_is_over(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cast(dict[str, Any], cycle.scope)[LEFT] = True
        cycle.message_event.set()
