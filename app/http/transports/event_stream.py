"""Sends an EventStream as a long-lived HTTP response, through sse-starlette."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Gauge
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus, SendTimeoutError
from starlette.types import Send

from app.concurrency.loop_share import LoopShare, charged
from app.http.transports.request import McpRequest, pieces
from app.protocol.commands import Answer, Failed
from app.protocol.sse_format import FIRST_BYTE, encode_message, encode_parts, encode_retry
from app.sessions.streams.resumption import Reader
from app.sessions.streams.streams import EventStream

EVENTS_A_TURN = 16  # of the loop: what is queued is there without waiting, and so may be the client's room for it
STALLED_S = 30.0  # a client that reads nothing for this long loses its stream

log = logging.getLogger(__name__)
# Our drain ends streams itself, once the calls on them are answered.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """`first` is sent at once and a comment every `keepalive_s`, because proxies cut silent streams. `gauge` counts
    open streams. A `primed` client understands events without data."""

    gauge: Gauge
    keepalive_s: float
    first: bytes = FIRST_BYTE
    primed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


class _ChargedResponse(EventSourceResponse):
    """Charges what an event costs on all of its way, from its stream to the transport."""

    def __init__(self, share: LoopShare, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._share = share

    async def _stream_response(self, send: Send) -> None:
        await charged(super()._stream_response(send), self._share.took)


async def send_events(
    request: McpRequest,
    source: EventStream | Reader,
    options: StreamOptions,
    on_left: Callable[[], None],
    on_expired: Callable[[], None],
) -> None:
    """Answers with the messages until they end or the client disconnects; then calls `on_left`.

    What that costs is charged to the tenant, and waits for its turn. `on_expired` is called when the credential of the
    request expires, and must end the source.
    """
    share = LoopShare(request.shares, request.tenant)
    is_within_event = False

    def keep_alive() -> ServerSentEvent | bytes:
        """Nothing between the pieces of an event, which it would break."""
        return b"" if is_within_event else ServerSentEvent(comment="keep-alive", sep="\n")

    async def events() -> AsyncGenerator[bytes, None]:
        nonlocal is_within_event
        yield options.first
        count = 0
        while (item := await source.next()) is not None:
            if isinstance(item, Answer):
                is_within_event = True
                for piece in pieces(encode_parts(item.parts(), source.event_id)):
                    yield piece
                is_within_event = False
            else:
                yield encode_message(_message(request, item), source.event_id)
            count += 1
            if count % EVENTS_A_TURN == 0:
                await asyncio.sleep(0)
            await share.turn()
        if source.retry_ms is not None:
            yield encode_retry(source.retry_ms, source.event_id if options.primed else None)

    response = _ChargedResponse(
        share,
        events(),
        headers={"Cache-Control": "no-cache, no-transform", **options.headers},
        ping=options.keepalive_s,
        ping_message_factory=keep_alive,
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
