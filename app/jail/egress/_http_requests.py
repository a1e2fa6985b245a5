"""The heads of requests to an HTTP proxy: CONNECT, and plain HTTP with an absolute URL. Pure.

Of plain HTTP each connection carries one request: what follows it could be for another host.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from app.jail.egress.refusals import Reason, Refused
from app.text.public_addresses import Address, split_authority

_request_line = re.compile(rb"([A-Z]{3,16}) ([!-~]+) HTTP/1\.([01])").fullmatch
_field = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*((?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)[ \t]*").fullmatch
_absolute = re.compile(r"http://([^/?#]+)(/[^#]*|\?[^#]*)?", re.IGNORECASE).fullmatch
_length = re.compile(rb"[0-9]{1,18}").fullmatch

# Of this connection, not of the request (RFC 9110, 7.6.1).
_OF_THE_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"upgrade", b"host",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`head` is what the destination gets, and `body_bytes` follow it. A tunnel has none: None."""

    host: Address | str
    port: int
    head: bytes | None = None
    body_bytes: int = 0


class _Field(NamedTuple):
    name: bytes  # in lower case
    line: bytes
    value: bytes


def parse(head: bytes) -> HttpRequest:
    """The request with this head, which includes the empty line.

    Raises:
        Refused: it cannot be forwarded.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _request_line(first)
    if match is None:
        raise Refused(Reason.MALFORMED, "it is not a request to an HTTP proxy")
    method, target, minor = match[1], match[2].decode(), match[3]
    fields = [_parse_field(line) for line in lines]
    if method == b"CONNECT":
        host, port = _authority(target)
        if port is None:
            raise Refused(Reason.MALFORMED, "CONNECT needs host and port")
        return HttpRequest(host, port)
    return _plain(b"%s %%s HTTP/1.%s" % (method, minor), target, fields)


def _plain(line: bytes, url: str, fields: list[_Field]) -> HttpRequest:
    match = _absolute(url)
    if match is None:
        raise Refused(Reason.MALFORMED, "the URL must begin with http://; https needs CONNECT")
    host, port = _authority(match[1])
    path = match[2] or "/"
    if not path.startswith("/"):
        path = f"/{path}"
    named = {
        each.strip().lower() for field in fields if field.name == b"connection" for each in field.value.split(b",")
    }
    kept = [field.line for field in fields if field.name not in _OF_THE_HOP and field.name not in named]
    head = b"\r\n".join(
        [line % path.encode(), b"Host: " + match[1].encode(), *kept, b"Connection: close", b"", b""],
    )
    return HttpRequest(host, port or 80, head, _body_bytes(fields))


def _authority(text: str) -> tuple[Address | str, int | None]:
    try:
        return split_authority(text)
    except ValueError as error:
        raise Refused(Reason.MALFORMED, str(error)) from None


def _parse_field(line: bytes) -> _Field:
    match = _field(line)
    if match is None:
        raise Refused(Reason.MALFORMED, "a header field is malformed")
    return _Field(match[1].lower(), line, match[2])


def _body_bytes(fields: list[_Field]) -> int:
    if any(field.name == b"transfer-encoding" for field in fields):
        raise Refused(Reason.LENGTH, "a body without a length cannot be forwarded")
    lengths = [field.value for field in fields if field.name == b"content-length"]
    if not lengths:
        return 0
    if len(lengths) > 1 or _length(lengths[0]) is None:
        raise Refused(Reason.MALFORMED, "Content-Length must be one number")
    return int(lengths[0])
