"""Where a node writes its log: a disk that is full, a reader that has gone, a pipe that several nodes share."""

import contextlib
import http.client
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import anyio
import pytest

from tests.integration.gateway import ECHO, Gateway, running_gateway, until
from tests.integration.wire import wire
from tests.redis_servers import client_of

pytestmark = pytest.mark.timeout(300)
REFUSED = 600  # requests: more lines than are collected before they are written
CONNECTIONS, EACH = 20, 450  # the kernel draws lots: with six, one in thirty runs gave all to one member
KEY = "5e" * 32


class OnAFullDisk(Gateway):
    def _open_log(self) -> IO[bytes]:
        self.log.touch()
        return open("/dev/full", "wb")


class WithoutReader(Gateway):
    def _open_log(self) -> IO[bytes]:
        self.log.touch()
        ours, theirs = os.pipe()
        os.close(ours)
        return os.fdopen(theirs, "wb")


@pytest.mark.parametrize("level", ["errors", "all"])
@pytest.mark.parametrize("kind", [OnAFullDisk, WithoutReader])
def test_no_request_notices_that_its_line_cannot_be_written(tmp_path: Path, kind: type[Gateway], level: str) -> None:
    with running_gateway(tmp_path / "data", kind, ACCESS_LOG=level, LOG_LEVEL="debug") as gateway:
        path = gateway.endpoint(ECHO).mcp.removeprefix(gateway.url)
        client = http.client.HTTPConnection(gateway.host, timeout=30)
        client.auto_open = 0  # what is cut once is not made again
        client.connect()
        for number in range(REFUSED):
            client.request("POST", path if number % 2 else "/api/v1/nothing", body=b"{}")
            answer = client.getresponse()
            answer.read()
            assert answer.status in (401, 404)
        client.close()


class WithStuckReader(Gateway):
    """Nobody reads the pipe, which is full as soon as `fill` was called."""

    def _open_log(self) -> IO[bytes]:
        self.log.touch()
        self.reader, writer = os.pipe()
        self.writer = os.dup(writer)
        return os.fdopen(writer, "wb")

    def fill(self) -> None:
        own = os.open(f"/proc/self/fd/{self.writer}", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(own, b"\n" * 4096)
        os.close(own)

    def read(self) -> bytes:
        """What is in the pipe."""
        os.set_blocking(self.reader, False)
        found = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.reader, 1 << 20):
                found += piece
        return found

    def close(self) -> None:
        super().close()
        os.close(self.reader)
        os.close(self.writer)


async def test_no_request_waits_for_a_reader_that_stands_still(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data", WithStuckReader, ACCESS_LOG="all") as gateway:
        assert isinstance(gateway, WithStuckReader)
        async with wire(gateway.endpoint(ECHO)) as session:
            gateway.fill()
            ends = time.monotonic() + 2.0  # lines are written four times a second: some find no room
            while time.monotonic() < ends:  # before, the first line that found no room was the node's last
                assert await session.call("echo", text="x") == "x"
            assert b'"level":"info"' in gateway.read()
            found = b""

            async def told() -> bool:
                nonlocal found
                await session.call("echo", text="again")
                found += gateway.read()
                return b"log lines (its reader is too slow); they are lost" in found

            with anyio.fail_after(60):
                while not await told():
                    await anyio.sleep(0.05)


class TwoOnAPipe(Gateway):
    """Two nodes whose stderr is one pipe; what comes out of it is copied to the log."""

    WORDS = ("--nodes", "2")

    def _open_log(self) -> IO[bytes]:
        with self.log.open("wb") as file:
            self.reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
        assert self.reader.stdin is not None
        return self.reader.stdin


@pytest.fixture
def on_a_pipe(tmp_path: Path, redis_url: str) -> Iterator[Gateway]:
    with client_of(redis_url) as client:
        client.flushdb()
    settings = {"REDIS_URL": redis_url, "SECRET_KEY": KEY, "ACCESS_LOG": "all"}
    with running_gateway(tmp_path / "data", TwoOnAPipe, **settings) as fleet:
        yield fleet
    assert isinstance(fleet, TwoOnAPipe)
    assert fleet.reader.wait(10) == 0


async def test_nodes_that_share_a_pipe_do_not_tear_each_others_lines(on_a_pipe: Gateway) -> None:
    def flood(number: int) -> None:
        client = http.client.HTTPConnection(on_a_pipe.host, timeout=60)
        for each in range(EACH):
            client.request("DELETE", f"/t/default/{'b' * 100}/sse", headers={"X-Request-Id": f"flood-{number}-{each}"})
            client.getresponse().read()
        client.close()

    floods = [threading.Thread(target=flood, args=(number,)) for number in range(CONNECTIONS)]
    for each in floods:
        each.start()
    for each in floods:
        each.join()

    def told_of() -> int:
        return on_a_pipe.log.read_text().count('"logger":"access"')

    await until(lambda: told_of() == CONNECTIONS * EACH, 30, told_of)
    lines = [json.loads(line) for line in on_a_pipe.log.read_text().splitlines()]
    asked = [line for line in lines if line["message"] == "request"]
    assert len({line["request"] for line in asked}) == len(asked) == CONNECTIONS * EACH
    assert {line["member"] for line in asked} == {1, 2}
