"""RedisAddress: a Redis URL as a connection pool of redis-py: one server, a Unix socket, or Sentinel.

Redis Cluster is not supported: our scripts use several keys, which it would spread over its nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from redis.asyncio.connection import ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

CONNECT_S = 1.0  # includes TLS, login and one or two sentinels
SENTINEL_S = 0.3  # so that one dead sentinel leaves time to ask another
SENTINEL_PORT = 26379
# Allowed in a URL. Timeouts, retries and pools are set here, so that nothing is sent twice.
OPTIONS = frozenset({
    "db", "username", "password", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs",
    "ssl_check_hostname", "sentinel_username", "sentinel_password",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """How to connect. `sentinels` and `master` are only set for Sentinel."""

    options: Mapping[str, Any]
    sentinels: tuple[tuple[str, int], ...] = ()
    master: str = ""

    def pool(self) -> ConnectionPool:
        """A new pool of connections that never retry; the caller closes it."""
        options: dict[str, Any] = {
            "protocol": 2,  # the same shapes of answers behind any proxy, and no push messages
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": CONNECT_S,
            "socket_timeout": None,  # callers have their own deadlines
            "driver_info": None,
            "client_name": "trunkline",
            **self.options,
        }
        if not self.sentinels:
            return ConnectionPool(**options)
        options = {name: value for name, value in options.items() if not name.startswith("sentinel_")}
        return _MasterPool(self.master, self._sentinel(), **options)  # type: ignore[no-untyped-call]

    def _sentinel(self) -> Sentinel:
        tls = {name: value for name, value in self.options.items() if name.startswith("ssl")}
        login = {name: self.options.get(f"sentinel_{name}") for name in ("username", "password")}
        quick = {"socket_timeout": SENTINEL_S, "socket_connect_timeout": SENTINEL_S, "retry": Retry(NoBackoff(), 0)}
        options = {"protocol": 2, **quick, **login, **tls}
        return Sentinel(self.sentinels, sentinel_kwargs=options)  # type: ignore[no-untyped-call]


class _MasterPool(SentinelConnectionPool):
    """Also closes its connections to the sentinels."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def parse(url: str) -> RedisAddress:
    """Raises ValueError for an unsupported URL; the message does not contain the URL, which may hold a password."""
    scheme, separator, rest = url.partition("://")
    where, _, query = rest.partition("?")
    unknown = sorted(set(parse_qs(query)) - OPTIONS)
    if unknown:
        raise ValueError(
            f"unknown option {unknown[0][:40]!r} in the Redis URL; allowed are {', '.join(sorted(OPTIONS))}"
        )
    if separator and scheme in ("redis+sentinel", "rediss+sentinel"):
        return _parse_sentinel(scheme.removesuffix("+sentinel"), where, query)
    try:
        return RedisAddress(dict(parse_url(url)))
    except ValueError:
        raise ValueError("invalid Redis URL; expected redis://USER:PASSWORD@HOST:PORT/DATABASE") from None


def _parse_sentinel(scheme: str, where: str, query: str) -> RedisAddress:
    login, _, places = where.rpartition("@")
    hosts, _, path = places.partition("/")
    master, _, database = path.partition("/")
    if not master or not all(hosts.split(",")):
        raise ValueError("it must name sentinels and a master: redis+sentinel://HOST:26379,HOST2:26379/MASTER/0")
    # redis-py parses the rest, as a URL of one server.
    server = parse_url(f"{scheme}://{login}{'@' if login else ''}sentinel/{database}?{query}")
    options = {name: value for name, value in server.items() if name not in ("host", "port", "connection_class")}
    return RedisAddress(
        options | ({"ssl": True} if scheme == "rediss" else {}),
        tuple(_sentinel_place(place) for place in hosts.split(",")),
        unquote(master),
    )


def _sentinel_place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), SENTINEL_PORT
    if not port.isdecimal():
        raise ValueError("a sentinel's port is not a number: redis+sentinel://HOST:26379/MASTER/0")
    return host.strip("[]"), int(port)
