"""The client's address: the peer of the connection, or what X-Forwarded-For says where the peer is a trusted proxy.

`Forwarded` (RFC 7239) is never read: a proxy writes one of the two headers and passes the other on as the client sent
it, so reading both would mean trusting clients.
"""

import ipaddress
from collections.abc import Iterable, Sequence

from starlette.types import Scope

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

UNKNOWN = "unknown"  # the peer has no address: a Unix socket
_SCHEMES = {b"http": "http", b"https": "https"}
_V6_CLIENT_BITS = 64  # one client usually has the whole /64


def client_address(scope: Scope) -> str:
    """The client's address; `HttpProtocol` has already resolved trusted proxies."""
    client = scope.get("client")
    return client[0] if client else UNKNOWN


def named_address(text: str) -> str:
    """The address in a header that another node wrote."""
    parsed = _parse(text)
    return UNKNOWN if parsed is None else str(parsed)


def limited_address(address: str) -> str:
    """The key for limits per address: an IPv4 address, or the /64 of an IPv6 address."""
    parsed = _parse(address)
    if parsed is None:
        return UNKNOWN
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _V6_CLIENT_BITS), strict=False))


def is_loopback(address: str) -> bool:
    parsed = _parse(address)
    return parsed is not None and parsed.is_loopback


class TrustedProxies:
    """The networks of TRUSTED_PROXIES."""

    def __init__(self, networks: Iterable[IpNetwork] = ()) -> None:
        self._networks = tuple(networks)

    def __contains__(self, address: str) -> bool:
        parsed = _parse(address) if self._networks else None
        return parsed is not None and self._has(parsed)

    def client_behind(self, proxy: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The right-most address in X-Forwarded-For that is not a trusted proxy; all to its left is the client's word.

        Where that is missing or malformed, the last proxy that is known.
        """
        found = proxy
        named = b",".join([value for name, value in headers if name == b"x-forwarded-for"])
        for word in reversed(named.split(b",") if named else []):
            parsed = _parse(_without_port(word.strip().decode("latin-1")))
            if parsed is None:
                break
            found = str(parsed)
            if not self._has(parsed):
                break
        return found

    def _has(self, address: IpAddress) -> bool:
        return any(address in network for network in self._networks)


def scheme_before(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """X-Forwarded-Proto of a trusted proxy; None where it is missing, unknown or repeated."""
    values = [value for name, value in headers if name == b"x-forwarded-proto"]
    return _SCHEMES.get(values[0].lower()) if len(values) == 1 else None


def _parse(text: str) -> IpAddress | None:
    """None where it is no address; an IPv4-mapped IPv6 address becomes IPv4."""
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if parsed.version == 6 else parsed


def _without_port(text: str) -> str:
    """Of `192.0.2.1:4711` and `[2001:db8::1]:4711`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
