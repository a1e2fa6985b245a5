"""AdminRoute: checks each authenticated request to the REST API: rate, turn on the event loop, query parameters, body,
`Idempotency-Key`. ResourceRouter: the routes of a resource."""

import codecs
import json
import re
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from enum import Enum
from functools import cached_property
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from app.admin.idempotency import AnsweredOnce
from app.auth.policy import is_platform_admin, may_see
from app.domain import is_name
from app.errors import InvalidRequest, ParseError
from app.http.dependencies import PRINCIPAL, AuthenticatedRoute, authenticate_again, authenticated_principal
from app.http.errors import HttpRefusal
from app.http.problems import MAX_ERRORS
from app.limits.caller_rates import RateLimiter
from app.limits.loop_shares import LoopShares

MAX_SHOWN = 100  # characters of an unknown name
READ_COST, WRITE_COST, ACTION_COST = 1.0, 2.0, 25.0  # an action is `:check`, `:restart`, `:update`, …
COMPARISON_COST = 5.0  # ten a second: files have many secrets, and a guess is not worth so few

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_WORDS = "trunkline.admin.words"  # of the path, in a scope
_words = re.compile("[/:]").split


class AdminRoute(AuthenticatedRoute):
    """An authenticated route with a rate per principal, whose POST is carried out once for each Idempotency-Key."""

    def behind_authentication(self) -> Handler:
        """The route's application, with the checks before it."""
        handle = super().behind_authentication()
        known, takes_body = _known_parameters(self.dependant), self.body_field is not None

        async def checked(request: Request) -> Response:
            _require_known(request, known)
            if request.method != "GET":
                _check(await _body(request), request.headers.get("content-type", ""), takes_body=takes_body)
            key = request.headers.get("idempotency-key")
            if request.method != "POST" or key is None:
                return await handle(request)
            return await _once(request, key, handle)

        async def in_its_share(request: Request) -> Response:
            context = request.app.state.admin_context
            rates: RateLimiter = context.rates
            shares: LoopShares = context.shares
            rates.spend(authenticated_principal(request).identity, _cost(request.method, request.scope["path"]))
            tenant = await _in_turn(request, shares)
            response = await shares.charged(tenant, checked(request))
            if isinstance(response, StreamingResponse):
                response.body_iterator = _parts_in_turn(response.body_iterator, shares, tenant)
            return response

        return in_its_share


class ResourceRouter(APIRouter):
    """The routes of a resource.

    FastAPI would try the routes of every router, three times for each request. A path that lacks the last fixed word of
    each of ours cannot be one of them.
    """

    def __init__(self, *, tags: list[str | Enum] | None = None) -> None:
        super().__init__(route_class=AdminRoute, tags=tags)

    @cached_property
    def _last_words(self) -> frozenset[str]:
        every = [_words(route.path) for route in self.routes if isinstance(route, APIRoute)]
        return frozenset(next(word for word in reversed(words) if not word.startswith("{")) for words in every)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As the router's own, sooner."""
        words = scope.get(_WORDS)
        if words is None:
            words = scope[_WORDS] = _words(scope["path"])
        if self._last_words.isdisjoint(words):
            return Match.NONE, {}
        return super().matches(scope)


async def _in_turn(request: Request, shares: LoopShares) -> str:
    """Returns the tenant whose share of the event loop a request uses, once that has a turn: the tenant of the path
    where it exists for the principal, else nobody could be kept from using up that of others. Platform administrators
    do not wait: they are who can stop such a tenant."""
    principal = authenticated_principal(request)
    named = request.path_params.get("tenant", principal.tenant)
    tenant: str = named if may_see(principal, named) and is_name(named) else principal.tenant
    if shares.is_over(tenant) and not is_platform_admin(principal):
        await shares.enter(tenant)
        request.scope[PRINCIPAL] = await authenticate_again(request)
    return tenant


async def _parts_in_turn(parts: AsyncIterable[Any], shares: LoopShares, tenant: str) -> AsyncIterator[Any]:
    """The parts of a file, each in its turn, and charged."""
    every = aiter(parts)
    while True:
        await shares.turn(tenant)
        try:
            part = await shares.charged(tenant, _next(every))
        except StopAsyncIteration:
            return
        yield part


async def _next(parts: AsyncIterator[Any]) -> Any:
    return await anext(parts)


async def _once(request: Request, key: str, handle: Handler) -> Response:
    answered: AnsweredOnce = request.app.state.admin_context.answered_once
    body = await _body(request)
    claim = await answered.begin(authenticated_principal(request), request.scope["path"], key, body)
    if isinstance(claim, Response):
        return claim
    response: Response | None = None
    try:
        response = await handle(request)
    finally:
        await answered.finish(claim, response)
    return response


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise HTTPException(400) from None


def _check(body: bytes, content_type: str, *, takes_body: bool) -> None:
    """What FastAPI would let pass. It says itself what is no JSON."""
    _require_utf8(body)
    if takes_body and body and not _is_json(content_type):
        raise HttpRefusal(415, "unsupported_media_type", "send the body with `Content-Type: application/json`")
    try:
        sent = json.loads(body or b"{}", object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        sent = None
    if sent != {} and not takes_body:
        raise InvalidRequest("this route takes no body; send none, or {}")


def _is_json(content_type: str) -> bool:
    """As FastAPI sees it: `application/merge-patch+json` is JSON too."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a repeated member Python would take the last one, and a proxy perhaps the first."""
    members = dict(pairs)
    if len(members) != len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise InvalidRequest(f"the member {json.dumps(name[:MAX_SHOWN])} is repeated; send it once")
    return members


def _require_utf8(body: bytes) -> None:
    """JSON between systems is UTF-8 (RFC 8259, 8.1). Python's decoder would also guess UTF-16 and UTF-32, so that a
    proxy could read another document than we do."""
    try:
        body.decode()
    except UnicodeDecodeError:
        raise ParseError("the body is not UTF-8") from None
    if b"\0" in body or body.startswith(codecs.BOM_UTF8):
        raise ParseError("the body is not JSON in UTF-8 without a byte order mark")


def _cost(method: str, path: str) -> float:
    """What a request takes from its principal's rate: changes and actions cost more, as the audit trail keeps them."""
    if path.endswith(":compare"):
        return COMPARISON_COST
    if ":" in path.rpartition("/")[2]:
        return ACTION_COST if method == "POST" else READ_COST
    return READ_COST if method == "GET" else WRITE_COST


def _known_parameters(dependant: Dependant) -> frozenset[str]:
    """The query parameters of a route and of its dependencies."""
    names = {field.alias for field in dependant.query_params}
    return frozenset(names.union(*(_known_parameters(each) for each in dependant.dependencies)))


def _require_known(request: Request, known: frozenset[str]) -> None:
    """Refuses unknown parameters, because an ignored filter would return everything, and an ignored `dry_run` would be
    a change; and repeated ones.

    Raises:
        RequestValidationError: there is such a parameter.
    """
    if not request.scope["query_string"]:
        return
    counts = Counter(name for name, _ in request.query_params.multi_items())
    errors = [
        {"type": "parameter", "loc": ("query", name[:MAX_SHOWN]), "msg": _problem(name[:MAX_SHOWN], known)}
        for name, count in counts.items()
        if name not in known or count > 1
    ]
    if errors:
        raise RequestValidationError(errors[:MAX_ERRORS])


def _problem(name: str, known: frozenset[str]) -> str:
    if name in known:
        return f"the parameter `{name}` is repeated; send it once"
    listed = ", ".join(f"`{each}`" for each in sorted(known))
    return f"unknown parameter `{name}`; " + (f"known are {listed}" if known else "this route has none")
