"""An HTTP API on loopback that says what it was asked."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Mapping[str, str], bytes]


@dataclass(frozen=True)
class Heard:
    """One request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Host:
    """Answers what `answers` says for a path without its query, and otherwise what it was asked. `held`: paths whose
    answer waits until `freed`."""

    url: str = ""
    heard: list[Heard] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    freed: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)  # a client has closed a held connection

    def answer(self, asked: Heard) -> Answer:
        path = asked.target.partition("?")[0]
        said = {"method": asked.method, "target": asked.target, "body": json.loads(asked.body or b"null")}
        return self.answers.get(path, (200, {"Content-Type": "application/json"}, json.dumps(said).encode()))


def _handler(host: Host) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = Heard(self.command, self.path, dict(self.headers.items()), body)
            host.heard.append(asked)
            if self.path.partition("?")[0] in host.held:
                self._hold()
                return
            status, headers, answer = host.answer(asked)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def _hold(self) -> None:
            self.connection.settimeout(60)
            if self.connection.recv(1) == b"":
                host.left.set()
            self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _do  # noqa: N815 - as the base class wants them

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def api_host() -> Iterator[Host]:
    """A host that serves until the end of the block."""
    host = Host()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(host))
    server.daemon_threads = True
    host.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
