"""A collector that is slow, refuses, hangs or is not there costs spans, which are counted, and nothing else."""

import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.telemetry.tracing import exporter as module
from app.telemetry.tracing.exporter import LAST_S, MAX_BATCH, MAX_QUEUED, WHOLE_S, SpanExporter
from app.telemetry.tracing.otlp import Encoder
from app.telemetry.tracing.spans import Span
from tests.collector import Collector, collecting

pytestmark = pytest.mark.real
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = Span("a", "server", TRACE.encode(), b"1" * 16, b"", b"", b"01", 1, 2, {"k": "v"}, "")


class Rig:
    """An exporter, and what it has counted."""

    def __init__(self, url: str) -> None:
        self.count = Counter("spans", "", ("result",), registry=CollectorRegistry())
        self.exporter = SpanExporter(url + "/v1/traces", {"x-key": "k"}, Encoder("1", "node-1"), self.count.labels)

    def counted(self, result: str) -> int:
        return int(self.count.labels(result)._value.get())

    async def until(self, result: str, count: int) -> None:
        with anyio.fail_after(60):
            while self.counted(result) < count:
                await anyio.sleep(0.01)
        assert self.counted(result) == count


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
async def start() -> AsyncIterator[Callable[[str], Rig]]:
    rigs: list[Rig] = []

    def begin(url: str) -> Rig:
        rigs.append(Rig(url))
        rigs[-1].exporter.start()
        return rigs[-1]

    yield begin
    for rig in rigs:
        await rig.exporter.aclose()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread may have to wait for a processor when the node ends."""
    monkeypatch.setattr(module, "LAST_S", 60.0)


async def test_spans_arrive_in_batches(collector: Collector, start: Callable[[str], Rig]) -> None:
    rig = start(collector.url)
    for _ in range(MAX_BATCH + 1):
        rig.exporter.add(SPAN)
    await rig.until("sent", MAX_BATCH + 1)
    assert len(collector.spans) == MAX_BATCH + 1
    assert len(collector.requests) <= 3
    assert collector.requests[0]["x-key"] == "k"
    assert collector.requests[0]["content-type"] == "application/x-protobuf"


@pytest.mark.usefixtures("patient")
async def test_the_end_sends_what_is_left(collector: Collector, start: Callable[[str], Rig]) -> None:
    rig = start(collector.url)
    rig.exporter.add(SPAN)
    await rig.exporter.aclose()
    assert (rig.counted("sent"), len(collector.spans)) == (1, 1)


async def test_a_collector_that_hangs_neither_delays_the_loop_nor_the_end_nor_takes_memory(
    collector: Collector, start: Callable[[str], Rig], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("TIMEOUT_S", "WHOLE_S"):  # of the request that hangs
        monkeypatch.setattr(module, bound, 60.0)
    rig = start(collector.url)
    collector.holds.clear()
    rig.exporter.add(SPAN)
    with anyio.fail_after(20):
        while rig.exporter._queue:  # the thread has it, and waits
            await anyio.sleep(0.01)
    began, worked = time.monotonic(), time.thread_time()
    for _ in range(MAX_QUEUED + 10):
        rig.exporter.add(SPAN)
    assert time.thread_time() - worked < 1.0
    assert time.monotonic() - began < WHOLE_S  # nobody has waited for the collector
    assert rig.counted("dropped") == 10
    assert len(rig.exporter._queue) == MAX_QUEUED
    began = time.monotonic()
    await rig.exporter.aclose()
    assert LAST_S <= time.monotonic() - began < WHOLE_S - 1  # before the request itself is given up
    assert not rig.exporter._queue
    assert rig.counted("dropped") == 10 + MAX_QUEUED
    assert "did not take the last spans" in caplog.text


async def test_a_collector_that_comes_back_gets_what_it_refused_for_a_while(
    collector: Collector, start: Callable[[str], Rig], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", (0.05,) * 1000)
    caplog.set_level("INFO")
    collector.status = 503
    rig = start(collector.url)
    rig.exporter.add(SPAN)
    with anyio.fail_after(20):
        while not collector.requests:
            await anyio.sleep(0.005)
    collector.status = 200
    await rig.until("sent", 1)
    assert rig.counted("failed") == 0
    problems = [each.message for each in caplog.records if each.name == module.__name__]
    assert problems == ["The collector does not take spans: it answers 503", "The collector takes spans again"]


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_what_it_refuses_for_good_is_not_sent_again(
    collector: Collector, start: Callable[[str], Rig], status: int
) -> None:
    collector.status = status
    rig = start(collector.url)
    rig.exporter.add(SPAN)
    await rig.until("failed", 1)
    assert len(collector.requests) == 1
    collector.status = 200
    rig.exporter.add(SPAN)
    await rig.until("sent", 1)


async def test_a_collector_that_is_not_there_is_tried_again_and_then_given_up(
    start: Callable[[str], Rig], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", (0.01, 0.01))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    rig = start(f"http://127.0.0.1:{port}")
    rig.exporter.add(SPAN)
    await rig.until("failed", 1)
    assert len([each for each in caplog.records if "does not take spans" in each.message]) == 1


@pytest.mark.usefixtures("patient")
async def test_an_end_while_it_waits_to_try_again_is_quick(
    collector: Collector, start: Callable[[str], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", (600.0,))
    collector.status = 503
    rig = start(collector.url)
    rig.exporter.add(SPAN)
    with anyio.fail_after(20):
        while not collector.requests:
            await anyio.sleep(0.005)
    await rig.exporter.aclose()
    assert rig.counted("failed") == 1  # else it would still wait


@pytest.mark.usefixtures("patient")
async def test_a_cancelled_end_is_an_end_too(collector: Collector, start: Callable[[str], Rig]) -> None:
    rig = start(collector.url)
    rig.exporter.add(SPAN)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await rig.exporter.aclose()
    assert not rig.exporter._thread.is_alive()
    assert rig.exporter._thread not in threading.enumerate()
    assert rig.counted("sent") == 1


class ClearedMeanwhile(deque[Span]):
    """A queue that the other thread clears while a batch is taken from it."""

    def popleft(self) -> Span:
        first = super().popleft()
        self.clear()
        return first


async def test_an_end_while_a_batch_is_taken_ends_no_thread(collector: Collector) -> None:
    """The end waits LAST_S, then clears what is left."""
    rig = Rig(collector.url)
    rig.exporter._queue = ClearedMeanwhile([SPAN] * 3)
    rig.exporter.start()
    await rig.until("sent", 1)
    rig.exporter.add(SPAN)
    await rig.until("sent", 2)
    await rig.exporter.aclose()
