"""Rest: what is no MCP endpoint."""

import json
import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.http.hosts import HostPolicy
from app.http.transports.access_lines import AccessLines
from app.http.transports.request_log import RequestLog
from app.http.transports.rest import Door, Rest
from app.telemetry.logs import JsonFormatter
from app.telemetry.metrics import Metrics


class Lines(logging.Handler):
    """What would be in the log, formatted when it is written: later the request is over."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter({}))
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


@pytest.mark.parametrize("has_begun", [False, True])
async def test_the_traceback_of_a_bug_has_the_id_of_its_request(has_begun: bool) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 500, "headers": []})
        raise RuntimeError("odd")

    sent, lines, logger = list[Message](), Lines(), logging.getLogger()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    door = Door(HostPolicy([], []), RequestLog(Metrics("test"), "errors", AccessLines({})))
    headers = [(b"host", b"127.0.0.1"), (b"x-request-id", b"mine-1")]
    scope: Scope = {"type": "http", "method": "GET", "path": "/api/v1/me", "query_string": b"", "headers": headers}
    logger.addHandler(lines)
    try:
        await Rest(broken, door, {}, max_body_bytes=100)(scope, receive, send)
    finally:
        logger.removeHandler(lines)
    (line,) = [each for each in lines.found if "RuntimeError: odd" in json.dumps(each)]
    assert line["request"] == "mine-1"
    assert sent[0]["status"] == 500
    if not has_begun:
        assert json.loads(sent[1]["body"])["request_id"] == "mine-1"
