"""The body of a request to a collector: spans as OTLP. Imported only where traces are on: it needs the extra `otel`.

Of the SDK only values and their encoder are used. Its own tracers, samplers and exporters cost several times as much on
the message path, and read settings of their own from the environment.
"""

import re
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from app.telemetry.tracing.spans import Span
from app.text.memo import memo

_KINDS: Final = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_FINE, _WRONG = Status(StatusCode.UNSET), StatusCode.ERROR

# https://www.w3.org/TR/trace-context/#list
_MAX_MEMBERS = 32
_member = re.compile(
    r"([a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
).fullmatch


class Encoder:
    """Of one node, which all its spans name."""

    def __init__(self, version: str, node_id: str) -> None:
        self._scope = InstrumentationScope("trunkline", version)
        self._resource = Resource({
            "service.name": "trunkline", "service.version": version, "service.instance.id": node_id,
        })  # fmt: skip

    def __call__(self, spans: Sequence[Span]) -> bytes:
        """An ExportTraceServiceRequest."""
        body: bytes = encode_spans([self._readable(each) for each in spans]).SerializeToString()
        return body

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace, span.span, span, is_remote=False),
            parent=_context(span.trace, span.parent, span, is_remote=_is_remote(span)) if span.parent else None,
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(_context(*span.linked, span, is_remote=True))] if span.linked else (),
            kind=_KINDS[span.kind],
            instrumentation_scope=self._scope,
            status=Status(_WRONG) if span.error else _FINE,
            start_time=span.began_ns,
            end_time=span.ended_ns,
        )


def _is_remote(span: Span) -> bool:
    return span.kind == "server" and not span.is_parent_ours


def _context(trace: bytes, span: bytes, of: Span, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote, TraceFlags(int(of.flags, 16)), _state(of.state))


@memo(64)  # a span has up to three contexts, all with the same one
def _state(header: bytes) -> TraceState | None:
    """None if it is malformed. TraceState would log that for each context of each span: a client could fill the log."""
    members = [each.strip(" \t") for each in header.decode("ascii").split(",")]
    pairs = [found.groups() for each in members if each and (found := _member(each)) is not None]
    is_whole = len(pairs) == sum(map(bool, members)) == len({name for name, _ in pairs}) <= _MAX_MEMBERS
    return TraceState([(name, value) for name, value in pairs]) if is_whole else None
