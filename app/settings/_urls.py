"""Parsers of URLs in settings: text in, checked text out; a ValueError says what is allowed.

The URLs of the database and of Redis can contain a password: error messages never contain them. URLs that can be read
in two ways are refused, because another library could take part of the password for a host and show it.
"""

import re
from urllib.parse import SplitResult, parse_qs, urlsplit

_HOST = r"(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])"
_PORT = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
AUTHORITY = re.compile(f"{_HOST}(?::{_PORT})?")
_NOWHERE = re.compile(r"(0\.0\.0\.0|\[[0:]+\])(:|$)")  # every address of a machine

# Options of a Redis URL. The gateway itself sets time-outs, retries and pools.
REDIS_OPTIONS = frozenset({
    "db", "username", "password", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs",
    "ssl_check_hostname", "sentinel_username", "sentinel_password",
})  # fmt: skip
_REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "unix")
_REDIS_HOST = re.compile(AUTHORITY.pattern, re.IGNORECASE)
_UNENCODED = re.compile(r"[\s\[\]\\\0]|%(?![0-9a-fA-F]{2})|%00")
_ENCODE = (
    "a character of its user name or password must be encoded: @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, "
    "% as %25, a space as %20"
)


def public_url(text: str) -> str:
    """The URL of the gateway for clients; may have a path."""
    parts = _split(text)
    if parts.scheme not in ("http", "https") or not AUTHORITY.fullmatch(parts.netloc.lower()):
        raise ValueError(f"{_shown(text)} is not an http or https URL without user name; like https://gw.example.com")
    if parts.query or parts.fragment:
        raise ValueError(f"{_shown(text)} has a query or a fragment; allowed are scheme, host, port and path")
    return text.rstrip("/")


def node_url(text: str) -> str:
    """The URL of a node for other nodes: an address that they can connect to, without a path."""
    parts = _split(text)
    is_address = AUTHORITY.fullmatch(parts.netloc.lower()) and not _NOWHERE.match(parts.netloc)
    if parts.scheme not in ("http", "https") or not is_address:
        raise ValueError(f"{_shown(text)} is not an http or https URL without user name; like http://10.0.0.5:8080")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{_shown(text)} has more than scheme, host and port; like http://10.0.0.5:8080")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError:  # its message contains the URL
        raise ValueError("it is not a URL; like https://gw.example.com") from None
    try:
        has_port = parts.port != 0
    except ValueError:
        has_port = False
    if not has_port:
        raise ValueError("its port is not a number from 1 to 65535")
    return parts


def _shown(text: str) -> str:
    return "it" if "@" in text else repr(text[:200])  # there can be a password before the @


def proxy_url(text: str) -> str:
    """An HTTP proxy, perhaps with credentials."""
    scheme, _, rest = text.partition("://")
    form = "http://[USER:PASSWORD@]HOST:PORT"
    if scheme not in ("http", "https") or not rest:
        raise ValueError(f"allowed is {form}, or the same with https://")
    _refuse_two_readings(rest)
    where = rest.removesuffix("/").rpartition("@")[2]
    if not AUTHORITY.fullmatch(where.lower()):
        raise ValueError(f"it must name a host, and perhaps a port: {form}")
    return f"{scheme}://{rest.removesuffix('/')}"


def database_url(text: str) -> str:
    """A SQLite file, or a PostgreSQL server."""
    scheme, _, rest = text.partition("://")
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        return _postgresql_url(rest)
    if scheme not in ("sqlite", "sqlite+aiosqlite"):
        raise ValueError("allowed are sqlite:///PATH and postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    if not re.fullmatch(r"/[^?#\0]+", rest) or rest == "/:memory:":
        raise ValueError("the database must be a file: sqlite:///relative/path or sqlite:////absolute/path")
    return f"sqlite:///{rest[1:]}"


def is_postgresql(database_url: str) -> bool:
    return database_url.startswith("postgresql:")


def _refuse_two_readings(rest: str) -> None:
    """`rest` follows the scheme: it may have one @, which must be before the first / ? or #."""
    login, at, _ = re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")
    if rest.count("@") > len(at) or _UNENCODED.search(login):
        raise ValueError(_ENCODE)


def _postgresql_url(rest: str) -> str:
    _refuse_two_readings(rest)
    where, _, database = rest.partition("?")[0].rpartition("/")
    if not where or not database or re.search(r"[\s#\0]", rest):
        raise ValueError("it must name a host and a database: postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    try:
        urlsplit("postgresql://" + rest).port  # noqa: B018 - raises
    except ValueError:
        raise ValueError("its port is not a number from 0 to 65535, or a bracket is missing") from None
    return f"postgresql://{rest}"


def redis_url(text: str) -> str:
    """A Redis server, with or without TLS, its sentinels, or a Unix socket."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in _REDIS_SCHEMES:
        allowed = "redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"
        raise ValueError(f"allowed are {allowed}, the same with {', '.join(_REDIS_SCHEMES[1:])}; see docs/settings.md")
    _refuse_two_readings(rest)
    if re.search(r"[\s#\0]", rest):
        raise ValueError("it contains white space, # or NUL; encode them in a password: %20, %23, ...")
    _check_redis_options(rest.partition("?")[2])
    where, _, path = rest.partition("?")[0].rpartition("@")[2].partition("/")
    _REDIS_CHECKS.get(scheme, _check_redis_server)(where, path)
    return text


def _check_redis_options(query: str) -> None:
    unknown = sorted(set(parse_qs(query, keep_blank_values=True)) - REDIS_OPTIONS)
    if unknown:
        raise ValueError(f"unknown option {unknown[0][:40]!r}; allowed are {', '.join(sorted(REDIS_OPTIONS))}")


def _check_redis_server(where: str, path: str) -> None:
    if not _REDIS_HOST.fullmatch(where):
        raise ValueError("it must name a host, and a port from 1 to 65535 if any: redis://HOST:6379/0")
    if not re.fullmatch(r"[0-9]{0,6}/?", path):
        raise ValueError("only the number of the database may follow the host: redis://HOST:6379/0")


def _check_redis_sentinel(where: str, path: str) -> None:
    if not where or not all(_REDIS_HOST.fullmatch(each) for each in where.split(",")):
        raise ValueError("it must name sentinels: redis+sentinel://HOST:26379,HOST2:26379/MASTER/0")
    if not re.fullmatch(r"[A-Za-z0-9._-]+(/[0-9]{0,6})?", path):
        raise ValueError("it must name the master, and may name a database: redis+sentinel://HOST:26379/MASTER/0")


def _check_redis_socket(where: str, path: str) -> None:
    if where or not path:
        raise ValueError("it must be the absolute path of a socket: unix:///run/redis/redis.sock?db=0")


_REDIS_CHECKS = {
    "redis+sentinel": _check_redis_sentinel,
    "rediss+sentinel": _check_redis_sentinel,
    "unix": _check_redis_socket,
}
