"""Sends an EventStream as a long-lived HTTP response, through sse-starlette."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import Gauge
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus, SendTimeoutError

from app.protocol.commands import Failed
from app.protocol.sse import FIRST_BYTE, encode_message
from app.sessions.streams import EventStream
from app.transports.request import McpRequest

STALLED_S = 30.0  # a client that accepts nothing for this long loses its stream

log = logging.getLogger(__name__)
# The drain ends streams itself, after the calls on them.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream is sent. The first byte goes out at once, and a comment every `keepalive_s`: proxies cut a
    silent stream. `gauge` counts the open streams of its kind."""

    gauge: Gauge
    keepalive_s: float
    first: bytes = FIRST_BYTE
    headers: Mapping[str, str] = field(default_factory=dict)


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep="\n")


async def send_events(
    request: McpRequest,
    stream: EventStream,
    options: StreamOptions,
    on_left: Callable[[], None],
) -> None:
    """Answers with the stream until it ends or the client leaves; `on_left` is called once, either way."""

    async def events() -> AsyncGenerator[bytes, None]:
        yield options.first
        while (item := await stream.next()) is not None:
            yield encode_message(_message(request, item))

    response = EventSourceResponse(
        events(),
        headers={"Cache-Control": "no-cache, no-transform", **options.headers},
        ping=options.keepalive_s,
        ping_message_factory=_keep_alive,
        sep="\n",
        send_timeout=STALLED_S,
    )
    options.gauge.inc()
    try:
        await response(request.scope, request.receive, request.send)
    except SendTimeoutError:
        log.warning("a client accepted nothing for %.0f s; its stream was closed", STALLED_S)
    finally:
        options.gauge.dec()
        on_left()


def _message(request: McpRequest, item: bytes | Failed) -> bytes:
    return item if isinstance(item, bytes) else request.error_body(item.error, item.call.id)
