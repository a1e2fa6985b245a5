"""Tracer: which requests are recorded, what a span says, and where spans go."""

import time
from collections.abc import Callable

from app.tracing.context import Own, Parent, TraceContext, new_span
from app.tracing.spans import MAX_TEXT, Attributes, Kind, Span, about_message, title_of


class Tracer:
    """Of one node. A trace that begins here is recorded with the probability `sample`; one that a client has begun, if
    the client records it."""

    __slots__ = ("_export", "_mark")

    def __init__(self, sample: float, export: Callable[[Span], None]) -> None:
        """`export` takes a span that is over, and never waits."""
        self._export = export
        # Ids of traces are random: as many as asked for are below this mark. Other samplers take the same ones.
        self._mark = b"g" if sample >= 1 else b"%016x" % int(sample * (1 << 64))

    def begins(self, trace: bytes) -> bool:
        """Whether a trace that begins here is recorded."""
        return trace[16:] < self._mark

    def context(self, parent: Parent | None, own: Own, state: bytes = b"", baggage: bytes = b"") -> TraceContext:
        """The context of a request that begins now."""
        return TraceContext(parent, own, time.time_ns(), state, baggage)

    def request_over(self, context: TraceContext, method: str, name: str, about: Attributes, error: str = "") -> None:
        """A client's message was answered. `name` is that of the tool or prompt, or empty; `about` is changed."""
        about |= about_message(method, name)
        about |= {"network.transport": "tcp", "network.protocol.name": "http"}
        ids = context.span, context.parent
        self._over(context, (title_of(method, name), "server"), ids, context.began_ns, about, error)

    def call_over(
        self,
        context: TraceContext,
        span: bytes,
        message: tuple[str, str],
        seconds: float,
        about: Attributes,
        error: str,
    ) -> None:
        """A backend has answered: `message` is as method and name of `request_over`."""
        about |= about_message(*message)
        ids, began_ns = (span, context.span), time.time_ns() - int(seconds * 1e9)
        self._over(context, (title_of(*message), "client"), ids, began_ns, about, error)

    def opening_over(self, context: TraceContext, seconds: float, about: Attributes, error: str) -> None:
        """A session has got its process, or will not."""
        ids, began_ns = (new_span(), context.span), time.time_ns() - int(seconds * 1e9)
        self._over(context, ("get a process", "internal"), ids, began_ns, about, error)

    def hop_over(self, context: TraceContext, span: bytes, seconds: float, about: Attributes, error: str) -> None:
        """Another node has answered the request, or has not."""
        ids, began_ns = (span, context.parent), time.time_ns() - int(seconds * 1e9)
        self._over(context, ("forward", "client"), ids, began_ns, about, error)

    def _over(
        self,
        context: TraceContext,
        title: tuple[str, Kind],
        ids: tuple[bytes, bytes],
        began_ns: int,
        about: Attributes,
        error: str,
    ) -> None:
        (name, kind), ended_ns = title, time.time_ns()
        about["trunkline.request.id"] = context.request.decode("ascii")
        if error:
            about["error.type"] = error[:MAX_TEXT]
            if error.lstrip("-").isdigit():
                about["rpc.response.status_code"] = error
        linked = context.linked if kind == "server" else None
        state, flags = context.state, context.flags
        self._export(Span(name, kind, context.trace, *ids, state, flags, began_ns, ended_ns, about, error, linked))
