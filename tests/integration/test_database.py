"""A node and its database: a wrong schema, an outage, a lock. What goes on, what is refused, and what /readyz says."""

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psycopg
import pytest

from app import cli
from app.storage._database_errors import LOCKED
from tests.integration.gateway import ECHO, Gateway, running_gateway, until
from tests.integration.nodes import BUSY_S
from tests.integration.wire import wire
from tests.postgres import in_database, new_database
from tests.programs import run_program

SECRET_KEY = "5ec" * 22


def trunkline(data_dir: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRUNKLINE_DATA_DIR": str(data_dir)}
    environment |= {f"TRUNKLINE_{name}": value for name, value in settings.items()}
    return run_program(words, environment)


def test_a_node_refuses_a_wrong_schema_in_one_line_until_it_is_migrated(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with new_database(postgres_url) as url:
        settings = {"DATABASE_URL": url, "SECRET_KEY": SECRET_KEY, "DATA_DIR": str(tmp_path)}
        for name, value in settings.items():
            monkeypatch.setenv(f"TRUNKLINE_{name}", value)
        done = trunkline(tmp_path, "serve", "--port", "0", **settings)
        assert (done.returncode, done.stdout) == (1, "")
        _refuses(done.stderr)
        for words in (["migrate", "--check"], ["keys", "list", "--tenant", "default"]):
            assert cli.main(words) == 1
            _refuses(capsys.readouterr().err)
        for words in (["migrate"], ["migrate"], ["migrate", "--check"]):
            assert cli.main(words) == 0
        with running_gateway(tmp_path / "data", DATABASE_URL=url, SECRET_KEY=SECRET_KEY) as gateway:
            assert gateway.api("GET", "/tenants")["items"]


def _refuses(stderr: str) -> None:
    last = stderr.splitlines()[-1]
    assert last.startswith("trunkline: the database has schema none, this version needs ")
    assert last.endswith("(Run `trunkline migrate`.)")
    assert "Traceback" not in stderr


def test_postgresql_needs_a_secret_key(postgres_url: str, tmp_path: Path) -> None:
    done = trunkline(tmp_path, "serve", "--port", "0", DATABASE_URL=postgres_url)
    assert done.returncode == 2
    assert done.stderr.startswith("trunkline: TRUNKLINE_SECRET_KEY: must be set where TRUNKLINE_DATABASE_URL is")
    assert done.stderr.count("\n") == 1


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    url = "postgresql://somebody:hunter2@127.0.0.1:1/none"
    done = trunkline(tmp_path, "serve", "--port", "0", DATABASE_URL=url, SECRET_KEY=SECRET_KEY)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("trunkline: the database cannot be used: ")
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


class Outage:
    """Cuts one database off, while the server goes on for others."""

    def __init__(self, server: str, url: str) -> None:
        self._server, self._name = in_database(server, "postgres"), url.rpartition("/")[2].partition("?")[0]

    def begin(self) -> None:
        self._allow(False)
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [self._name]
            )

    def end(self) -> None:
        self._allow(True)

    def _allow(self, allowed: bool) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{self._name}" ALLOW_CONNECTIONS {allowed}'.encode())


@pytest.fixture
def outage(postgres_url: str, postgres_database: str) -> Iterator[Outage]:
    outage = Outage(postgres_url, postgres_database)
    yield outage
    outage.end()


async def test_while_sql_is_away_open_sessions_go_on_changes_are_503_and_readyz_tells(
    postgres_database: str, outage: Outage, tmp_path: Path
) -> None:
    with running_gateway(tmp_path / "data", DATABASE_URL=postgres_database, SECRET_KEY=SECRET_KEY) as gateway:
        endpoint = gateway.endpoint(ECHO)
        unseen = gateway.key(endpoint.tenant)
        async with wire(endpoint) as session:
            assert httpx2.get(gateway.url + "/readyz").status_code == 200
            outage.begin()
            for _ in range(20):
                assert await session.call("echo", text="goes on")
            path = f"/tenants/{endpoint.tenant}"
            for method, where, body in (
                ("GET", "", None),
                ("PATCH", "", {"limits": {"burst": 5}}),
                ("POST", "/keys", {"scopes": ["mcp:connect"]}),
                ("DELETE", f"/backends/{endpoint.name}", None),
                ("POST", f"/backends/{endpoint.name}:restart", None),
            ):
                problem = gateway.api(method, path + where, body, expect=503)
                assert (problem["reason"], problem["status"]) == ("storage_unavailable", 503)
            assert _status(gateway, endpoint.mcp, unseen) == 503  # a key that nobody can look up
            await until(lambda: httpx2.get(gateway.url + "/readyz").status_code == 503, 20)
            words = httpx2.get(gateway.url + "/readyz").json()["parts"]["database"]
            assert words.startswith("The database does not answer. ")
            assert httpx2.get(gateway.url + "/livez").status_code == 200
            assert await session.call("echo", text="goes on")
            outage.end()
            await until(lambda: httpx2.get(gateway.url + "/readyz").status_code == 200, 30)
            assert gateway.api("GET", path)["limits"]["burst"] is None
            assert _status(gateway, endpoint.mcp, unseen) != 503


def _status(gateway: Gateway, url: str, key: str) -> int:
    return httpx2.post(url, json={}, headers={"Authorization": f"Bearer {key}"}, timeout=30).status_code


@pytest.mark.alone
async def test_while_sqlite_is_locked_calls_go_on_and_a_change_is_503_within_five_seconds(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with running_gateway(tmp_path / "data") as gateway:
        endpoint = gateway.endpoint(ECHO)
        async with wire(endpoint) as session:
            locker = sqlite3.connect(gateway.data_dir / "trunkline.db", isolation_level=None)
            locker.execute("BEGIN IMMEDIATE")
            try:
                began = time.monotonic()
                keys = f"/tenants/{endpoint.tenant}/keys"
                refused = gateway.api("POST", keys, {"scopes": ["mcp:connect"]}, expect=503)
                assert refused["detail"] == LOCKED  # and once it is not, the same is carried out: below
                assert time.monotonic() - began < 5.5 + (0 if request.config.getoption("--long") else BUSY_S)
                for _ in range(20):
                    assert await session.call("echo", text="goes on")
                assert gateway.api("GET", f"/tenants/{endpoint.tenant}/backends")["items"]
                async with wire(endpoint) as other:
                    assert await other.call("echo", text="new sessions too")
                assert httpx2.get(gateway.url + "/readyz").status_code == 200
            finally:
                locker.execute("ROLLBACK")
                locker.close()
            assert gateway.key(endpoint.tenant)
