"""TraceContext: where one request stands in its trace (W3C Trace Context), and what is passed on of it."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec

from app.protocol.jsonrpc import Params, encode, encoded, members_of, string_of

RECORDED, NOT_RECORDED = b"01", b"00"
# What W3C asks for at least; what is longer or not ASCII counts as absent.
MAX_STATE, MAX_BAGGAGE = 512, 8192

# https://www.w3.org/TR/trace-context/#traceparent-header: a later version may say more behind what is known
_traceparent = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z"
).match
_printable = re.compile(rb"[\x20-\x7e]+\Z").match
_TRACEPARENT = b"traceparent"


class Parent(NamedTuple):
    """A `traceparent`: the hex digits of the trace, of the span that is the parent, and of the flags."""

    trace: bytes
    span: bytes
    flags: bytes

    @property
    def is_sampled(self) -> bool:
        """Whether the parent is recorded."""
        return self.flags[1] in b"13579bdf"


class Own(NamedTuple):
    """The id of a request, the trace that begins with it if it has no parent, and our span."""

    request: bytes
    trace: bytes
    span: bytes


def parse_traceparent(value: bytes) -> Parent | None:
    """None if it is malformed: then it counts for nothing."""
    found = _traceparent(value)
    if found is None or (found[1] == b"00" and found[5] is not None):
        return None
    return Parent(found[2], found[3], found[4])


def new_span() -> bytes:
    """The id of a span."""
    return os.urandom(8).hex().encode("ascii")


class TraceContext:
    """Of one HTTP request while it is served: its trace, and the span of ours that everything below is a child of.

    `within` is the span of ours that has not ended yet and that others belong to, if there is one besides `span`.
    `is_recorded`: spans are recorded. `is_taken`: a call, or the hop to another node, records the request's own span.
    `linked` is the context that HTTP headers had where another one in the message is the parent.
    """

    __slots__ = (
        "baggage", "began_ns", "error", "flags", "is_batch", "is_recorded", "is_taken", "linked", "parent", "request",
        "span", "state", "trace", "within",
    )  # fmt: skip

    def __init__(
        self,
        parent: Parent | None,
        own: Own,
        began_ns: int,
        state: bytes = b"",
        baggage: bytes = b"",
        linked: "TraceContext | None" = None,
    ) -> None:
        self.request, trace, self.span = own
        self.trace, self.parent, self.flags = (trace, b"", RECORDED) if parent is None else parent
        self.is_recorded = parent is None or parent.is_sampled
        self.began_ns, self.state, self.baggage = began_ns, _kept(state, MAX_STATE), _kept(baggage, MAX_BAGGAGE)
        self.linked = None if linked is None or not linked.parent else (linked.trace, linked.parent)
        self.is_taken = self.is_batch = False
        self.error, self.within = "", b""

    def take(self) -> None:
        """Something else than the end of the HTTP request records the request's span."""
        self.is_taken = True

    def has_several(self) -> None:
        """The request is a batch: each of its messages has a span of its own below that of the request."""
        self.is_batch = True

    @contextmanager
    def inside(self, span: bytes) -> Iterator[None]:
        """Within this block what is done for the request belongs to this span of ours."""
        before, self.within = self.within, span
        try:
            yield
        finally:
            self.within = before

    def failed(self, reason: str) -> None:
        """The request is answered with this error."""
        self.error = self.error or reason

    def traceparent(self, span: bytes = b"") -> bytes:
        """For whoever goes on below this span of ours."""
        return b"00-%b-%b-%b" % (self.trace, span or self.span, self.flags)

    def continued(self, meta: Params) -> "TraceContext | None":
        """The context of a message with this `_meta`, if that has one; our span stays the same."""
        parent = parent_in(meta)
        if parent is None:
            return None
        state = (string_of(meta.get("tracestate")) or "").encode("ascii", "replace")
        return TraceContext(
            parent, Own(self.request, parent.trace, self.span), self.began_ns, state, self.baggage, self
        )

    def passed_on(self, params: Params | None, span: bytes) -> Params | None:
        """The params with the context for the backend in `_meta` (SEP-414): a child of the span, or the client's own
        where nothing is recorded. A `_meta` that is no object is left as it is."""
        meta: Params = {}
        if params is not None and "_meta" in params:
            meta = members_of(params["_meta"])
            if not meta and bytes(params["_meta"]).replace(b" ", b"") != b"{}":
                return params
            if not span and "traceparent" in meta:
                return params
        meta["traceparent"] = msgspec.Raw(b'"%b"' % self.traceparent(span or self.parent))
        if self.state:
            meta["tracestate"] = encoded(self.state.decode("ascii"))
        else:
            meta.pop("tracestate", None)  # that of another trace
        if self.baggage:
            meta.setdefault("baggage", encoded(self.baggage.decode("ascii")))
        return {**(params or {}), "_meta": msgspec.Raw(encode(meta))}


class Traced(Protocol):
    """What has a context: the ids of an HTTP request."""

    @property
    def trace(self) -> TraceContext | None:
        """None where nothing is traced, and once the request is over."""


def parent_in(meta: Params) -> Parent | None:
    """The context in a `_meta`."""
    text = string_of(meta.get("traceparent"))
    return None if text is None else parse_traceparent(text.encode("ascii", "replace"))


def may_have_parent(params: Params | None) -> Params | None:
    """The members of `_meta`, if they may have a context."""
    if params is None or "_meta" not in params or _TRACEPARENT not in bytes(params["_meta"]):
        return None
    return members_of(params["_meta"])


def _kept(text: bytes, limit: int) -> bytes:
    return text if text and len(text) <= limit and _printable(text) else b""
