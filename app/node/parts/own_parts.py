"""Where what belongs to the gateway is reached: itself, its database, its Redis. No backend is led there."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from app.settings.settings import Settings
from app.text.public_addresses import Address, parse_host

_PORTS = {
    "http": 80, "https": 443, "postgresql": 5432, "redis": 6379, "rediss": 6379, "redis+sentinel": 26379,
    "rediss+sentinel": 26379,
}  # fmt: skip
Part = tuple[Address | str, int]


def own_parts(settings: Settings) -> tuple[Part, ...]:
    """Hosts with ports. Of a Redis behind sentinels only these are known here."""
    found = set(_parts(settings.host, settings.port))
    for url in (settings.node_url, settings.database_url, settings.redis_url):
        found |= set(_of_url(url or ""))
    return tuple(sorted(found, key=str))


def _of_url(url: str) -> Iterator[Part]:
    """libpq takes several hosts, and takes hosts and ports from the query as well: each host counts at each port."""
    scheme, _, rest = url.partition("://")
    if scheme not in _PORTS:  # a file, or a Unix socket
        return
    query = parse_qs(urlsplit(url).query)
    hosts, ports = set[str](), set[str]()
    for each in rest.partition("?")[0].partition("/")[0].rpartition("@")[2].split(","):
        host, colon, port = each.rpartition(":") if each.rpartition(":")[2].isdigit() else (each, "", "")
        hosts.add(host)
        ports |= {port} if colon else set()
    for name, known in (("host", hosts), ("hostaddr", hosts), ("port", ports)):
        known |= {each for value in query.get(name, ()) for each in value.split(",")}
    for host in hosts:
        for port in ports or {str(_PORTS[scheme])}:
            yield from _parts(host, int(port) if port.isdigit() else _PORTS[scheme])


def _parts(host: str, port: int) -> Iterator[Part]:
    if not host or host.startswith(("/", "%2f", "%2F")):  # a directory of a Unix socket
        return
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    try:
        yield parse_host(bracketed), port
    except ValueError:  # nothing that a backend could name either
        return
