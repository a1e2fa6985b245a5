"""RequestLog: counts and logs refused requests and, at ACCESS_LOG=all, every request."""

import logging
from collections.abc import Mapping

from starlette.types import Scope

from app.domain import Principal
from app.errors import GatewayError, Unauthenticated
from app.http.errors import http_status
from app.http.request_ids import RequestIds
from app.http.transports.access_lines import MAX_DETAIL, AccessLine, AccessLines, Seen
from app.http.transports.request import MAX_NAME, McpRequest
from app.limits.lately import Refusals
from app.limits.tenant_limits import Tallies
from app.protocol.jsonrpc import Message, Notification, Request, string_of
from app.telemetry.logs import Thinned
from app.telemetry.metrics import Metrics, error_label

OFF, ERRORS, ALL = "off", "errors", "all"
_NAMED = frozenset({"tools/call", "prompts/get"})

log = logging.getLogger(__name__)


class RequestLog:
    """`level` is the setting ACCESS_LOG.

    Refusals are logged at any level, at a limited rate, with the limit or rule they ran into; from `errors` on failed
    calls too. At `all` each request has one line instead, when it is over.
    """

    def __init__(
        self,
        metrics: Metrics,
        level: str,
        lines: AccessLines,
        refused: Refusals | None = None,
        tallies: Tallies | None = None,
    ) -> None:
        self._refusals, self._level, self._lines = metrics.refusals, level, lines
        self._refused, self._tallies = refused or Refusals(), tallies or Tallies()
        self.has_every_request = level == ALL
        self._thinned = Thinned(log)

    def error(self, request: McpRequest, error: GatewayError) -> None:
        """An MCP endpoint answers with this error."""
        status = http_status(error)
        principal = request.principal if request.is_let_in else None
        self._remember(error, status, principal, request.client_address())
        if self._counts(error.reason, status) and not (self.has_every_request and _ends_with(request)):
            # The principal's tenant: that of the path is any word the client likes.
            self._say(error, status, request.principal.tenant if request.is_let_in else "", _call(request))

    def problem(self, error: GatewayError | None, status: int, principal: Principal | None, address: str = "") -> None:
        """The REST API answers with this error; None where Starlette or FastAPI made it."""
        tenant = "" if principal is None else principal.tenant
        if error is not None:
            self._remember(error, status, principal, address)
            if self._counts(error.reason, status) and not self.has_every_request:
                self._say(error, status, tenant, {})
            return
        self._refusals.labels("invalid_request" if status < 500 else "internal_error").inc()
        if not self.has_every_request:
            self._thinned.info((status, tenant), "request refused", {"status": status})

    def _remember(self, error: GatewayError, status: int, principal: Principal | None, address: str) -> None:
        """For the activity of the tenant, and for what is wrong."""
        tenant, name = ("", "") if principal is None else (principal.tenant, principal.name)
        if tenant and status >= 400:
            self._tallies.of(tenant).refused(error.reason)
        if error.reached is not None:
            self._refused.limited(tenant, name or address, error.reached)
        if isinstance(error, Unauthenticated) and address and error.facts.get("failure") != "missing":
            self._refused.credentials.note(address)

    def backend_error(self, request: McpRequest) -> None:
        """The backend has answered a call with the error in `request.outcome`."""
        if self._level == ERRORS:
            kind = _kind(request.outcome), request.tenant, request.backend
            self._thinned.info(kind, "a backend answered with an error", {"outcome": request.outcome, **_call(request)})

    def watch(self, request: McpRequest) -> Seen:
        """At `all`: sees everything that goes out as the answer; to be handed to `over` at its end."""
        seen = Seen(request.scope, request.send)
        request.watch(seen)
        return seen

    def over(self, request: McpRequest, seen: Seen, rest: Mapping[str, object] | None = None) -> None:
        """At `all`: the request was answered, or its client has left. `rest` are the fields of one to the REST API."""
        method, tool = _called(request.message)
        tenant, backend, kind = request.tenant, request.backend, request.kind
        if len(request.scope["path"]) > MAX_NAME:
            tenant, backend, kind = tenant[:MAX_NAME], backend[:MAX_NAME], kind[:MAX_NAME]
        line = AccessLine(
            *self._lines.stamp(), *request.ids.names(), request.method, seen.status, seen.ms(), request.bytes_in,
            seen.bytes_out, seen.reason or request.outcome or seen.outcome(), kind, tenant,
            backend, request.public_session if rest is None else "", request.principal_name, method, tool,
            len(request.message) if type(request.message) is list else 0, request.sent_to,
            seen.detail,
        )  # fmt: skip
        self._lines.write(line, seen.facts if rest is None else {**rest, **seen.facts})

    def _counts(self, reason: str, status: int) -> bool:
        """Counts a refusal; whether it is logged at this level."""
        if status < 400:  # a failed call, counted with its duration
            return self._level != OFF
        self._refusals.labels(reason).inc()
        return True

    def _say(self, error: GatewayError, status: int, tenant: str, call: Mapping[str, object]) -> None:
        what = "request refused" if status >= 400 else "call failed"
        fields = {**call, "reason": error.reason, "status": status, "detail": str(error)[:MAX_DETAIL], **error.facts}
        # The rate is limited per cause: a flood of requests without a credential must not hide a wrong audience.
        self._thinned.info((error.reason, tenant, error.facts.get("failure")), what, fields)


def _kind(outcome: str) -> str:
    """The outcome as one of a closed set: backends choose their error codes freely."""
    try:
        return error_label(int(outcome))
    except ValueError:
        return outcome


def _ends_with(request: McpRequest) -> bool:
    """Whether an error is the outcome of the whole request, and not of one call on a stream."""
    return request.method == "POST" and request.kind == "mcp"


def _called(message: Message | list[Message] | None) -> tuple[str, str]:
    """Method, and the tool or prompt, as far as this node has read the request."""
    if type(message) is not Request and type(message) is not Notification:
        return "", ""
    method = message.method
    name = string_of(message.params.get("name")) if method in _NAMED and message.params else None
    return method[:MAX_NAME], (name or "")[:MAX_NAME]


def _call(request: McpRequest) -> dict[str, object]:
    if isinstance(request.message, list):
        return {"batch": len(request.message)}
    method, name = _called(request.message)
    named = {"prompt" if method == "prompts/get" else "tool": name} if name else {}
    return {"method": method, **named} if method else {}


def rest_fields(scope: Scope, ids: RequestIds) -> dict[str, object]:
    """The fields of every log line about a request to the REST API."""
    fields: dict[str, object] = {**ids.fields(), "path": scope["path"][:MAX_NAME]}
    params = scope.get("path_params", {})
    fields |= {name: str(params[name])[:MAX_NAME] for name in ("tenant", "backend") if name in params}
    principal = scope.get("state", {}).get("principal")
    if isinstance(principal, Principal):
        fields["principal"] = principal.name
    return fields
