"""The one table from an error to its HTTP status and, for MCP endpoints, its JSON-RPC code."""

import random
from http import HTTPStatus

from app import errors
from app.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_CANCELLED,
    error_response,
)

RESPONSE_TOO_LARGE = -32010
BACKEND_BUSY = -32011
BACKEND_EXITED = -32012
BACKEND_UNAVAILABLE = -32013
SHUTTING_DOWN = -32014
TIMEOUT = -32015
QUOTA_EXCEEDED = -32016

# As RFC 9110 names them; Python does from 3.13 on.
_PHRASES = {413: "Content Too Large", 414: "URI Too Long", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}

# Answers with these statuses are the same bytes whether something does not exist or belongs to somebody else.
ALIKE = frozenset({401, 403, 404, 421})


class HttpRefusal(errors.ClientError):
    """A request refused by HTTP rules: method, media type, size. `data` is added to that of the JSON-RPC error."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        code: int = INVALID_REQUEST,
        data: dict[str, object] | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.code = status, reason, code
        self.data, self.headers = data or {}, headers


# error -> (HTTP status, JSON-RPC code); the nearest base class counts.
_TABLE: dict[type, tuple[int, int]] = {
    errors.ParseError: (400, PARSE_ERROR),
    errors.InvalidMessage: (400, INVALID_REQUEST),
    errors.InvalidRequest: (422, INVALID_REQUEST),
    errors.Unauthenticated: (401, INVALID_REQUEST),
    errors.Forbidden: (403, INVALID_REQUEST),
    errors.Disabled: (403, INVALID_REQUEST),
    errors.NotFound: (404, INVALID_REQUEST),
    errors.Conflict: (409, INVALID_REQUEST),
    errors.PreconditionFailed: (412, INVALID_REQUEST),
    errors.QuotaExceeded: (429, QUOTA_EXCEEDED),
    errors.StateRefused: (400, INVALID_PARAMS),
    errors.RequestCancelled: (200, REQUEST_CANCELLED),
    errors.BackendExited: (200, BACKEND_EXITED),
    errors.NodeLost: (200, BACKEND_EXITED),
    errors.CallCutOff: (200, BACKEND_EXITED),
    errors.UpstreamRefused: (502, BACKEND_UNAVAILABLE),
    errors.UpstreamFailed: (502, BACKEND_UNAVAILABLE),
    errors.BackendUnavailable: (503, BACKEND_UNAVAILABLE),
    errors.BackendBusy: (503, BACKEND_BUSY),
    errors.ResponseTooLarge: (200, RESPONSE_TOO_LARGE),
    errors.InvalidResponse: (200, INTERNAL_ERROR),
    errors.BackendTimeout: (200, TIMEOUT),
    errors.ShuttingDown: (503, SHUTTING_DOWN),
    errors.Overloaded: (503, BACKEND_BUSY),
    errors.NodeUnavailable: (503, BACKEND_UNAVAILABLE),
    errors.RoutesUnavailable: (503, BACKEND_UNAVAILABLE),
    errors.StorageUnavailable: (503, INTERNAL_ERROR),
    errors.ProviderUnavailable: (503, INTERNAL_ERROR),
}


def _row(error: errors.GatewayError) -> tuple[int, int]:
    if isinstance(error, HttpRefusal):
        return error.status, error.code
    return next((_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE), (500, INTERNAL_ERROR))


def phrase(status: int) -> str:
    """The reason phrase of RFC 9110, whatever the version of Python."""
    return _PHRASES.get(status) or HTTPStatus(status).phrase


def http_status(error: errors.GatewayError) -> int:
    """The status, where the head of the answer has not been sent yet."""
    if error.outcome is not None:  # 200, so that no proxy or client repeats the call on its own
        return 200
    if isinstance(error, errors.BackendExited) and not error.started:
        return 502
    return _row(error)[0]


def rpc_code(error: errors.GatewayError) -> int:
    if isinstance(error, errors.Disabled) and error.outcome is not None:  # the call was under way
        return BACKEND_EXITED
    return _row(error)[1]


def retry_after(error: errors.GatewayError) -> float | None:
    """Seconds for `Retry-After`, where trying again can help; at 503 up to a quarter more, to spread the retries."""
    seconds = error.retry_after_s
    if seconds is None or http_status(error) != 503:
        return seconds
    return seconds * random.uniform(1.0, 1.25)  # noqa: S311 - no secret


def rpc_error(
    error: errors.GatewayError, request_id: bytes = b"null", *, http_request: str = "", with_stderr: bool = False
) -> bytes:
    """The error as a JSON-RPC response to the request with these id bytes.

    `http_request` is the X-Request-Id, for people whose client does not show headers.
    `with_stderr` adds the last lines of a backend's stderr: only for principals that administer its tenant.
    """
    if request_id == b"null" and isinstance(error, errors.InvalidMessage):
        request_id = error.request_id
    data: dict[str, object] = {"reason": error.reason}
    if isinstance(error, HttpRefusal):
        data |= error.data
    if error.outcome is not None:
        data["outcome"] = error.outcome
    if error.cause is not None:
        data["cause"] = error.cause
    if error.reached is not None:
        data["limit"] = error.reached.shown()
    if isinstance(error, errors.BackendExited) and error.limit:
        data["limit"] = error.limit
    if error.hint:
        data["hint"] = error.hint
    if with_stderr and isinstance(error, errors.BackendError) and error.stderr:
        data["stderr"] = list(error.stderr)
    if http_request:
        data["request_id"] = http_request
    return error_response(request_id, rpc_code(error), str(error), data)
