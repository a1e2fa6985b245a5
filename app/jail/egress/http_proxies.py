"""What an HTTP proxy is asked for, and what it says. Pure."""

import base64
import re

from app import __version__

MAX_ANSWER_BYTES = 64 << 10  # of the head in which it says whether there is a tunnel
_STATUS = re.compile(rb"HTTP/1\.[01] (?P<status>[1-5][0-9]{2})(?: (?P<words>[\x20-\x7e]{0,80}))?")


def credentials(login: str | None) -> list[tuple[bytes, bytes]]:
    """The header for the proxy alone; `login`: NAME:PASSWORD."""
    if login is None:
        return []
    return [(b"Proxy-Authorization", b"Basic " + base64.b64encode(login.encode()))]


def tunnel_request(destination: str, login: str | None) -> bytes:
    """Asks for a tunnel to HOST:PORT."""
    head = [(b"Host", destination.encode()), (b"User-Agent", f"trunkline/{__version__}".encode())]
    lines = [b"%b: %b\r\n" % each for each in [*head, *credentials(login)]]
    return b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (destination.encode(), b"".join(lines))


def forwarded_request(head: bytes, login: str | None) -> bytes:
    """A request of plain HTTP to a server, as `_http_requests.parse` makes it, for a proxy that passes it on there."""
    line, host, rest = head.split(b"\r\n", 2)
    method, path, version = line.split(b" ")
    lines = b"".join(b"%b: %b\r\n" % each for each in credentials(login))
    url = b"http://%b%b" % (host.removeprefix(b"Host: "), path)
    return b"%b %b %b\r\n%b\r\n%b%b" % (method, url, version, host, lines, rest)


def answer_of(head: bytes) -> tuple[int, str] | None:
    """The status, and how the proxy puts it, like "HTTP 403 Forbidden"; None: it answers as no HTTP proxy does."""
    found = _STATUS.match(head)
    if found is None:
        return None
    return int(found["status"]), f"HTTP {int(found['status'])} {(found['words'] or b'').decode().strip()}".rstrip()
