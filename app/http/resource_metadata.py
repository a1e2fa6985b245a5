"""RFC 9728: the protected resource metadata, and the WWW-Authenticate challenges that point there.

Public, so it does not tell whether a backend exists, nor a missing tenant from one without issuers.
"""

import re
import time
from collections.abc import Awaitable, Callable, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.concurrency.single_flight import SingleFlight
from app.domain import NAME_PATTERN, Scope, is_name
from app.errors import Forbidden, NotFound, RateLimited, StorageUnavailable, Unauthenticated
from app.http.client_address import client_address, limited_address
from app.http.dependencies import BASE_URL
from app.limits.caller_rates import RateLimiter

PREFIX = "/.well-known/oauth-protected-resource"

REMEMBER_S = 2.0
MAX_REMEMBERED = 1000  # tenants, each with at most ten issuers

AuthorizationServers = Callable[[str], Awaitable[Sequence[str]]]  # the issuers of a tenant

_NAME = NAME_PATTERN.strip("^$")
_endpoint = re.compile(rf"/t/({_NAME})/({_NAME})/(?:mcp|sse)/?").fullmatch

router = APIRouter(include_in_schema=False)


class Remembered:
    """Looks up a tenant's issuers at most once in REMEMBER_S. Lookups are limited per address. It is
    `app.state.authorization_servers`."""

    def __init__(
        self, ask: AuthorizationServers, asked: RateLimiter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._asked, self._clock = ask, asked, clock
        self._flight = SingleFlight[str]()
        self._known: dict[
            str, tuple[Sequence[str], float]
        ] = {}  # with the time until which they hold; the oldest first

    async def of(self, tenant: str, address: str) -> Sequence[str]:
        """Raises:
        RateLimited: this address asked for too many tenants.
        StorageUnavailable: the database does not answer.
        """
        if (known := self._remembered(tenant)) is not None:
            return known
        async with self._flight.turn(tenant):
            if (known := self._remembered(tenant)) is not None:
                return known
            self._asked.spend(address)
            servers = await self._ask(tenant)
        self._known.pop(tenant, None)
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[tenant] = servers, self._clock() + REMEMBER_S
        return servers

    async def has_any(self, tenant: str, address: str) -> bool:
        """Whether clients of the tenant can get a token; not, as far as is known, where `of` raises."""
        try:
            return is_name(tenant) and bool(await self.of(tenant, address))
        except (RateLimited, StorageUnavailable):
            return False

    def _remembered(self, tenant: str) -> Sequence[str] | None:
        servers, until = self._known.get(tenant, ((), 0.0))
        return servers if until > self._clock() else None


@router.get(PREFIX + "/{place:path}")
async def resource_metadata(request: Request) -> JSONResponse:
    """The protected resource metadata of this endpoint, in the spelling that the client was given: it compares."""
    base_url: str = request.scope[BASE_URL]
    asked = (request.scope.get("raw_path") or request.scope["path"].encode()).decode("latin-1").removeprefix(PREFIX)
    # Clients put the path of the gateway's URL, which a proxy strips, between the well-known name and the endpoint's.
    path = asked.removeprefix(path_of(base_url))
    match = _endpoint(path)
    if match is None:
        raise NotFound("There is nothing at this address")
    tenant, backend = match.groups()
    remembered: Remembered = request.app.state.authorization_servers
    servers = await remembered.of(tenant, limited_address(client_address(request.scope)))
    urls = [base_url + each if each.startswith("/") else each for each in servers]
    content = {
        "resource": base_url + path,
        **({"authorization_servers": urls} if urls else {}),  # RFC 9728, 3.2: no empty arrays
        "scopes_supported": [Scope.CONNECT],
        "bearer_methods_supported": ["header"],
        "resource_name": f"{backend} of {tenant}",
    }
    # Any origin that gets here may read this: the front has refused those that are not allowed.
    return JSONResponse(content, headers={"Access-Control-Allow-Origin": "*", "Cache-Control": "no-store"})


def path_of(base_url: str) -> str:
    """Of the gateway's URL: what a proxy strips from what it passes on."""
    _, _, path = base_url.partition("://")[2].partition("/")
    return f"/{path}" if path else ""


def challenge(error: Unauthenticated | Forbidden, base_url: str, path: str, *, can_sign_in: bool) -> bytes:
    """The WWW-Authenticate header with which the MCP endpoint at this path refuses a request. Only where clients can
    get a token does it lead there: elsewhere the key is wrong, and nothing but another key helps."""
    if path.endswith("/messages"):  # the client was given the address of the stream
        path = path.removesuffix("/messages") + "/sse"
    # The path goes into a header: only a well-formed one may.
    is_ours = _endpoint(path) is not None
    where = f'resource_metadata="{base_url}{PREFIX}{path}"' if is_ours and can_sign_in else ""
    scope = f'scope="{Scope.CONNECT}"'
    if isinstance(error, Forbidden):
        words = ['error="insufficient_scope"', scope, where]
    else:
        is_wrong = error.token_was_sent
        why = 'error_description="the key is not valid"' if is_wrong and not can_sign_in else ""
        words = ['error="invalid_token"' if is_wrong else "", why, where, scope]
    return ("Bearer " + ", ".join(filter(None, words))).encode("latin-1")
