"""Errors of the REST API as RFC 9457 problems. The status codes are those of `http/errors.py`."""

import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.errors import Forbidden, GatewayError, InvalidRequest, StorageUnavailable, Unauthenticated
from app.http.errors import ALIKE, HttpRefusal, http_status, phrase, retry_after
from app.telemetry import logs
from app.telemetry.logs import Seldom
from app.text.meant import did_you_mean

MEDIA_TYPE = "application/problem+json"
TOLD = "trunkline.told"  # in the ASGI scope: the GatewayError of the answer
MAX_ERRORS = 20  # in one answer, whatever the body has

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_REASONS = {
    400: "parse_error", 404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "too_large",
    415: "unsupported_type",
}  # fmt: skip
_logger = logging.getLogger(__name__)
_unavailable = Seldom()

# For OpenAPI: what a problem looks like.
_STRING = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "reason"],
    "properties": {
        "type": {**_STRING, "format": "uri-reference"},
        "title": _STRING,
        "status": {"type": "integer"},
        "detail": _STRING,
        "reason": {**_STRING, "description": "A stable word for machines."},
        "hint": {**_STRING, "description": "What a person can do next."},
        "limit": {
            "type": "object",
            "description": "The limit that the request has run into.",
            "required": ["name", "of", "allowed", "raised_by"],
            "properties": {
                "name": _STRING,
                "of": {"enum": ["address", "principal", "session", "tenant", "backend", "node"]},
                "allowed": {"type": "number"},
                "used": {"type": "number"},
                "raised_by": {**_STRING, "description": "Who can raise it, and how."},
            },
        },
        "request_id": {**_STRING, "description": "As in the log and the `X-Request-Id` of the answer."},
        "errors": {
            "type": "array",
            "maxItems": MAX_ERRORS,
            "items": {
                "type": "object",
                "required": ["detail"],
                "properties": {
                    "detail": _STRING,
                    "pointer": {**_STRING, "description": "Where in the body, as a JSON pointer fragment."},
                    "parameter": {**_STRING, "description": "Which parameter of path or query."},
                },
            },
        },
    },
}


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route that may answer with problems of these statuses."""
    content = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    return {status: {"description": phrase(status), **content} for status in statuses}


class Application(FastAPI):
    """One of which every error is a problem, including unknown routes and unexpected exceptions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for kind, told in (
            (GatewayError, problem_of),
            (RequestValidationError, _validation_error),
            (HTTPException, _http_error),
            (Exception, _bug),
        ):
            self.add_exception_handler(kind, _on_the_loop(told))

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document.setdefault("components", {}).setdefault("schemas", {})["Problem"] = SCHEMA
        return document


class ProblemResponse(Response):
    """One problem, not cacheable. It has the id of the current request, except at the statuses in ALIKE."""

    media_type = MEDIA_TYPE

    def __init__(
        self, status: int, reason: str, *, headers: Mapping[str, str] | None = None, **members: object
    ) -> None:
        content = {"type": "about:blank", "title": phrase(status), "status": status, "reason": reason}
        content |= {name: value for name, value in members.items() if value}
        served = logs.current.get()
        if status not in ALIKE and served is not None and "request" in (fields := served.fields()):
            content["request_id"] = fields["request"]
        # Escaped to ASCII: a name that the client made up may contain what UTF-8 cannot encode.
        super().__init__(json.dumps(content), status, {"Cache-Control": "no-store", **(headers or {})})


def _on_the_loop(
    told: Callable[[Request, Exception], Response],
) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Starlette calls plain functions in a thread, which a node at its limit of threads cannot start."""

    async def on_the_loop(request: Request, error: Exception) -> Response:
        return told(request, error)

    return on_the_loop


def problem_of(request: Request, error: Exception) -> Response:
    """A GatewayError, as this request is answered with it."""
    assert isinstance(error, GatewayError)
    request.scope[TOLD] = error
    # Errors that JSON-RPC answers with status 200 are the backend's fault.
    status = http_status(error) if http_status(error) >= HTTPStatus.BAD_REQUEST else HTTPStatus.BAD_GATEWAY
    if isinstance(error, StorageUnavailable):
        cause = "" if error.__cause__ is None else f": {' '.join(str(error.__cause__).split())}"
        _unavailable.error(_logger, f"{error}{cause}")
    errors = None
    if isinstance(error, InvalidRequest) and error.field is not None:
        errors = [{"detail": str(error), "pointer": f"#/{error.field}"}]
    limit = None if error.reached is None else error.reached.shown()
    return ProblemResponse(
        status, error.reason, detail=str(error), hint=error.hint, limit=limit, errors=errors, headers=_headers(error)
    )


def _headers(error: GatewayError) -> dict[str, str]:
    headers = {}
    seconds = retry_after(error)
    if seconds is not None:
        headers["Retry-After"] = str(math.ceil(seconds))
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer error="invalid_token"' if error.token_was_sent else "Bearer"
    if isinstance(error, Forbidden):
        headers["WWW-Authenticate"] = f'Bearer error="insufficient_scope", scope="{" ".join(error.scopes)}"'
    return headers


def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if any(each["type"] == "json_invalid" for each in error.errors()):
        return _refusal(request, HttpRefusal(400, "parse_error", "The body is not JSON."))
    errors = [_one_error(each["loc"], _words(request, each)) for each in error.errors()[:MAX_ERRORS]]
    misfit = HttpRefusal(422, "invalid_request", "The request does not fit the schema.")
    return _refusal(request, misfit, errors=errors)


def _words(request: Request, error: Mapping[str, Any]) -> str:
    """Ours, where Pydantic's are about its own types."""
    kind, where = error["type"], error["loc"]
    if kind == "extra_forbidden":
        body = getattr(request.scope.get("route"), "body_field", None)
        known = getattr(body.field_info.annotation, "model_fields", ()) if body and len(where) == 2 else ()
        return f"there is no such member{did_you_mean(str(where[-1])[:100], known)}"
    return "must be a list" if kind == "list_type" else str(error["msg"])


def _refusal(
    request: Request, refusal: HttpRefusal, headers: Mapping[str, str] | None = None, **members: object
) -> Response:
    request.scope[TOLD] = refusal
    return ProblemResponse(refusal.status, refusal.reason, headers=headers, **{"detail": str(refusal), **members})


def _one_error(location: Iterable[int | str], message: str) -> dict[str, str]:
    # Without Pydantic's `input` and `ctx`: they repeat what was sent, which may be a secret.
    where, *path = location
    if where != "body":
        return {"detail": message, "parameter": str(path[0]) if path else str(where)}
    if path[-1:] == ["[key]"]:  # Pydantic's word for the name of a member, to which no pointer leads
        *path, name, _ = path
        message = f"the name {ascii(name)[:100]}: {message}"
    pointer = "".join("/" + str(part)[:100].replace("~", "~0").replace("/", "~1") for part in path)
    return {"detail": message, "pointer": "#" + pointer}


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed(request))
    refusal = HttpRefusal(error.status_code, _REASONS.get(error.status_code, "refused"), error.detail)
    detail = error.detail if error.detail != HTTPStatus(error.status_code).phrase else None
    return _refusal(request, refusal, headers, detail=detail)


def _allowed(request: Request) -> list[str]:
    """The methods of the path. Each method is a route of its own, which only knows itself."""
    scopes = ({**request.scope, "method": method} for method in _METHODS)
    return [scope["method"] for scope in scopes if any(r.matches(scope)[0] is Match.FULL for r in request.app.routes)]


def _bug(request: Request, _: Exception) -> Response:
    # Rest logs the exception: Starlette raises it again once this is sent.
    return _refusal(request, HttpRefusal(500, "internal_error", "Internal error; this node's log has the details."))
