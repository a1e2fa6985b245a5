"""A real OTLP receiver: an HTTP server that decodes what it is sent, and can refuse it, or not answer at all."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {1: "internal", 2: "server", 3: "client"}


@dataclass(frozen=True)
class Received:
    """One span. Ids are hex digits; `node` is the one that sent it."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    state: str
    began: int
    ended: int
    failed: bool
    about: dict[str, Any]
    links: list[tuple[str, str]]
    node: str


@dataclass
class Collector:
    """`status` is what it answers; while `holds` is clear it answers nothing."""

    url: str = ""
    status: int = 200
    spans: list[Received] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    holds: threading.Event = field(default_factory=threading.Event)
    raw: list[bytes] = field(default_factory=list)

    def of(self, trace: str) -> list[Received]:
        return [each for each in self.spans if each.trace == trace]

    async def wait_for(self, trace: str, count: int, within_s: float = 60.0) -> dict[tuple[str, str], Received]:
        """The spans of this trace, once there are so many, by kind and name. The next second brings no more."""
        deadline = time.monotonic() + within_s
        while len(self.of(trace)) < count:
            assert time.monotonic() < deadline, [(each.kind, each.name) for each in self.of(trace)]
            await anyio.sleep(0.02)
        found = self.of(trace)
        assert len(found) == count, [(each.kind, each.name) for each in found]
        return {(each.kind, each.name): each for each in found}

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.requests.append({**headers, "path": path})
        if self.status != 200:
            return self.status
        message = ExportTraceServiceRequest()
        message.ParseFromString(body)
        self.raw.append(body)
        for resource in message.resource_spans:
            about = _plain(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_received(span, about["service.instance.id"]) for span in scope.spans]
        return 200


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def _received(span: Any, node: str) -> Received:
    return Received(
        span.name,
        KINDS[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        _plain(span.attributes),
        [(each.trace_id.hex(), each.span_id.hex()) for each in span.links],
        node,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a port of its own."""
    collector = Collector()
    collector.holds.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.holds.wait()
            status = collector.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        collector.holds.set()
        server.shutdown()
        thread.join()
        server.server_close()
