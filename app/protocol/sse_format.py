"""Encodes server-sent events. One event is one message, and no text in it can forge another event."""

from collections.abc import Iterator, Sequence

from app.protocol.jsonrpc import on_one_line

FIRST_BYTE = b": open\n\n"  # a comment: proxies hold the head back until the first byte of the body


def encode_message(message: bytes, event_id: bytes | None = None) -> bytes:
    """One JSON-RPC message as an event of type `message`."""
    if event_id is None:
        return b"event: message\ndata: %b\n\n" % one_line(message)
    return b"event: message\nid: %b\ndata: %b\n\n" % (event_id, one_line(message))


def encode_parts(parts: Sequence[bytes], event_id: bytes | None = None) -> Iterator[bytes]:
    """The same of a message in parts, without a copy of the large ones."""
    yield b"event: message\ndata: " if event_id is None else b"event: message\nid: %b\ndata: " % event_id
    yield from map(one_line, parts)
    yield b"\n\n"


def encode_primer(event_id: bytes) -> bytes:
    """An event without data, from which the stream can be resumed (2025-11-25, basic/transports)."""
    return b"id: %b\ndata: \n\n" % event_id


def encode_retry(milliseconds: int, event_id: bytes | None) -> bytes:
    """The end of a response whose stream goes on: when to reconnect, and from which event. Without an id it is a field
    outside any event: clients older than 2025-11-25 take every event for a message."""
    if event_id is None:
        return b"retry: %d\n" % milliseconds
    return b"id: %b\nretry: %d\ndata: \n\n" % (event_id, milliseconds)


def encode_endpoint(path: str) -> bytes:
    """The first event of an HTTP+SSE stream (2024-11-05): the path to POST to."""
    return b"event: endpoint\ndata: %b\n\n" % path.encode("ascii")


def one_line(message: bytes) -> bytes:
    """The same JSON without anything that a reader might take for the end of a line: some also split at U+2028, U+2029
    and U+0085, which can only stand in strings and are escaped there."""
    if b"\r" in message or b"\n" in message:
        message = on_one_line(message)
    if not message.isascii():
        message = message.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
        message = message.replace(b"\xc2\x85", b"\\u0085")
    return message
