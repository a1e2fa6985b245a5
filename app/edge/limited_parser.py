"""LimitedParser: as much of uvicorn's HTTP protocol as parses, with limits. It differs in these:

1. A head, a URL and trailers have limits, which count what has arrived so far; so have empty lines between requests.
2. Trailers are dropped: uvicorn adds them to the headers, as if they had been checked with them.
3. Who offers another protocol (`Upgrade`, RFC 9110 §7.8) is served as if he had not.
4. Where a request goes, and where it ends, can be read in one way only: the authority of an absolute target takes the
   place of Host (RFC 9112 §3.2.2), and the only transfer coding is chunked.
"""

from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.edge.connections import PIECE_BYTES
from app.edge.heads import is_chunked, split_absolute, without_offer
from app.edge.refusals import (
    EMPTY_LINES,
    HEAD_TOO_LARGE,
    MALFORMED,
    NOT_IMPLEMENTED,
    TRAILERS_TOO_LARGE,
    URI_TOO_LONG,
    Refusal,
)  # fmt: skip

MAX_HEAD_BYTES = 32 << 10
MAX_FIELDS = 100
MAX_URL_BYTES = 8 << 10
MAX_TRAILER_BYTES = 8 << 10  # also of a chunk's extensions, and of empty lines
_SLASH = ord("/")
_NOTED = frozenset({b"expect", b"transfer-encoding"})


class Refused(Exception):
    """Leaves the parser, from inside a callback. Why stands in the protocol: whoever kept the exception in a variable
    would keep, in a circle, the frames that it has passed, and all that had been read in them."""


class LimitedParser(HttpToolsProtocol):
    """`EdgeProtocol` is what it is for, which says when a message begins and ends, and what becomes of a `Refused`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = b""
        self._in_head = self._in_body = False  # what of a message has begun to arrive, and has not ended
        self._piece_bytes = 0  # of the piece that is being parsed
        self._arrived_bytes = 0  # since a head began, or since there last was something of a body
        self._trailer_bytes = 0
        self._refusal = MALFORMED  # why a `Refused` was raised

    def _hand_on(self) -> None:
        """Called behind each piece in which a body has not ended."""
        raise NotImplementedError

    def _parse(self, piece: bytes | memoryview) -> None:
        self._piece_bytes = len(piece)
        self._arrived_bytes += self._piece_bytes
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as offer:
            self._parse_behind_offers(memoryview(piece), offer.args[0])
        if self._arrived_bytes > MAX_TRAILER_BYTES:
            self._refuse_what_does_not_end()
        if self._in_body:
            self._hand_on()

    def _parse_behind_offers(self, piece: memoryview, start: int | None) -> None:
        """The parser takes what is behind a head with an offer for the other protocol. So the head is read again, by a
        new parser and without the offer; what the old one has called in its course has let it pass."""
        while start is not None:
            old, self.parser = self.parser, httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.parser.feed_data(without_offer(old.get_method(), self.url, old.get_http_version(), self.headers))
            piece, start = piece[start:], None
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as offer:
                start = offer.args[0]

    def _stop_parsing(self, refusal: Refusal) -> NoReturn:
        self._refusal = refusal
        raise Refused

    def _refuse_what_does_not_end(self) -> None:
        """The piece in which a head began may have begun with something else, so it gets one piece more than it may
        have in the end."""
        if self._in_head:
            if self._arrived_bytes > MAX_HEAD_BYTES + PIECE_BYTES:
                self._stop_parsing(HEAD_TOO_LARGE)
        elif self._in_body:
            self._stop_parsing(TRAILERS_TOO_LARGE)
        else:
            self._stop_parsing(EMPTY_LINES)  # between requests there is nothing else

    def on_url(self, url: bytes) -> None:
        """Called with each piece of it."""
        self.url += url
        if len(self.url) > MAX_URL_BYTES:
            self._stop_parsing(URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Like uvicorn's, with a limit, and for the head only."""
        if not self._in_head:
            self._trailer_bytes += len(name) + len(value)
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                self._stop_parsing(TRAILERS_TOO_LARGE)
            return
        name = name.lower()
        if name in _NOTED:
            self._note(name, value)
        headers = self.headers
        headers.append((name, value))
        if len(headers) > MAX_FIELDS:
            self._stop_parsing(HEAD_TOO_LARGE)

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"expect":
            self.expect_100_continue |= value.lower() == b"100-continue"
        elif not is_chunked(value):
            self._stop_parsing(NOT_IMPLEMENTED)
        elif self.parser.get_http_version() == "1.0":  # which has no chunks: who has passed it on may not know them
            self._stop_parsing(MALFORMED)

    def _accept_head(self) -> bool:
        """At its end; False if it comes again without its offer."""
        if self._arrived_bytes > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES:
            self._stop_parsing(HEAD_TOO_LARGE)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._stop_parsing(NOT_IMPLEMENTED)
            return False
        if self.url[0] != _SLASH:
            self._obey_the_target()
        return True

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)

    def _obey_the_target(self) -> None:
        """What a target says that is no path: where the request goes."""
        if self.url == b"*" and self.parser.get_method() == b"OPTIONS":
            return
        absolute = split_absolute(self.url)
        if absolute is None:
            self._stop_parsing(MALFORMED)
        authority, self.url = absolute
        self.headers[:] = [(name, authority if name == b"host" else value) for name, value in self.headers]
