"""Frames, which are what nodes say to each other, and the records that carry them over a link. Pure.

A record is its length, a MAC and some frames; the MAC covers how many records came before, so none can be left out,
repeated or put elsewhere. A frame is a kind, the number of a stream (one request and its answer) and a payload. A
stream's body comes in frames of at most CHUNK_BYTES, as many as its reader has room for: WINDOW_BYTES, and then what
CREDIT frames add.
"""

import hmac
import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from app.domain import Principal
from app.memo import memo

# Kinds. END is added to the kind of a stream's last frame in its direction.
REQUEST, RESPONSE, DATA, CREDIT, CANCEL, LEAVING = range(1, 7)
END = 0x80

CHUNK_BYTES = 64 << 10  # a frame with more would keep the others on the link waiting
WINDOW_BYTES = 64 << 10  # of an answer that nobody takes
MAX_HEAD_BYTES = 256 << 10  # of a request or an answer, less its body
MAX_RECORD_BYTES = 512 << 10  # so much is kept of one whose MAC is not checked yet
REMEMBERED, REMEMBERED_BYTES = 4096, 2 << 10  # heads: those of a session are nearly all alike. Longer ones are not kept

_FRAME, _RECORD, _COUNT = Struct(">BQI"), Struct(">I16s"), Struct(">Q")
_TAG_BYTES = 16

RawHeaders = tuple[tuple[bytes, bytes], ...]


class LinkBroken(Exception):
    """What came over a link is not what a node has sent on it."""


class Frame(NamedTuple):
    """One frame. `kind` is without END."""

    kind: int
    stream: int
    payload: bytes
    is_end: bool


class RequestHead(NamedTuple):
    """Who asks for what, in the word of the node that sends it on. `base_url` is what the client calls us."""

    method: str
    target: bytes
    base_url: str
    principal: Principal
    headers: Sequence[tuple[bytes, bytes]]


def encode_frame(kind: int, stream: int, payload: bytes) -> bytes:
    """The frame as it stands in a record."""
    return _FRAME.pack(kind, stream, len(payload)) + payload


class RecordWriter:
    """One direction of a link: makes records."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def record(self, frames: bytes) -> bytes:
        """A record of frames that were encoded; not more than MAX_RECORD_BYTES of them."""
        tag = _tag(self._key, self._count, frames)
        self._count += 1
        return _RECORD.pack(len(frames), tag) + frames


class RecordReader:
    """The same direction at the other end."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0
        self._rest = bytearray()  # the beginning of a record

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames of the records that are complete by now.

        Raises:
            LinkBroken: it is no record of the other node's, or not its next one.
        """
        unread: bytes | bytearray = data
        if self._rest:
            self._rest += data
            unread = self._rest
        at = 0
        while (end := _end_of_record(unread, at)) is not None:
            frames = bytes(unread[at + _RECORD.size : end])
            tag = bytes(unread[at + _RECORD.size - _TAG_BYTES : at + _RECORD.size])
            if not hmac.compare_digest(tag, _tag(self._key, self._count, frames)):
                raise LinkBroken
            self._count += 1
            at = end
            yield from _frames(frames)
        if unread is self._rest:
            del self._rest[:at]
        else:
            self._rest += data[at:]

    def __repr__(self) -> str:
        return f"<RecordReader [{self._count} records, {len(self._rest)} bytes of the next]>"


def encode_request(head: RequestHead, body: bytes) -> bytes:
    """The payload of a REQUEST. Raises ValueError where something in it would be read as something else."""
    lines = [
        b"%b %b %b" % (head.method.encode("ascii"), head.target, head.base_url.encode("ascii")),
        _encode_principal(head.principal),
        *[b"%b:%b" % header for header in head.headers],
    ]
    return _encode_lines(lines, body)


def decode_request(payload: bytes) -> tuple[RequestHead, bytes]:
    """What `encode_request` was given. Only for what another node has sent: it is not checked."""
    head, _, body = payload.partition(b"\n\n")
    return (_remembered_request(head) if len(head) <= REMEMBERED_BYTES else _decode_request(head)), body


def encode_response(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The payload of a RESPONSE, to which the first part of the body may be added. Raises ValueError as
    `encode_request`."""
    return _encode_lines([b"%d" % status, *[b"%b:%b" % header for header in headers]], b"")


def decode_response(payload: bytes) -> tuple[int, RawHeaders, bytes]:
    """What `encode_response` was given, and what was added."""
    head, _, body = payload.partition(b"\n\n")
    status, headers = (_remembered_response if len(head) <= REMEMBERED_BYTES else _decode_response)(head)
    return status, headers, body


def encode_number(number: int) -> bytes:
    """The payload of a CREDIT, in bytes, or of LEAVING: the last stream that is answered."""
    return _COUNT.pack(number)


def decode_number(payload: bytes) -> int:
    """What `encode_number` was given."""
    number: int
    (number,) = _COUNT.unpack(payload)
    return number


def chunks(body: bytes) -> Iterator[bytes]:
    """The body in parts that fit into frames."""
    for at in range(0, len(body), CHUNK_BYTES):
        yield body[at : at + CHUNK_BYTES]


def _encode_lines(lines: list[bytes], body: bytes) -> bytes:
    head = b"\n".join(lines)
    # What came in through a parser has no line breaks; one that got in elsewhere would be a second header.
    if head.count(b"\n") != len(lines) - 1 or head.count(b" ", 0, len(lines[0])) > 2:
        raise ValueError("a line break or a blank in the head of a request to another node")
    return b"%b\n\n%b" % (head, body)


def _decode_request(head: bytes) -> RequestHead:
    first, principal, *headers = head.split(b"\n")
    method, target, base_url = first.split(b" ")
    return RequestHead(
        method.decode("ascii"), target, base_url.decode("ascii"), _decode_principal(principal), _headers(headers)
    )


def _decode_response(head: bytes) -> tuple[int, RawHeaders]:
    status, *headers = head.split(b"\n")
    return int(status), _headers(headers)


_remembered_request = memo(REMEMBERED)(_decode_request)
_remembered_response = memo(REMEMBERED)(_decode_response)


def _headers(lines: list[bytes]) -> RawHeaders:
    return tuple((name, value) for name, _, value in (line.partition(b":") for line in lines))


def _encode_principal(principal: Principal) -> bytes:
    return json.dumps([*principal.identity, principal.expires_at, *principal.scopes]).encode()


@memo(REMEMBERED)
def _decode_principal(encoded: bytes) -> Principal:
    tenant, issuer, subject, expires_at, *scopes = json.loads(encoded)
    return Principal(tenant, issuer, subject, frozenset(scopes), expires_at)


def _end_of_record(data: bytes | bytearray, at: int) -> int | None:
    if len(data) - at < _RECORD.size:
        return None
    length: int = _RECORD.unpack_from(data, at)[0]
    if length > MAX_RECORD_BYTES:
        raise LinkBroken
    end = at + _RECORD.size + length
    return end if end <= len(data) else None


def _frames(record: bytes) -> Iterator[Frame]:
    """What is in a record whose MAC is right: a node has made it."""
    at = 0
    while at < len(record):
        kind, stream, length = _FRAME.unpack_from(record, at)
        begin = at + _FRAME.size
        at = begin + length
        yield Frame(kind & ~END, stream, record[begin:at], kind >= END)


def _tag(key: bytes, count: int, frames: bytes) -> bytes:
    """BLAKE2b with a key is a MAC (RFC 7693), and for short records half the price of HMAC-SHA-256."""
    return blake2b(_COUNT.pack(count) + frames, key=key, digest_size=_TAG_BYTES).digest()
