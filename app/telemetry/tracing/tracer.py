"""Tracer: which requests are recorded, what a span says, and where spans go."""

import time
from collections.abc import Callable

from app.telemetry.tracing.context import Own, Parent, TraceContext, new_span
from app.telemetry.tracing.spans import MAX_TEXT, Attributes, Kind, Span, about_message, title_of


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

    def request_over(
        self,
        context: TraceContext,
        method: str,
        name: str,
        about: Attributes,
        error: str = "",
        *,
        part: bytes = b"",
    ) -> None:
        """A client's message was answered. `name` is that of the tool or prompt, or empty; `about` is changed. `part`:
        the span of one message of a batch, below that of the request."""
        about |= about_message(method, name)
        about |= {"network.transport": "tcp", "network.protocol.name": "http"}
        ids = (part, context.span) if part else (context.span, context.parent)
        self._over(context, (title_of(method, name), "server"), ids, context.began_ns, about, error)

    def call_over(
        self,
        context: TraceContext,
        ids: tuple[bytes, bytes],
        message: tuple[str, str],
        seconds: float,
        about: Attributes,
        error: str,
    ) -> None:
        """A backend has answered: `message` is as method and name of `request_over`, `ids` are the span and its
        parent."""
        about |= about_message(*message)
        began_ns = time.time_ns() - int(seconds * 1e9)
        self._over(context, (title_of(*message), "client"), ids, began_ns, about, error)

    def opening_over(self, context: TraceContext, span: bytes, seconds: float, about: Attributes, error: str) -> None:
        """A session has got its process, or will not."""
        ids, began_ns = (span, context.span), time.time_ns() - int(seconds * 1e9)
        self._over(context, ("get a process", "internal"), ids, began_ns, about, error)

    def part_over(
        self, context: TraceContext, name: str, between: tuple[float, float], about: Attributes, error: str = ""
    ) -> None:
        """Something of ours was done for the request, between these moments of Unix time."""
        ids = new_span(), context.within or context.span
        began, ended = between
        self._over(context, (name, "internal"), ids, (int(began * 1e9), int(ended * 1e9)), about, error)

    def hop_over(self, context: TraceContext, span: bytes, seconds: float, about: Attributes, error: str) -> None:
        """Another node has answered the request, or has not."""
        ids, began_ns = (span, context.parent), time.time_ns() - int(seconds * 1e9)
        self._over(context, ("forward", "client"), ids, began_ns, about, error)

    def _over(
        self,
        context: TraceContext,
        title: tuple[str, Kind],
        ids: tuple[bytes, bytes],
        began_ns: int | tuple[int, int],
        about: Attributes,
        error: str,
    ) -> None:
        """From `began_ns` until now; or between both."""
        (name, kind), between = title, (began_ns, time.time_ns()) if isinstance(began_ns, int) else began_ns
        about["trunkline.request.id"] = context.request.decode("ascii")
        if error:
            about["error.type"] = error[:MAX_TEXT]
            if error.lstrip("-").isdigit():
                about["rpc.response.status_code"] = error
        is_part = kind == "server" and ids[0] != context.span
        linked = context.linked if kind == "server" and not is_part else None
        state, flags = context.state, context.flags
        of = name, kind, context.trace, *ids, state, flags, *between, about, error, linked, is_part
        self._export(Span(*of))
