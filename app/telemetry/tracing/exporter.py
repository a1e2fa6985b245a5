"""SpanExporter: sends spans to a collector (OTLP over HTTP), in a thread of its own.

The event loop only appends to a queue. A collector that is slow, refuses or hangs costs spans, which are counted, and
nothing else: the queue is bounded, and so is the wait at the end.
"""

import logging
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import anyio.to_thread
import httpx2

from app.telemetry.tracing.spans import Span

MAX_QUEUED = 4096  # spans that wait to be sent, of 5 KiB at most: later ones are dropped
MAX_BATCH = 512  # spans of one request
EVERY_S = 1.0  # how long a span waits at most for others
TIMEOUT_S = 5.0  # for each step of a request; nothing but this thread waits
WHOLE_S = 10.0  # for all of them: an answer may come a byte at a time, or begin again and again
RETRY_S = (1.0, 2.0, 4.0, 8.0)  # between the tries to send a batch; then it is dropped
MAX_RETRY_AFTER_S = 30.0
LAST_S = 2.0  # for the last spans, when the node ends
TRANSIENT = frozenset({408, 429, 502, 503, 504})  # https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes

_seconds = re.compile(r"[0-9]{1,9}", re.ASCII).fullmatch

log = logging.getLogger(__name__)

Encode = Callable[[Sequence[Span]], bytes]


class Counter(Protocol):
    """Counts spans with one result. Used by both threads."""

    def inc(self, amount: float = 1) -> None: ...


class SpanExporter:
    """Opened by `start`; `aclose` ends it."""

    def __init__(self, url: str, headers: Mapping[str, str], encode: Encode, count: Callable[[str], Counter]) -> None:
        """`encode` makes the body of a request; `count` gives the counter of a result."""
        self._url, self._encode = url, encode
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        self._sent, self._dropped, self._failed = map(count, ("sent", "dropped", "failed"))
        self._queue = deque[Span]()
        self._wake, self._end = threading.Event(), threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="trace exporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, span: Span) -> None:
        """Called on the event loop. Never waits: where the queue is full, the span is dropped and counted."""
        queue = self._queue
        if len(queue) >= MAX_QUEUED:
            self._dropped.inc()
            return
        queue.append(span)
        if len(queue) == MAX_BATCH:
            self._wake.set()

    async def aclose(self) -> None:
        """Sends what is left, for LAST_S at most. The thread may still wait for the collector then; it dies with the
        process."""
        self._end.set()
        self._wake.set()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join, LAST_S)
        left = len(self._queue)
        if left or self._thread.is_alive():
            self._queue.clear()
            self._dropped.inc(left)
            log.warning("The collector did not take the last spans within %.0f s", LAST_S, extra={"spans": left})

    # --- in the thread

    def _run(self) -> None:
        with httpx2.Client(timeout=TIMEOUT_S, trust_env=False, headers=self._headers) as client:
            while not self._end.is_set():
                self._wake.wait(EVERY_S)
                self._wake.clear()
                self._send_all(client)
            self._send_all(client)

    def _send_all(self, client: httpx2.Client) -> None:
        while batch := list(self._taken()):
            try:
                is_sent = self._is_sent(client, self._encode(batch))
            except Exception:  # the thread must go on
                log.exception("Could not send spans: a bug in the gateway")
                is_sent = False
            (self._sent if is_sent else self._failed).inc(len(batch))

    def _taken(self) -> Iterator[Span]:
        with suppress(IndexError):  # not by its length: the end may clear it meanwhile
            for _ in range(MAX_BATCH):
                yield self._queue.popleft()

    def _is_sent(self, client: httpx2.Client, body: bytes) -> bool:
        """Tries again where the collector may take it later; while the node ends, once."""
        for wait_s in (*RETRY_S, None):
            problem, after_s = self._post(client, body)
            self._tell(problem)
            if not problem:
                return True
            if after_s is None or wait_s is None or self._end.is_set():
                return False
            self._end.wait(max(wait_s, after_s))
        return False

    def _post(self, client: httpx2.Client, body: bytes) -> tuple[str, float | None]:
        """What is wrong, if anything; and where it may be tried again, after how many seconds at least."""
        deadline = _Deadline()
        try:
            # The answer says nothing that is needed: it is not read.
            with (
                deadline.watching(),
                client.stream("POST", self._url, content=body, extensions={"trace": deadline.connected}) as answer,
            ):
                status, after = answer.status_code, answer.headers.get("retry-after", "")
        except httpx2.HTTPError as error:
            if deadline.is_over:
                return f"no whole answer within {WHOLE_S:.0f} s", 0.0
            return str(error) or type(error).__name__, 0.0
        if status < 300:
            return "", None
        after_s = min(float(after), MAX_RETRY_AFTER_S) if _seconds(after) else 0.0
        return f"it answers {status}", after_s if status in TRANSIENT else None

    def _tell(self, problem: str) -> None:
        """Logs the beginning and the end of an outage."""
        if problem and not self._is_failing:
            log.warning("The collector does not take spans: %s", problem, extra={"collector": self._url})
        elif not problem and self._is_failing:
            log.info("The collector takes spans again", extra={"collector": self._url})
        self._is_failing = bool(problem)


class _Deadline:
    """Ends one request after WHOLE_S: its connection is shut down, from a thread of its own."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.is_over = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        timer = threading.Timer(WHOLE_S, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def connected(self, event: str, info: dict[str, Any]) -> None:
        """What httpcore tells of a request: a connection, which TLS replaces by another one."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")

    def _end(self) -> None:
        self.is_over = True
        if self._socket is not None:
            with suppress(OSError):  # it is closed, or became another one
                self._socket.shutdown(socket.SHUT_RDWR)
