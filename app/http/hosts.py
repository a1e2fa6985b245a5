"""HostPolicy: which Host and Origin headers are accepted. The defence against DNS rebinding; always on."""

import ipaddress
from collections.abc import Iterable
from contextlib import suppress

from app.http.errors import HttpRefusal
from app.text.memo import memo

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_PORT_DIGITS = 5
_REMEMBERED = 256
_MAX_SHOWN, _MAX_SHOWN_NAMES = 200, 20


class _NotAllowed(HttpRefusal):
    """Its `facts`, for the log, are the header that was sent and the values that are allowed."""

    def __init__(
        self, status: int, reason: str, message: str, rule: str, expected: Iterable[str], sent: bytes | None
    ) -> None:
        super().__init__(status, reason, message)
        actual = None if sent is None else sent[:_MAX_SHOWN].decode("latin-1").encode("unicode_escape").decode()
        self.facts = {"rule": rule, "expected": sorted(expected)[:_MAX_SHOWN_NAMES], "actual": actual}


class HostPolicy:
    """Allow-lists. A host without a port allows every port; an origin is allowed by name or through its host."""

    def __init__(self, hosts: Iterable[str], origins: Iterable[str], node_url: str | None = None) -> None:
        """`node_url` is the URL of this node for the others; its host is accepted for /metrics."""
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._node_host = (node_url or "").partition("://")[2].lower()
        self._is_ours = memo(_REMEMBERED)(self._allows)

    def require_host(self, host: bytes | None) -> None:
        """Raises HttpRefusal (421) unless this Host is allowed."""
        if host is None or not self._is_ours(host):
            message = "this Host is not served here; TRUNKLINE_ALLOWED_HOSTS lists those that are"
            raise _NotAllowed(421, "misdirected_request", message, "host", self._hosts, host)

    def require_host_or_address(self, host: bytes | None) -> None:
        """As `require_host`, but an IP address or the host of `node_url` is accepted too.

        A web page that rebinds its own name to our address still sends that name, so an address is safe.
        """
        text = "" if host is None else host.decode("latin-1").lower()
        if not (_is_address(_without_port(text)) or (text and text == self._node_host)):
            self.require_host(host)

    def require_origin(self, origin: bytes) -> None:
        """Raises HttpRefusal (403) unless this Origin is allowed."""
        origin = origin.lower()
        scheme, _, host = origin.partition(b"://")
        is_listed = origin.decode("latin-1") in self._origins
        if not is_listed and (scheme not in (b"http", b"https") or not self._is_ours(host)):
            message = "this Origin may not call the gateway; TRUNKLINE_ALLOWED_ORIGINS lists those that may"
            known = {*self._origins, *self._hosts}
            # Not bound to a name here: a local variable would make a reference cycle of error, traceback and frame.
            raise _NotAllowed(403, "origin_not_allowed", message, "origin", known, origin)

    def _allows(self, host: bytes) -> bool:
        text = host.decode("latin-1").lower()
        return text in self._hosts or _without_port(text) in self._hosts


def _is_address(host: str) -> bool:
    """IPv4, or IPv6 in brackets."""
    is_bracketed = host.startswith("[") and host.endswith("]")
    with suppress(ValueError):
        return ipaddress.ip_address(host[1:-1] if is_bracketed else host).version == (6 if is_bracketed else 4)
    return False


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS else host
