"""Which client a request comes from: the other end of the connection, or, where that is a proxy of ours, whom the
proxy names in X-Forwarded-For. From anybody else forwarded headers are words of a stranger, and are not read.

`Forwarded` (RFC 7239) is not read at all: a proxy writes one of the two and passes the other on as the client sent it,
so whoever reads both believes clients.
"""

import ipaddress
from collections.abc import Iterable, Sequence

from starlette.types import Scope

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

UNKNOWN = "unknown"  # a connection without an address, like that of a Unix socket
_SCHEMES = {b"http": "http", b"https": "https"}
_V6_CLIENT_BITS = 64  # who has one address of IPv6 has the network around it


def client_address(scope: Scope) -> str:
    """The client's address, for logs. `HttpProtocol` has put there whom a trusted proxy names."""
    client = scope.get("client")
    return client[0] if client else UNKNOWN


def named_address(text: str) -> str:
    """The address that this is, as another node of ours writes it."""
    parsed = _parse(text)
    return UNKNOWN if parsed is None else str(parsed)


def limited_address(address: str) -> str:
    """What limits per address count: an IPv4 address, or the /64 of an IPv6 address."""
    parsed = _parse(address)
    if parsed is None:
        return UNKNOWN
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _V6_CLIENT_BITS), strict=False))


def is_loopback(address: str) -> bool:
    """Whether it is this machine's own."""
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
        """Who asked this proxy: the right-most address in X-Forwarded-For that is no proxy of ours.

        What stands left of it was written by that client itself. Where the proxies name nobody, or something that is
        no address, it is the last proxy that could be told.
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
    """What the client speaks with a trusted proxy; None where it does not say, or says it twice."""
    values = [value for name, value in headers if name == b"x-forwarded-proto"]
    return _SCHEMES.get(values[0].lower()) if len(values) == 1 else None


def _parse(text: str) -> IpAddress | None:
    """The address; one of IPv4 that came through a socket of IPv6 is itself again."""
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if parsed.version == 6 else parsed


def _without_port(text: str) -> str:
    """`192.0.2.1:4711` and `[2001:db8::1]:4711` are common."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
