"""RequestIds: X-Request-Id and `traceparent`, by which a request is found in the logs of nodes and of its client."""

import os
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from app.protocol.jsonrpc import Message, Response
from app.telemetry.tracing.context import Own, TraceContext, may_have_parent, new_span, parse_traceparent
from app.telemetry.tracing.tracer import Tracer

REQUEST_ID, TRACEPARENT, TRACESTATE, BAGGAGE = b"x-request-id", b"traceparent", b"tracestate", b"baggage"
IDS = "trunkline.request_ids"  # in the ASGI scope

_is_request_id = re.compile(rb"[A-Za-z0-9._:-]{1,64}\Z").match

_POOL = 256  # ids made at once: one by one each would cost a system call


class _Source:
    """Random hex digits, 32 per request. A forked process must `forget` those of its parent."""

    __slots__ = ("_digits", "_place")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._digits, self._place = b"", 0

    def next(self) -> bytes:
        place = self._place
        if place >= len(self._digits):
            self._digits, place = os.urandom(16 * _POOL).hex().encode("ascii"), 0
        self._place = place + 32
        return self._digits[place : place + 32]


_source = _Source()
_next_id = _source.next
os.register_at_fork(after_in_child=_source.forget)


class RequestIds:
    """X-Request-Id and `traceparent` (W3C Trace Context) of one request. The edge puts both into every answer.

    `trace` is there while a request is served of which spans are recorded, or a client's context is to be passed on.
    """

    __slots__ = ("_request", "_traceparent", "trace")

    def __init__(self, request: bytes, traceparent: bytes | None = None) -> None:
        self._request, self._traceparent = request, traceparent
        self.trace: TraceContext | None = None

    def begin_trace(self, tracer: Tracer, headers: Mapping[bytes, bytes]) -> None:
        """Makes `trace`, by the headers of the request.

        A trace that another node has not begun to record is not one that a client has sent: it is not passed on.
        """
        known = self._traceparent
        if known is None:  # most clients
            if tracer.begins(self._request):
                self._follow(tracer.context(None, Own(self._request, self._request, self._request[16:])))
            return
        own, parent = Own(self._request, known[3:35], known[36:52]), parse_traceparent(headers.get(TRACEPARENT, b""))
        if parent is not None and (parent.is_sampled or parent.trace != self._request):
            state, baggage = headers.get(TRACESTATE, b""), headers.get(BAGGAGE, b"")
            self._follow(tracer.context(parent, own, state, baggage))
        elif parent is None and tracer.begins(own.trace):
            self._follow(tracer.context(None, own))

    def continue_trace(self, tracer: Tracer, message: Message | list[Message], *, is_forwarded: bool) -> None:
        """Goes on with the context in the message, which comes before that of the headers, unless another node has put
        that there. Messages of a batch share that of the headers."""
        if isinstance(message, list):
            if self.trace is not None:
                self.trace.has_several()
            return
        meta = None if is_forwarded or isinstance(message, Response) else may_have_parent(message.params)
        if meta is None:
            return
        known = self.traceparent
        present = self.trace or tracer.context(None, Own(self._request, known[3:35], known[36:52]))
        context = present.continued(meta)
        if context is not None:
            self._follow(context)

    def hop(self) -> bytes:
        """A span for the way to another node, which is the parent of everything there; empty if it is not recorded."""
        if self.trace is None or not self.trace.is_recorded:
            return b""
        span = new_span()
        self._traceparent = self.trace.traceparent(span)
        return span

    def _follow(self, context: TraceContext) -> None:
        self.trace, self._traceparent = context, context.traceparent()

    def trace_failed(self, reason: str) -> None:
        """The request is answered with this error, if at all."""
        if self.trace is not None:
            self.trace.failed(reason)

    def end_trace(self) -> None:
        """The request is over: what is kept of it has no use for `trace`."""
        self.trace = None

    @property
    def traceparent(self) -> bytes:
        """The client's with a parent id of ours; or one that begins here, with the request id as its trace."""
        return self._traceparent or b"00-%b-%b-00" % (self._request, self._request[16:])

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Both, and what belongs to the trace, for a request that is forwarded to another node."""
        ids = (REQUEST_ID, self._request), (TRACEPARENT, self.traceparent)
        if self.trace is None:
            return ids
        more = (TRACESTATE, self.trace.state), (BAGGAGE, self.trace.baggage)
        return (*ids, *(pair for pair in more if pair[1]))

    @property
    def lines(self) -> bytes:
        return b"x-request-id: %b\r\ntraceparent: %b\r\n" % (self._request, self.traceparent)

    @property
    def request(self) -> str:
        """The client's X-Request-Id, or one made here."""
        return self._request.decode("ascii")

    def names(self) -> tuple[str, str]:
        """The request id and the trace id."""
        request = self.request
        return request, request if self._traceparent is None else self._traceparent[3:35].decode("ascii")

    def fields(self) -> dict[str, object]:
        """Both as fields of a log line."""
        return dict(zip(("request", "trace"), self.names(), strict=True))


def request_ids(headers: Mapping[bytes, bytes]) -> RequestIds:
    """The ids of a request with these headers. Missing or malformed ones are made, both from one number."""
    made = _next_id()
    if TRACEPARENT not in headers and REQUEST_ID not in headers:  # most clients
        return RequestIds(made)
    trace, flags = made, b"00"
    found = parse_traceparent(headers.get(TRACEPARENT, b""))
    if found is not None:
        trace, flags = found.trace, found.flags
    given = headers.get(REQUEST_ID, b"")
    request = given if _is_request_id(given) else made
    return RequestIds(request, b"00-%b-%b-%b" % (trace, made[16:], flags))


def named(scope: MutableMapping[str, Any]) -> RequestIds:
    """The ids of the request with this ASGI scope, which keeps them."""
    ids: RequestIds | None = scope.get(IDS)
    if ids is None:
        ids = scope[IDS] = request_ids(dict(scope["headers"]))
    return ids
