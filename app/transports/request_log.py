"""RequestLog: counts and logs what clients are refused, and where the operator wants it, every request."""

import logging
import time
from collections.abc import Callable, Mapping

from starlette.types import Message, Scope, Send

from app.domain import Principal
from app.errors import GatewayError
from app.http.errors import http_status
from app.http.request_ids import RequestIds
from app.http.scope import LEFT
from app.logs import Thinned
from app.metrics import Metrics, error_label
from app.protocol.jsonrpc import Notification, Request, string_of
from app.transports.access_lines import NOT_YET, AccessLine, AccessLines
from app.transports.request import MAX_NAME, McpRequest

OFF, ERRORS, ALL = "off", "errors", "all"
MAX_DETAIL = 1024  # characters, likewise
_NAMED = frozenset({"tools/call", "prompts/get"})

log = logging.getLogger(__name__)


class RequestLog:
    """What the front tells of each request. `level` is the setting ACCESS_LOG.

    Refusals are logged at any level, thinned: the line has the limit or the rule by name, and what was found. From
    `errors` on so is what failed otherwise. At `all` each request has one line of its own instead, when it is over.
    """

    def __init__(self, metrics: Metrics, level: str, lines: AccessLines) -> None:
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
            kind = _kind(request.outcome), request.tenant, request.backend
            self._thinned.info(kind, "a backend answered with an error", {"outcome": request.outcome, **_call(request)})

    def watch(self, request: McpRequest) -> "Seen | None":
        """Hears of the errors that a client of an MCP endpoint is told; and at `all` of everything that goes out:
        whoever answers says when that is `over`."""
        if self._level != ALL:
            request.on_error = self.error
            return None
        seen = Seen(request.scope, request.send, self)
        request.watch(seen)
        request.on_error = seen.told
        return seen

    def over(self, request: McpRequest, seen: "Seen") -> None:
        """At `all`: the request to an MCP endpoint has been answered, or its client has left."""
        message, error, ids = request.message, seen.error, request.ids
        method, tool, batch = "", "", 0
        if type(message) is Request or type(message) is Notification:
            method = message.method[:MAX_NAME]
            if method in _NAMED and message.params:
                tool = (string_of(message.params.get("name")) or "")[:MAX_NAME]
        elif type(message) is list:
            batch = len(message)
        tenant, backend, kind = request.tenant, request.backend, request.kind
        if len(request.scope["path"]) > MAX_NAME:
            tenant, backend, kind = tenant[:MAX_NAME], backend[:MAX_NAME], kind[:MAX_NAME]
        line = AccessLine(
            "", NOT_YET, *ids.names(), request.method, seen.status, seen.ms(), request.bytes_in, seen.bytes_out,
            seen.outcome_of(request), kind, tenant, backend, request.public_session, request.principal_name,
            method, tool, batch, request.sent_to, "" if error is None else str(error)[:MAX_DETAIL],
        )  # fmt: skip
        self._lines.write(line, None if error is None else error.facts)

    def rest_over(self, request: McpRequest, fields: Mapping[str, object], seen: "Seen") -> None:
        """The same of a request to the REST API. `fields` are of its context."""
        error, ids = seen.error, request.ids
        line = AccessLine(
            "", NOT_YET, *ids.names(), request.method, seen.status, seen.ms(), request.bytes_in, seen.bytes_out,
            seen.outcome_of(request), detail="" if error is None else str(error)[:MAX_DETAIL],
        )  # fmt: skip
        self._lines.write(line, {**fields, **({} if error is None else error.facts)})

    def _counts(self, reason: str, status: int) -> bool:
        """Counts a refusal; whether there is to be a line of it at this level."""
        if status < 400:  # the call has failed, and that is counted with its time
            return self._level != OFF
        self._refusals.labels(reason).inc()
        return True

    def _say(self, error: GatewayError, status: int, tenant: str, call: Mapping[str, object]) -> None:
        what = "request refused" if status >= 400 else "call failed"
        fields = {**call, "reason": error.reason, "status": status, "detail": str(error)[:MAX_DETAIL], **error.facts}
        # Why a credential failed is a kind of its own: a flood of requests without one must not hide a wrong audience.
        self._thinned.info((error.reason, tenant, error.facts.get("failure")), what, fields)


class Seen:
    """At `all`: what goes out as the answer of one request; stands where its `send` was."""

    __slots__ = ("_began_at", "_requests", "_scope", "_send", "bytes_out", "error", "is_complete", "status")

    def __init__(self, scope: Scope, send: Send, requests: RequestLog) -> None:
        self._began_at = time.monotonic()
        self._scope, self._send, self._requests = scope, send, requests
        self.status, self.bytes_out, self.is_complete = 0, 0, False
        self.error: GatewayError | None = None

    async def send(self, message: Message) -> None:
        """What ASGI calls `send`."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            await self._send(message)
            return
        await self._send(message)
        if LEFT in self._scope:
            return  # it went nowhere
        if self._scope["method"] != "HEAD":
            self.bytes_out += len(message.get("body", b""))
        self.is_complete = not message.get("more_body")

    def sent(self, status: int, size: int) -> None:
        """The whole answer went out another way."""
        self.status, self.bytes_out, self.is_complete = status, size, True

    def told(self, request: McpRequest, error: GatewayError) -> None:
        """The answer is, or ends with, this error."""
        self.error = error
        self._requests.error(request, error)

    def over(self, request: McpRequest) -> None:
        """See RequestLog."""
        self._requests.over(request, self)

    def ms(self) -> float:
        """Since the request began, to a tenth."""
        return int((time.monotonic() - self._began_at) * 10_000) / 10

    def outcome_of(self, request: McpRequest) -> str:
        """`ok`, or why not in one word."""
        if self.error is not None:
            return self.error.reason
        if request.outcome:  # what the backend's answer counts as, where that is no success
            return request.outcome
        return "left" if not self.is_complete else "ok" if self.status < 400 else "refused"


def _kind(outcome: str) -> str:
    """The outcome as one of a few: a backend says what numbers it likes."""
    try:
        return error_label(int(outcome))
    except ValueError:
        return outcome


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
        found |= {name: str(params[name])[:MAX_NAME] for name in ("tenant", "backend") if name in params}
        principal = scope.get("state", {}).get("principal")
        if isinstance(principal, Principal):
            found["principal"] = principal.name
        return found

    return fields
