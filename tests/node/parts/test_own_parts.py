"""What belongs to the gateway, by host and port, from its settings."""

from ipaddress import ip_address

import pytest

from app.node.parts.own_parts import own_parts
from app.settings.settings import Settings

HERE = (ip_address("127.0.0.1"), 8080)


def parts(tmp_path, **settings):
    key = "0" * 64
    found = Settings.from_env({}, data_dir=str(tmp_path), secret_key=key, **settings)
    return set(own_parts(found))


def test_a_node_with_nothing_besides_has_its_own_port(tmp_path):
    assert parts(tmp_path) == {HERE}


@pytest.mark.parametrize(
    ("setting", "value", "more"),
    [
        ("node_url", "http://10.0.0.5:8081", {("10.0.0.5", 8081)}),
        ("node_url", "https://node-1.example.com", {("node-1.example.com", 443)}),
        ("redis_url", "redis://:x@cache.internal/0", {("cache.internal", 6379)}),
        ("redis_url", "rediss://[fd00::7]:7000/0", {("fd00::7", 7000)}),
        ("redis_url", "redis+sentinel://a:26380,b/main", {(x, y) for x in "ab" for y in (26380,)}),
        ("redis_url", "unix:///run/redis.sock", set()),
        ("database_url", "postgresql://u:p@db.internal/app", {("db.internal", 5432)}),
        ("database_url", "postgresql://u:p@db.internal:6000/app", {("db.internal", 6000)}),
        ("database_url", "postgresql://u:p@a,b:6000/app", {("a", 6000), ("b", 6000)}),
        (
            "database_url",
            "postgresql://u@a/app?host=b&hostaddr=10.0.0.9&port=7000",
            {("a", 7000), ("b", 7000), ("10.0.0.9", 7000)},
        ),
        ("database_url", "postgresql://u@%2Frun%2Fpg/app", set()),
    ],
)
def test_database_redis_and_the_address_for_nodes_are_parts(tmp_path, setting, value, more):
    found = {(str(host), port) for host, port in parts(tmp_path, **{setting: value}) - {HERE}}
    assert found == more
