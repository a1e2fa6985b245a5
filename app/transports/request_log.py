"""RequestLog: counts and logs what clients are refused, and where the operator wants it, every request."""

import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO

import msgspec
from starlette.types import Message, Scope

from app.domain import Principal
from app.errors import GatewayError
from app.http.connections import AT_ONCE
from app.http.errors import http_status
from app.http.request_ids import RequestIds
from app.logs import Thinned, without_credentials
from app.metrics import Metrics
from app.protocol.jsonrpc import Notification, Request, string_of
from app.transports.request import McpRequest

OFF, ERRORS, ALL = "off", "errors", "all"
MAX_NAME = 128  # characters of a method or a tool in a line; what clients make up is no longer
_NAMED = frozenset({"tools/call", "prompts/get"})

# Beside what JSON escapes: the other control characters, ends of lines, and what turns the direction of reading.
_steering = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

log = logging.getLogger(__name__)


class RequestLog:
    """What the front tells of each request. `level` is the setting ACCESS_LOG.

    Refusals are logged at any level, thinned: the line has the limit or the rule by name, and what was found. From
    `errors` on so is what failed otherwise. At `all` each request has one line of its own instead, when it is over.
    """

    def __init__(self, metrics: Metrics, level: str, lines: "AccessLines") -> None:
        self._refusals, self._level, self._lines = metrics.refusals, level, lines
        self.has_every_request = level == ALL  # `over` wants to hear of each
        self._thinned = Thinned(log)

    def error(self, request: McpRequest, error: GatewayError) -> None:
        """A client of an MCP endpoint is told this."""
        status = http_status(error)
        if self._counts(error.reason, status) and not (self.has_every_request and _ends_with(request)):
            # Whose it is, not what is asked for: that is the client's word, and there is no end of words.
            self._say(error, status, request.principal.tenant if request.is_let_in else "", _call(request))

    def problem(self, error: GatewayError | None, status: int, tenant: str) -> None:
        """A client of the REST API is told this."""
        if error is not None:
            if self._counts(error.reason, status) and not self.has_every_request:
                self._say(error, status, tenant, {})
            return
        self._refusals.labels("invalid_request" if status < 500 else "internal_error").inc()
        if not self.has_every_request:
            self._thinned.info((status, tenant), "request refused", {"status": status})

    def backend_error(self, request: McpRequest) -> None:
        """The backend has answered a call with an error; `request.outcome` says with which."""
        if self._level == ERRORS:
            kind = request.outcome, request.tenant, request.backend
            self._thinned.info(kind, "a backend answered with an error", {"outcome": request.outcome, **_call(request)})

    def over(self, request: McpRequest, seen: "Seen") -> None:
        """At `all`: the request to an MCP endpoint has been answered, or its client has left."""
        line = self._line(request, seen)
        line.endpoint, line.sent_to, line.outcome = request.kind, request.sent_to, seen.outcome_of(request)
        line.tenant, line.backend = request.tenant, request.backend
        line.session, line.principal = request.public_session, request.principal_name
        message = request.message
        if isinstance(message, Request | Notification):
            line.method = message.method if len(message.method) <= MAX_NAME else message.method[:MAX_NAME]
            if message.method in _NAMED and message.params:
                line.tool = (string_of(message.params.get("name")) or "")[:MAX_NAME]
        elif isinstance(message, list):
            line.batch = len(message)
        self._lines.write(line, {} if seen.error is None else seen.error.facts)

    def rest_over(self, request: McpRequest, fields: Mapping[str, object], seen: "Seen") -> None:
        """The same of a request to the REST API. `fields` are of its context."""
        line = self._line(request, seen)
        line.outcome = seen.outcome_of(request)
        facts = {} if seen.error is None else seen.error.facts
        self._lines.write(line, {**fields, **facts})

    def _line(self, request: McpRequest, seen: "Seen") -> "AccessLine":
        ids = request.ids
        ms = round((time.monotonic() - seen.began_at) * 1000, 1)
        line = AccessLine(ids.request, ids.trace, request.method, seen.status, ms, seen.bytes_in, seen.bytes_out)
        if seen.error is not None:
            line.detail = str(seen.error)
        return line

    def _counts(self, reason: str, status: int) -> bool:
        """Counts a refusal; whether there is to be a line of it at this level."""
        if status < 400:  # the call has failed, and that is counted with its time
            return self._level != OFF
        self._refusals.labels(reason).inc()
        return True

    def _say(self, error: GatewayError, status: int, tenant: str, call: Mapping[str, object]) -> None:
        what = "request refused" if status >= 400 else "call failed"
        fields = {**call, "reason": error.reason, "status": status, "detail": str(error), **error.facts}
        # Why a credential failed is a kind of its own: a flood of requests without one must not hide a wrong audience.
        self._thinned.info((error.reason, tenant, error.facts.get("failure")), what, fields)


class Seen:
    """At `all`: what goes out as the answer of one request; stands where its `send` was."""

    __slots__ = ("_at_once", "_send", "began_at", "bytes_in", "bytes_out", "error", "is_complete", "status")

    def __init__(self, request: McpRequest) -> None:
        self.began_at = time.monotonic()
        self._send, self.status, self.is_complete = request.send, 0, False
        self._at_once = request.scope.get(AT_ONCE)
        self.bytes_in, self.bytes_out = int(request.headers.get(b"content-length", b"0") or b"0"), 0
        self.error: GatewayError | None = None

    async def send(self, message: Message) -> None:
        """What ASGI calls `send`."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.bytes_out += len(message.get("body", b""))
            self.is_complete = not message.get("more_body")
        await self._send(message)

    def at_once(self, scope: Scope, body: bytes) -> bool:
        """What is found in the scope as `AT_ONCE`."""
        if self._at_once is None or not self._at_once(scope, body):
            return False
        self.status, self.bytes_out, self.is_complete = 200, len(body), True
        return True

    def told(self, error: GatewayError) -> None:
        """The answer is, or ends with, this error."""
        self.error = error

    def outcome_of(self, request: McpRequest) -> str:
        """`ok`, or why not in one word."""
        if self.error is not None:
            return self.error.reason
        if request.outcome:  # what the backend's answer counts as, where that is no success
            return request.outcome
        return "left" if not self.is_complete else "ok" if self.status < 400 else "refused"


class AccessLine(msgspec.Struct, omit_defaults=True):
    """What a line says of one request; what is empty is left out."""

    request: str
    trace: str
    http: str
    status: int
    ms: float
    bytes_in: int
    bytes_out: int
    outcome: str = ""
    endpoint: str = ""
    tenant: str = ""
    backend: str = ""
    session: str = ""
    principal: str = ""
    method: str = ""
    tool: str = ""  # or the prompt
    batch: int = 0
    sent_to: str = ""
    detail: str = ""


class AccessLines:
    """Lines on stderr that are many: collected for FLUSH_S, then written at once, and at the end by `close`.

    Bounded at FLUSH_BYTES: what is more is written in the same moment. The owner closes it.
    """

    FLUSH_S, FLUSH_BYTES = 0.1, 64 << 10

    def __init__(self, of_every_line: Mapping[str, object], stream: BinaryIO | None = None) -> None:
        same: dict[str, object] = {"level": "info", "logger": "access", "message": "request", **of_every_line}
        self._same, self._stream = msgspec.json.encode(same)[1:-1], stream
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._second, self._date = 0, b""
        self._lines: list[bytes] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, line: AccessLine, more: Mapping[str, object]) -> None:
        """One line. Non-ASCII stays as it is, in UTF-8; what steers a terminal or ends a line leaves escaped."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        said = self._encode(line)[1:-1]
        if more:
            said += b"," + self._encode(dict(more))[1:-1]
        text = b'{"time":"%b.%03dZ",%b,%b}\n' % (self._date, int((now - second) * 1000), self._same, said)
        if b"tlk_" in said or b"earer " in said:
            text = without_credentials(text.decode()).encode()
        if not text.isascii() or b"\x7f" in text:
            text = _steering.sub(lambda found: f"\\u{ord(found[0]):04x}", text.decode()).encode()
        self._lines.append(text)
        self._bytes += len(text)
        if self._bytes >= self.FLUSH_BYTES:
            self.close()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.FLUSH_S, self.close)

    def close(self) -> None:
        """Writes what there is. More may come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines, self._bytes = self._lines, [], 0
        if lines:
            stream = self._stream or sys.stderr.buffer
            stream.write(b"".join(lines))
            stream.flush()


def _ends_with(request: McpRequest) -> bool:
    """Whether an error that is told now is the request's own outcome, and not that of one call among others."""
    return request.method == "POST" and request.kind == "mcp"


def _call(request: McpRequest) -> dict[str, object]:
    """What was called, as far as this node has read it."""
    message = request.message
    if isinstance(message, list):
        return {"batch": len(message)}
    if not isinstance(message, Request | Notification):
        return {}
    fields: dict[str, object] = {"method": message.method[:MAX_NAME]}
    if message.method in _NAMED and message.params:
        name = string_of(message.params.get("name"))
        if name:
            fields["prompt" if message.method == "prompts/get" else "tool"] = name[:MAX_NAME]
    return fields


def rest_fields(scope: Scope, ids: RequestIds) -> Callable[[], dict[str, object]]:
    """What every line says that concerns a request to the REST API."""

    def fields() -> dict[str, object]:
        found: dict[str, object] = {**ids.fields(), "path": scope["path"][:MAX_NAME]}
        params = scope.get("path_params", {})
        found |= {name: params[name] for name in ("tenant", "backend") if name in params}
        principal = scope.get("state", {}).get("principal")
        if isinstance(principal, Principal):
            found["principal"] = principal.name
        return found

    return fields
