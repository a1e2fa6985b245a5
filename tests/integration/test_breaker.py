"""A backend that dies at once is not started again and again, whoever asks; seen from outside, through the gateway."""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx2
import psutil
import pytest

from app.backends._breaker import OPENING_DEATHS
from tests.integration.gateway import Endpoint, Gateway, running_gateway, until
from tests.integration.wire import RpcError, Wire

TRIES = 12
# Writes down that it was started, and dies: before it has read anything, or when it is asked something.
AT_ONCE = "import sys; open(sys.argv[1], 'a').write('started\\n'); sys.exit(3)"
WHEN_ASKED = "import sys; open(sys.argv[1], 'a').write('started\\n'); sys.stdin.readline(); sys.exit(3)"
CLOSES_ITS_INPUT = (
    "import os, sys, time; open(sys.argv[1], 'a').write('started\\n'); os.close(0); time.sleep(0.05); sys.exit(3)"
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One with no other breakers."""
    with running_gateway(tmp_path_factory.mktemp("breaker") / "data") as gateway:
        yield gateway


async def refused(endpoint: Endpoint) -> str:
    """Why an `initialize` was refused."""
    return str((await error_of(endpoint)).reason)


async def error_of(endpoint: Endpoint) -> RpcError:
    async with httpx2.AsyncClient(timeout=60) as http:
        client = Wire(http, endpoint)
        with pytest.raises(RpcError) as failed:
            await client.open()
    return failed.value


@pytest.mark.parametrize("program", [AT_ONCE, WHEN_ASKED, CLOSES_ITS_INPUT], ids=["at once", "when asked", "deaf"])
async def test_a_backend_without_warm_processes_that_dies_at_once_is_started_a_few_times_only(
    gateway: Gateway, tmp_path: Path, program: str
) -> None:
    started = tmp_path / "started"
    was_open = gateway.metrics()["trunkline_breaker_open"]
    endpoint = gateway.endpoint([sys.executable, "-I", "-S", "-c", program, str(started)])
    heard = await asyncio.gather(*(refused(endpoint) for _ in range(TRIES)))
    assert set(heard) <= {"backend_exited", "backend_unavailable"}, heard
    error = await error_of(endpoint)
    assert error.reason == "backend_unavailable", heard
    assert re.search("the last time with: .+; it is (started again in|being tried again)", str(error))
    deaths = started.read_text().count("started")
    assert OPENING_DEATHS <= deaths < TRIES, heard
    assert gateway.metrics()["trunkline_breaker_open"] == was_open + 1
    gateway.api("DELETE", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}")
    await until(lambda: gateway.metrics()["trunkline_breaker_open"] == was_open, 10)


async def test_a_client_that_leaves_is_no_death_of_the_backend(gateway: Gateway, tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = "import sys; open(sys.argv[1], 'a').write('started\\n'); sys.stdin.read()"
    endpoint = gateway.endpoint([sys.executable, "-I", "-S", "-c", program, str(started)])
    was_open = gateway.metrics()["trunkline_breaker_open"]
    for number in range(1, TRIES + 1):
        await leave(endpoint, partial(has_started, started, number))
    await until(lambda: not any(is_running(each, started) for each in gateway.backends()), 20)
    assert gateway.metrics()["trunkline_breaker_open"] == was_open


def has_started(started: Path, times: int) -> bool:
    return started.exists() and started.read_text().count("started") == times


def is_running(process: psutil.Process, started: Path) -> bool:
    try:
        return str(started) in process.cmdline()
    except psutil.NoSuchProcess:
        return False


async def leave(endpoint: Endpoint, is_time: Callable[[], bool]) -> None:
    """Asks to be let in, and hangs up when it is time."""
    async with httpx2.AsyncClient(timeout=60) as http:
        asking = asyncio.create_task(Wire(http, endpoint).open())
        await until(is_time, 20)
        asking.cancel()
        await asyncio.wait([asking])
