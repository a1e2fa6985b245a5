"""A hostile collector: whatever it answers, and however slowly, the next spans are sent."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.telemetry.tracing import exporter as module
from app.telemetry.tracing.exporter import SpanExporter
from app.telemetry.tracing.otlp import Encoder
from app.telemetry.tracing.spans import Span

pytestmark = pytest.mark.real
SPAN = Span("a", "server", b"4bf92f3577b34da6a3ce929d0e0e4736", b"1" * 16, b"", b"", b"01", 1, 2, {"k": "v"}, "")
FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
Answer = Callable[[socket.socket, threading.Event], None]


@contextmanager
def answering(first: Answer) -> Iterator[str]:
    """The URL of a server that answers the first request so, and the next ones well."""
    over, asked = threading.Event(), 0

    def serve(listener: socket.socket) -> None:
        nonlocal asked
        while not over.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(5)
                    head = b""
                    while b"\r\n\r\n" not in head:
                        if not (piece := connection.recv(65536)):
                            raise ConnectionResetError  # it was given up before it was read
                        head += piece
                    asked += 1
                    if asked == 1:
                        first(connection, over)
                    else:
                        connection.sendall(FINE)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def again_and_again(first: bytes, piece: bytes) -> Answer:
    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(first)
        while not over.wait(0.01):
            connection.sendall(piece)

    return answer


def once(text: bytes) -> Answer:
    return lambda connection, over: connection.sendall(text)


ATTACKS: dict[str, Answer] = {
    "a byte at a time": again_and_again(b"HTTP/1.1 200 OK\r\nx: ", b"a"),
    "only interim answers": again_and_again(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a status line without end": again_and_again(b"", b"x" * 65536),
    "headers without end": again_and_again(b"HTTP/1.1 200 OK\r\n", b"a: " + b"x" * 60_000 + b"\r\n"),
    "no digits that look like some": once(b"HTTP/1.1 503 x\r\nretry-after: \xb2\r\ncontent-length: 0\r\n\r\n"),
    "a wait without end": once(b"HTTP/1.1 503 x\r\nretry-after: " + b"9" * 400 + b"\r\ncontent-length: 0\r\n\r\n"),
    "another protocol": once(b"HTTP/1.1 101 x\r\nupgrade: y\r\nconnection: upgrade\r\n\r\n"),
    "garbage": once(b"\x00\xff garbage\r\n\r\n"),
    "a status that is none": once(b"HTTP/1.1 000 x\r\ncontent-length: 0\r\n\r\n"),
    "nothing": once(b""),
}


@pytest.mark.parametrize("answer", ATTACKS.values(), ids=ATTACKS)
async def test_spans_that_a_hostile_answer_has_cost_are_sent_again(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WHOLE_S", 0.5)
    monkeypatch.setattr(module, "RETRY_S", (0.01,) * 100)  # a good answer may be late, too
    monkeypatch.setattr(module, "EVERY_S", 0.05)
    count = Counter("spans", "", ("result",), registry=CollectorRegistry())
    with answering(answer) as url:
        exporter = SpanExporter(url + "/v1/traces", {}, Encoder("1", "node-1"), count.labels)
        exporter.start()
        try:
            exporter.add(SPAN)
            with anyio.fail_after(60):
                while not count.labels("sent")._value.get():
                    await anyio.sleep(0.01)
        finally:
            await exporter.aclose()
    assert "a bug in the gateway" not in caplog.text
    assert not exporter._thread.is_alive()


async def test_a_node_ends_in_time_though_the_collector_answers_a_byte_at_a_time() -> None:
    count = Counter("spans", "", ("result",), registry=CollectorRegistry())
    with answering(ATTACKS["a byte at a time"]) as url:
        exporter = SpanExporter(url + "/v1/traces", {}, Encoder("1", "node-1"), count.labels)
        exporter.start()
        exporter.add(SPAN)
        with anyio.fail_after(60):
            while exporter._queue:
                await anyio.sleep(0.01)
        began = time.monotonic()
        await exporter.aclose()
        assert time.monotonic() - began < module.WHOLE_S - 1  # the answer is not waited for
