"""Traces of this node: off without OTLP_ENDPOINT."""

import importlib
import logging
from contextlib import AsyncExitStack

from app import __version__
from app.settings.settings import Settings
from app.telemetry.metrics import Metrics
from app.telemetry.tracing.exporter import SpanExporter
from app.telemetry.tracing.tracer import Tracer

log = logging.getLogger(__name__)


def open_tracing(stack: AsyncExitStack, settings: Settings, metrics: Metrics, node_id: str) -> Tracer | None:
    """Starts the thread that sends spans, which the stack ends."""
    if settings.otlp_endpoint is None:
        return None
    # Only here: the extra need not be installed, and takes a tenth of a second to import.
    encoder = importlib.import_module("app.telemetry.tracing.otlp").Encoder(__version__, node_id)
    headers, count = dict(settings.otlp_headers), metrics.trace_spans
    exporter = SpanExporter(settings.otlp_endpoint, headers, encoder, count.labels)
    exporter.start()
    stack.push_async_callback(exporter.aclose)
    share = {"collector": settings.otlp_endpoint, "sample": settings.trace_sample}
    log.info("Traces are sent to a collector", extra=share)
    return Tracer(settings.trace_sample, exporter.add)
