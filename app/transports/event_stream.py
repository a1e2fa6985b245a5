"""Sends an EventStream as a long-lived HTTP response, through sse-starlette."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import Gauge
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus, SendTimeoutError

from app.protocol.commands import Failed
from app.protocol.sse import FIRST_BYTE, encode_message, encode_retry
from app.streams.streams import Item
from app.transports.request import McpRequest

STALLED_S = 30.0  # a client that accepts nothing for this long loses its stream

log = logging.getLogger(__name__)
# The drain ends streams itself, after the calls on them.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class Source(Protocol):
    """What is sent: an EventStream, or a Reader of one that can be resumed."""

    @property
    def event_id(self) -> bytes | None:
        """The id of the message that `next` gave last; None where messages have none."""

    @property
    def retry_ms(self) -> int | None:
        """After the end: when the client should come back, where we have ended the response on purpose."""

    async def next(self) -> Item | None:
        """The next message; None at the end of the response."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream is sent. The first byte goes out at once, and a comment every `keepalive_s`: proxies cut a
    silent stream. `gauge` counts the open streams of its kind. A `primed` client understands events without data."""

    gauge: Gauge
    keepalive_s: float
    first: bytes = FIRST_BYTE
    primed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep="\n")


async def send_events(
    request: McpRequest,
    source: Source,
    options: StreamOptions,
    on_left: Callable[[], None],
    on_expired: Callable[[], None],
) -> None:
    """Answers with the messages until they end or the client leaves; `on_left` is called once, either way.

    `on_expired` is called when the credential expires that the stream was asked for with: it ends the source.
    """

    async def events() -> AsyncGenerator[bytes, None]:
        yield options.first
        while (item := await source.next()) is not None:
            yield encode_message(_message(request, item), source.event_id)
        if source.retry_ms is not None:
            yield encode_retry(source.retry_ms, source.event_id if options.primed else None)

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
        with request.while_credential_lasts(on_expired):
            await response(request.scope, request.receive, request.send)
    except SendTimeoutError:
        log.warning("Client read nothing for %.0f s; closed its stream", STALLED_S)
    finally:
        options.gauge.dec()
        on_left()


def _message(request: McpRequest, item: bytes | Failed) -> bytes:
    return item if isinstance(item, bytes) else request.error_body(item.error, item.call.id)
