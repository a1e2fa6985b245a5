"""What is large is written piece by piece, each when the client has read those before it: so what a connection has to
write is never more than a piece, whatever the answer's size."""

import asyncio
from collections.abc import Iterable, Iterator

from starlette.types import Send

from app.protocol.commands import Answer

PIECE_BYTES = 128 << 10
RawHeaders = list[tuple[bytes, bytes]]


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts, none of them longer than PIECE_BYTES."""
    for part in parts:
        if len(part) <= PIECE_BYTES:
            yield part
        else:
            yield from (part[start : start + PIECE_BYTES] for start in range(0, len(part), PIECE_BYTES))


async def send_in_pieces(send: Send, status: int, outcome: Answer, headers: RawHeaders) -> None:
    """The answer as a body of JSON."""
    parts = outcome.parts()
    raw = [*headers, (b"content-length", b"%d" % sum(map(len, parts)))]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    for piece in pieces(parts):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)  # to a client that reads fast it never waits
    await send({"type": "http.response.body", "body": b""})
