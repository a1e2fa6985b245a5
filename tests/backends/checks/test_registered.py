"""Which hosts and ports a registration names."""

import pytest

from app.backends.checks._registered import destinations_in
from app.domain import BackendSpec


@pytest.mark.parametrize(
    ("args", "env", "named"),
    [
        (("postgres://localhost/app",), {}, ["localhost:5432"]),
        (("postgresql+asyncpg://u:p%40x@Db.Internal:6000/app",), {}, ["db.internal:6000"]),
        (("mongodb+srv://u@cluster.example/x",), {}, ["cluster.example:27017"]),
        (("http://[::1]:9000/", "https://10.0.0.7/"), {}, ["[::1]:9000", "10.0.0.7:443"]),
        (("unknown://host/x", "file:///etc/x", "://x", "C:80"), {}, ["c:80"]),
        ((), {"URL": "redis://cache:7000", "OTHER": "x"}, ["cache:7000"]),
        ((), {"PGHOST": "db", "PGDATABASE": "x"}, ["db:5432"]),
        ((), {"DB_HOST": "db", "DB_PORT": "6000"}, ["db:6000"]),
        ((), {"DB_HOST": "db"}, []),
        ((), {"MYSQL_HOST": "db", "MYSQL_PORT": "x"}, []),
        ((), {"HOST": "/run/socket", "PORT": "1"}, []),
        ((), {"AUTH": "admin:12345", "PIN": "1234:5678"}, []),
        ((), {"URL": "postgres://admin:123/45@db/app", "OTHER": "redis://:77/7@x"}, []),
    ],
)
def test_urls_addresses_and_variables_name_them(args, env, named):
    assert [*destinations_in(BackendSpec("acme", "files", "server", args, env=env))] == named


def test_a_long_argument_that_names_nothing_takes_no_time():
    spec = BackendSpec("acme", "files", "server", ("a" * 65_000, "xx://" * 9_000, "a:" * 30_000, "a." * 30_000))
    assert [*destinations_in(spec)] == []
