"""RedisAddress: what a URL of each form says, and what it may not say."""

import pytest
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection

from app.cluster.redis._address import parse


def test_a_server_with_a_login_and_a_database():
    assert parse("redis://me:p%40ss@redis.example.com:6380/3").options == {
        "username": "me",
        "password": "p@ss",
        "host": "redis.example.com",
        "port": 6380,
        "db": 3,
    }


def test_tls_has_its_own_scheme_and_checks_certificates():
    pool = parse("rediss://redis.example.com?ssl_ca_certs=/etc/ca.pem").pool()
    assert pool.connection_class is SSLConnection
    assert pool.connection_kwargs["ssl_ca_certs"] == "/etc/ca.pem"


def test_a_unix_socket():
    address = parse("unix:///run/redis/redis.sock?db=2")
    assert address.options["connection_class"] is UnixDomainSocketConnection
    assert (address.options["path"], address.options["db"]) == ("/run/redis/redis.sock", 2)


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_sentinels_are_named_with_their_master(scheme: str):
    address = parse(f"{scheme}+sentinel://me:secret@one:26379,[::1]:7000,two,[::2]/mymaster/4?sentinel_password=s")
    assert address.sentinels == (("one", 26379), ("::1", 7000), ("two", 26379), ("::2", 26379))
    assert address.master == "mymaster"
    assert address.options["db"] == 4
    assert (address.options["username"], address.options["password"]) == ("me", "secret")
    assert address.options.get("ssl", False) is (scheme == "rediss")


@pytest.mark.parametrize(
    "url",
    [
        "http://secret@host",
        "redis://secret@host:port/0",
        "redis+sentinel://secret@host:26379",
        "redis+sentinel://secret@/master",
        "redis+sentinel://secret@host:x/master",
        "redis://secret@host?socket_timeout=9",
        "redis://secret@host?retry_on_timeout=yes",
        "redis://secret@host?max_connections=5",
        "secret",
        "",
    ],
)
def test_other_forms_are_refused_without_repeating_them(url: str):
    with pytest.raises(ValueError, match=r"Redis URL|sentinel") as refused:
        parse(url)
    assert "secret" not in str(refused.value)
