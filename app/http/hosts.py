"""HostPolicy: which Host and Origin headers may come in. The defence against DNS rebinding; always on."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from app.http.errors import HttpRefusal

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_REMEMBERED = 256


class HostPolicy:
    """Allow-lists. A host without a port allows every port; an origin is allowed by name or through its host."""

    def __init__(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._good_hosts: set[bytes] = set()

    def require_host(self, host: bytes | None) -> None:
        """Raises HttpRefusal (421) unless this Host is ours."""
        if host in self._good_hosts:
            return
        if host is None or not self._allows(host.decode("latin-1").lower()):
            raise HttpRefusal(421, "misdirected_request", "this Host is not served here")
        if len(self._good_hosts) < _REMEMBERED:
            self._good_hosts.add(host)

    def require_origin(self, origin: bytes) -> None:
        """Raises HttpRefusal (403) unless this Origin may call us."""
        text = origin.decode("latin-1").lower()
        if text in self._origins:
            return
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not self._allows(parts.netloc):
            raise HttpRefusal(403, "origin_not_allowed", "this Origin may not call the gateway")

    def _allows(self, host: str) -> bool:
        return host in self._hosts or _without_port(host) in self._hosts


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host
