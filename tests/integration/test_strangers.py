"""Strangers, and what clients who were let in notice of them: a bare node, without a proxy before it."""

import json
import math
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx2
import psutil
import pytest

from app.storage.access.connections import MAX_REGISTERED
from tests.integration.gateway import ECHO, Endpoint, Gateway, running_gateway, until
from tests.integration.wire import wire

HERE = Path(__file__).parent
MIB = 1 << 20
READY_S = 60.0
KINDS = (
    "pipelines", "patient_pipelines", "long_heads", "half_heads", "silence", "slow_bodies", "small_chunks",
    "endless_bodies", "empty_lines", "long_values", "long_methods", "bad_keys", "unknown_sessions",
    "registrations",
)  # fmt: skip
GROWTH_MIB = 32
TIMES_SLOWER = 3.0
CALM_S = 10.0
SECONDS = float(os.environ.get("TRUNKLINE_TEST_STRANGERS_S", "30"))
RECOVERED_S = 15.0
SPARE = 16  # descriptors: of the visitor of the moment, its process, the database's files


class FewFiles(Gateway):
    """A node that may open 256 files."""

    FIRST = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"


@contextmanager
def program(name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of the programs beside this file, once it is ready."""
    with subprocess.Popen(
        [sys.executable, str(HERE / name), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


class Act(NamedTuple):
    """What an honest client did. `kind` is call, or visit: a session from its beginning to its end."""

    kind: str
    began_at: float
    seconds: float
    error: str | None


@contextmanager
def honest(endpoint: Endpoint, sessions: int) -> Iterator[Callable[[], list[Act]]]:
    """Clients at work; what is yielded ends them, and has what they measured."""
    with program("honest.py", endpoint.mcp, endpoint.key, str(sessions)) as process:

        def measured() -> list[Act]:
            output, _ = process.communicate(timeout=READY_S)
            return [Act(*json.loads(line)) for line in output.splitlines()]

        yield measured


@contextmanager
def strangers(kinds: str, endpoint: Endpoint, number: int, seconds: float, again_s: float = 0.2) -> Iterator[None]:
    host, path = endpoint.gateway.host, endpoint.mcp.removeprefix(endpoint.gateway.url)
    with program("junk.py", kinds, host, path, endpoint.key, str(number), str(seconds), str(again_s)):
        yield


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[math.ceil(len(seconds) * 0.99) - 1]


class Resources:
    """What a node uses."""

    def __init__(self, gateway: Gateway) -> None:
        self._process = psutil.Process(gateway.pid)
        self.mib, self.descriptors = self.resident_mib(), self._process.num_fds()

    def resident_mib(self) -> float:
        return float(self._process.memory_info().rss) / MIB

    async def are_back(self) -> None:
        await until(
            lambda: self.resident_mib() < self.mib + GROWTH_MIB and self._process.num_fds() <= self.descriptors + SPARE,
            40,
            lambda: f"{self.mib:.0f} -> {self.resident_mib():.0f} MiB, {self.descriptors} -> {self._process.num_fds()}",
        )


async def dose(gateway: Gateway, kinds: str, number: int, seconds: float) -> dict[str, Any]:
    """Junk with honest clients beside it: nobody of them is refused, and nothing of it is left. Returns figures."""
    clients, others = gateway.endpoint(ECHO), gateway.endpoint(ECHO)
    gateway.api("PATCH", f"/tenants/{others.tenant}", {"sign_in": {}})
    with honest(clients, 4) as measured:
        before = Resources(gateway)
        await anyio.sleep(min(seconds, CALM_S))
        began_at = time.monotonic()
        with strangers(kinds, others, number, seconds + 60):
            started_at, most = time.monotonic(), 0.0
            while time.monotonic() < started_at + seconds:
                await anyio.sleep(0.1)
                most = max(most, before.resident_mib())
            ended_at = time.monotonic()
        await before.are_back()
        acts = measured()
    errors = [act for act in acts if act.error is not None]
    assert not errors, f"{len(errors)} of {len(acts)}, first {errors[0]}"
    assert sum(act.kind == "visit" for act in acts) >= 2
    calm = [act.seconds for act in acts if act.kind == "call" and act.began_at < began_at]
    busy = [act.seconds for act in acts if act.kind == "call" and started_at <= act.began_at < ended_at]
    with closing(sqlite3.connect(gateway.data_dir / "trunkline.db")) as database:
        (registered,) = database.execute("select count(*) from clients").fetchone()
    assert registered <= MAX_REGISTERED
    return {
        "registered": registered,
        "calls": (len(calm), len(busy)),
        "p99_ms": (round(p99(calm) * 1000, 1), round(p99(busy) * 1000, 1)),
        "times_slower": round(p99(busy) / p99(calm), 2),
        "mib_before_most_after": tuple(round(each) for each in (before.mib, most, before.resident_mib())),
    }


async def test_clients_are_served_beside_all_kinds_of_junk_and_nothing_of_it_stays(gateway: Gateway) -> None:
    await dose(gateway, ",".join(KINDS), 40, 1.5)


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("kinds", [*KINDS, ",".join(KINDS)], ids=[*KINDS, "all"])
async def test_two_hundred_strangers_for_thirty_seconds_make_calls_at_most_three_times_slower(
    own_gateway: Gateway, kinds: str
) -> None:
    figures = await dose(own_gateway, kinds, 200, SECONDS)
    print(kinds, figures)
    assert figures["times_slower"] <= TIMES_SLOWER, figures


# --- descriptors


async def test_with_256_files_400_strangers_keep_nobody_out_who_is_let_in(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data", FewFiles) as gateway:
        echo = gateway.endpoint(ECHO)
        before = Resources(gateway)
        async with wire(echo) as session:
            with ExitStack() as stack:
                stack.enter_context(strangers("silence", echo, 400, 60, again_s=1.0))
                for _ in range(4):
                    assert await session.call("echo", text="still here") == "still here"
                    async with wire(echo) as another:  # a new connection, and a process with three pipes
                        assert await another.call("echo", text="new here") == "new here"
                    async with httpx2.AsyncClient(timeout=30) as newcomer:
                        assert (await newcomer.get(gateway.url + "/livez")).status_code == 200
                assert gateway.api("GET", "/tenants")["items"]
                made_room = 'trunkline_connections_refused_total{reason="made_room"}'
                await until(lambda: gateway.metrics().get(made_room, 0) > 200, 30, gateway.metrics)
            await until(lambda: psutil.Process(gateway.pid).num_fds() <= before.descriptors + SPARE, RECOVERED_S)
        assert "Too many open files" not in gateway.log.read_text()
