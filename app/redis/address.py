"""RedisAddress: what a Redis URL says, as connections of redis-py: one server, a Unix socket, or the master of a set.

Redis Cluster is not supported: one script touches keys that it would spread over its nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from redis.asyncio.connection import ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

CONNECT_S = 1.0  # TLS, a login, and asking a sentinel or two
SENTINEL_S = 0.3  # so that one dead sentinel leaves time to ask another
SENTINEL_PORT = 26379
# What a URL may say beside where and who. Time-outs, retries and pools are ours: nothing is sent twice.
OPTIONS = frozenset({
    "db", "username", "password", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs",
    "ssl_check_hostname", "sentinel_username", "sentinel_password",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """How a connection is made. `sentinels` and `master` where sentinels know which server it is."""

    options: Mapping[str, Any]
    sentinels: tuple[tuple[str, int], ...] = ()
    master: str = ""

    def pool(self) -> ConnectionPool:
        """A pool of redis-py whose connections repeat nothing on their own; whoever asks for it closes it."""
        options: dict[str, Any] = {
            "protocol": 2,  # shapes of answers that do not depend on what stands between, and nothing unasked for
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": CONNECT_S,
            "socket_timeout": None,  # deadlines are those of whoever asks
            "driver_info": None,
            "client_name": "trunkline",
            **self.options,
        }
        if not self.sentinels:
            return ConnectionPool(**options)
        return _MasterPool(self.master, self._sentinel(), **_without_sentinel(options))  # type: ignore[no-untyped-call]

    def _sentinel(self) -> Sentinel:
        tls = {name: value for name, value in self.options.items() if name.startswith("ssl")}
        login = {name: self.options.get(f"sentinel_{name}") for name in ("username", "password")}
        quick = {"socket_timeout": SENTINEL_S, "socket_connect_timeout": SENTINEL_S, "retry": Retry(NoBackoff(), 0)}
        options = {"protocol": 2, **quick, **login, **tls}
        return Sentinel(self.sentinels, sentinel_kwargs=options)  # type: ignore[no-untyped-call]


class _MasterPool(SentinelConnectionPool):
    """Closes its connections to the sentinels as well."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def parse(url: str) -> RedisAddress:
    """What the URL says.

    Raises:
        ValueError: it is of no form that we know; the message does not repeat it.
    """
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
        raise ValueError(
            "the Redis URL is of no form that is known: redis://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None


def _parse_sentinel(scheme: str, where: str, query: str) -> RedisAddress:
    login, _, places = where.rpartition("@")
    hosts, _, path = places.partition("/")
    master, _, database = path.partition("/")
    if not master or not all(hosts.split(",")):
        raise ValueError("it must name sentinels and a master: redis+sentinel://HOST:26379,HOST2:26379/MASTER/0")
    # The rest is what redis-py reads from a URL with one server.
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
        raise ValueError("a sentinel's port is no number: redis+sentinel://HOST:26379/MASTER/0")
    return host.strip("[]"), int(port)


def _without_sentinel(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if not name.startswith("sentinel_")}
