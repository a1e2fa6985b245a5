"""Which hosts and ports the registration of a backend names: in URLs, in arguments as HOST:PORT, or in variables; and
which its program says that it cannot resolve. Pure.

Values of variables may be secret: of these only hosts of URLs count, and what a name says is a host.
"""

import re
from collections.abc import Iterator, Sequence

from app.domain import BackendSpec

# Ports of schemes, and of variables by how their names begin.
_PORTS = {
    "postgres": 5432, "postgresql": 5432, "mysql": 3306, "mariadb": 3306, "redis": 6379, "rediss": 6379,
    "mongodb": 27017, "amqp": 5672, "amqps": 5671, "mssql": 1433, "sqlserver": 1433, "clickhouse": 8123, "ldap": 389,
    "ldaps": 636, "smtp": 25, "smtps": 465, "imap": 143, "imaps": 993, "bolt": 7687, "neo4j": 7687, "nats": 4222,
    "ftp": 21, "ssh": 22, "ws": 80, "wss": 443, "http": 80, "https": 443,
}  # fmt: skip
_OF_VARIABLES = {"PG": 5432, "POSTGRES": 5432, "MYSQL": 3306, "MARIADB": 3306, "REDIS": 6379, "MONGO": 27017}

# Bounded: a registration has 64 KiB of what somebody wrote.
_host = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:]{2,39}\])"
_url = re.compile(
    r"(?<![A-Za-z0-9+])(?P<scheme>[a-z][a-z0-9]{1,19})(?:\+[a-z0-9]{1,19})?://(?:[^/\s@]{0,256}@)?"
    rf"{_host}(?::(?P<port>[0-9]{{1,5}}))?(?![^\s]*@)"  # else it is a user, and perhaps a password
).finditer
_alone = re.compile(rf"(?:.*=)?{_host}:(?P<port>[0-9]{{2,5}})").fullmatch
_is_host = re.compile(_host).fullmatch
# As Node, urllib3 of Python, and Go say it.
_unresolved = re.compile(
    rf"(?:getaddrinfo E[A-Z_]{{4,10}} |Failed to resolve '|\blookup ){_host}(?:[' :]|$)"
    r"(?:[^\s:]{0,253}:(?P<port>[0-9]{2,5}))?"
).finditer


def destinations_in(spec: BackendSpec) -> Iterator[str]:
    """As `sandbox.network.allow` has them, as far as they look like some: names in lower case."""
    for text in (*spec.args, *spec.env.values()):
        for match in _url(text):
            port = match["port"] or _PORTS.get(match["scheme"])
            if port is not None:
                yield f"{match['host'].lower()}:{int(port)}"
    for text in spec.args:
        alone = _alone(text)
        if alone is not None and "://" not in text:
            yield f"{alone['host'].lower()}:{int(alone['port'])}"
    yield from _in_variables(spec)


def destinations_unresolved(stderr: Sequence[str]) -> Iterator[str]:
    """Likewise; where no port is said, the one of https."""
    for line in stderr:
        for match in _unresolved(line):
            if "." in match["host"]:
                yield f"{match['host'].lower()}:{int(match['port'] or _PORTS['https'])}"


def _in_variables(spec: BackendSpec) -> Iterator[str]:
    """NAME_HOST with NAME_PORT, or the usual port of what NAME is."""
    for name, value in spec.env.items():
        if name.endswith("HOST") and _is_host(value):
            usual = next((port for start, port in _OF_VARIABLES.items() if name.startswith(start)), None)
            port = spec.env.get(name.removesuffix("HOST") + "PORT", usual)
            if port is not None and str(port).isdecimal():
                yield f"{value.lower()}:{int(port)}"
