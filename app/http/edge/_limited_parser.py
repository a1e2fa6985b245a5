"""LimitedParser: the parsing half of uvicorn's HTTP protocol, with limits. Differences:

1. Heads, URLs, trailers and empty lines between requests have limits, checked as they arrive.
2. Trailers are dropped; uvicorn would add them to the headers, which have been checked by then.
3. `Upgrade` (RFC 9110 §7.8) is ignored.
4. No request smuggling: the authority of an absolute target replaces Host (RFC 9112 §3.2.2), and the only transfer
   coding is chunked.
"""

import re
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.edge._refusals import (
    EMPTY_LINES,
    HEAD_TOO_LARGE,
    MALFORMED,
    NOT_IMPLEMENTED,
    TRAILERS_TOO_LARGE,
    URI_TOO_LONG,
    Refusal,
)  # fmt: skip
from app.http.edge.connections import PIECE_BYTES

MAX_HEAD_BYTES = 32 << 10
MAX_FIELDS = 100
MAX_URL_BYTES = 8 << 10
MAX_TRAILER_BYTES = 8 << 10  # also of chunk extensions and of empty lines
_SLASH = ord("/")
_NOTED = frozenset({b"expect", b"transfer-encoding"})
# A target in absolute form (RFC 9112 §3.2.2). Without userinfo, which could pass for another host (RFC 9110 §4.2.4);
# brackets only around a whole address (RFC 3986 §3.2.2).
_ABSOLUTE = re.compile(rb"https?://([^]/?#@[]+|\[[^]/?#@[]+](?::[0-9]*)?)(|[/?#].*)", re.IGNORECASE)


class Refused(Exception):
    """Ends the parsing from inside a callback. The reason is an attribute of the protocol, because an exception that is
    kept in a variable would keep its frames, and what was read in them, in a reference cycle."""


class LimitedParser(HttpToolsProtocol):
    """The base of `EdgeProtocol`, which handles the beginning and end of messages, and `Refused`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = b""
        self._in_head = self._in_body = False  # which part of a message is arriving
        self._piece_bytes = 0  # of the piece that is being parsed
        self._arrived_bytes = 0  # since the head began, or since the last bytes of a body
        self._trailer_bytes = 0
        self._refusal = MALFORMED  # why a `Refused` was raised

    def _hand_on(self) -> None:
        """Called after each piece at whose end a body goes on."""
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
        """The parser takes what follows a head with `Upgrade` for the other protocol. So a new parser reads the head
        again without this field, which alone makes the offer (RFC 9110 §7.8). Limits were checked the first time."""
        while start is not None:
            old, self.parser = self.parser, httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            version = old.get_http_version().encode("ascii")
            lines = [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
            head = [b"%b %b HTTP/%b" % (old.get_method(), self.url, version), *lines, b"", b""]
            self.parser.feed_data(b"\r\n".join(head))
            piece, start = piece[start:], None
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as offer:
                start = offer.args[0]

    def _stop_parsing(self, refusal: Refusal) -> NoReturn:
        self._refusal = refusal
        raise Refused

    def _refuse_what_does_not_end(self) -> None:
        """A head may have begun in the middle of a piece, so it is allowed one piece more until it is complete."""
        if self._in_head:
            if self._arrived_bytes > MAX_HEAD_BYTES + PIECE_BYTES or len(self.headers) > MAX_FIELDS:
                self._stop_parsing(HEAD_TOO_LARGE)
        elif self._in_body:
            self._stop_parsing(TRAILERS_TOO_LARGE)
        else:
            self._stop_parsing(EMPTY_LINES)  # nothing else can stand between requests

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > MAX_URL_BYTES:
            self._stop_parsing(URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._trailer_bytes += len(name) + len(value)
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                self._stop_parsing(TRAILERS_TOO_LARGE)
            return
        name = name.lower()
        if name in _NOTED:
            self._note(name, value)
        self.headers.append((name, value))

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"expect":
            self.expect_100_continue |= value.lower() == b"100-continue"
        elif (
            value.rstrip(b" ").lower() != b"chunked"
        ):  # only spaces: with others the parser takes it for another coding
            self._stop_parsing(NOT_IMPLEMENTED)
        elif self.parser.get_http_version() == "1.0":  # has no chunks: a proxy before us may have read it otherwise
            self._stop_parsing(MALFORMED)

    def _accept_head(self) -> bool:
        """At the end of a head; False if it will be read again without `Upgrade`."""
        if len(self.headers) > MAX_FIELDS:
            self._stop_parsing(HEAD_TOO_LARGE)
        if self._arrived_bytes > MAX_HEAD_BYTES:
            fields = sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
            if len(self.url) + fields > MAX_HEAD_BYTES:
                self._stop_parsing(HEAD_TOO_LARGE)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._stop_parsing(NOT_IMPLEMENTED)
            return False
        if self.url[0] != _SLASH:
            self._split_target()
        return True

    def _split_target(self) -> None:
        """A target in absolute form: its authority replaces Host, its path and query the target."""
        if self.url == b"*" and self.parser.get_method() == b"OPTIONS":
            return
        absolute = _ABSOLUTE.fullmatch(self.url)
        if absolute is None:
            self._stop_parsing(MALFORMED)
        authority, path = absolute.groups()
        self.url = path if path.startswith(b"/") else b"/" + path
        self.headers[:] = [(name, authority if name == b"host" else value) for name, value in self.headers]
