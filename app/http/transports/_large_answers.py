"""What is large is written piece by piece, each when the client has read those before it: so what a connection has to
write is never more than a piece, whatever the answer's size."""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence

from starlette.types import Send

from app.http.transports.request import JSON_TYPE, McpRequest
from app.protocol.commands import Answer

PIECE_BYTES = 128 << 10
RawHeaders = Iterable[tuple[bytes, bytes]]


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts, none of them longer than PIECE_BYTES."""
    for part in parts:
        if len(part) <= PIECE_BYTES:
            yield part
        else:
            yield from (part[start : start + PIECE_BYTES] for start in range(0, len(part), PIECE_BYTES))


def answer_with(request: McpRequest, status: int, outcome: Answer, headers: RawHeaders = ()) -> Awaitable[None]:
    """Sends the answer to a call, as JSON."""
    if outcome.large is None:
        return request.answer(status, outcome.payload(), headers)
    return _send_in_pieces(request.send, status, outcome.parts(), headers)


async def _send_in_pieces(send: Send, status: int, parts: Sequence[bytes], headers: RawHeaders) -> None:
    raw = [JSON_TYPE, (b"content-length", b"%d" % sum(map(len, parts))), *headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    for piece in pieces(parts):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)  # to a client that reads fast it never waits
    await send({"type": "http.response.body", "body": b""})
