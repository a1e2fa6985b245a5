"""/registry/{tenant}/v0.1: the read API of the MCP registry, from which editors take what they may use. /v0.1 without a
tenant is that of `default`, as in the REST API.

Who may read is the tenant's `registry`: `public` everybody, `keys` who has a credential of the tenant, and of what is
listed only what that may connect to. Without a credential every other tenant is answered alike: one that has none, one
that is switched off, one that is not there.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from app.auth.policy import has_scope, may_connect
from app.concurrency.single_flight import SingleFlight
from app.domain import DEFAULT_TENANT, Principal, RegistryMode, Scope, is_name
from app.errors import InvalidRequest
from app.http._registry_documents import LATEST, Asked, Documents, Server, etag_of, version_of
from app.http.client_address import client_address, limited_address
from app.http.dependencies import BASE_URL, authenticate
from app.limits.caller_rates import RateLimiter

PREFIX, PREFIX_OF_DEFAULT = "/registry/", "/v0.1/"
REMEMBER_S = 2.0
MAX_REMEMBERED = 50  # tenants, each with at most 2,000 short entries
MAX_PAGE = 100
MAX_SEARCH = 200
PUBLIC_S = 60  # for how long caches may keep what is public

# Any origin may read it: a page sends no credential that it does not have.
# The headers are those that GitHub asks for on every answer.
_OPEN = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, X-API-Key, Content-Type, If-None-Match",
    "Access-Control-Expose-Headers": "ETag, Retry-After",
}
_PREFLIGHT = {**_OPEN, "Access-Control-Max-Age": "7200"}
_BASE, _BASE_OF_DEFAULT = PREFIX + "{tenant}/v0.1/servers", PREFIX_OF_DEFAULT + "servers"

router = APIRouter(include_in_schema=False)


class Listing(Protocol):
    """What a tenant lists, sorted by name, and who may read it."""

    @property
    def mode(self) -> RegistryMode: ...
    @property
    def servers(self) -> Sequence[Server]: ...


class Registries:
    """Reads each tenant's list at most once in REMEMBER_S; limits requests per address. `app.state.registries`."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[Listing]],
        issuers: Callable[[str], Awaitable[Sequence[str]]],
        asked: RateLimiter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`issuers` are those with which people of a tenant can sign in."""
        self._ask, self._issuers, self._asked, self._clock = ask, issuers, asked, clock
        self._flight = SingleFlight[str]()
        self._known: dict[str, tuple[Listing, bool, float]] = {}  # with the time until which it holds; oldest first

    def spend(self, address: str) -> None:
        """Raises RateLimited."""
        self._asked.spend(address)

    async def of(self, tenant: str) -> tuple[Listing, bool]:
        """The list, and whether people can sign in. Raises StorageUnavailable."""
        if (known := self._remembered(tenant)) is not None:
            return known
        async with self._flight.turn(tenant):
            if (known := self._remembered(tenant)) is not None:
                return known
            listing = await self._ask(tenant)
            can_sign_in = listing.mode != "off" and bool(await self._issuers(tenant))
        self._known.pop(tenant, None)
        if len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[tenant] = listing, can_sign_in, self._clock() + REMEMBER_S
        return listing, can_sign_in

    def _remembered(self, tenant: str) -> tuple[Listing, bool] | None:
        known = self._known.get(tenant)
        return known[:2] if known is not None and known[2] > self._clock() else None


class PageQuery(BaseModel):
    """Which servers a list has. Parameters that are not known are ignored: other registries have more."""

    cursor: str = Field("", max_length=63)
    limit: int = Field(30, ge=1)
    search: str = Field("", max_length=MAX_SEARCH)
    updated_since: str = Field("", max_length=64)
    version: str = Field("", max_length=255)


@router.options(PREFIX_OF_DEFAULT + "{rest:path}")
@router.options(PREFIX + "{rest:path}")
async def preflight() -> Response:
    """What a page of another origin may ask."""
    return Response(status_code=204, headers=_PREFLIGHT)


@router.get(_BASE_OF_DEFAULT)
@router.get(_BASE)
async def list_servers(request: Request, page: Annotated[PageQuery, Query()]) -> Response:
    """The tenant's servers, by name."""
    asked = Asked(page.cursor, min(page.limit, MAX_PAGE), page.search, _since(page.updated_since), page.version)
    return await _answered(request, lambda documents, servers: documents.page(servers, asked))


@router.get(_BASE_OF_DEFAULT + "/{name:path}/versions")
@router.get(_BASE + "/{name:path}/versions")
async def list_versions(request: Request, name: str) -> Response:
    """The versions of a server: the present one."""

    def versions(documents: Documents, servers: Sequence[Server]) -> dict[str, Any] | None:
        found = documents.found(servers, unquote(name))
        return None if found is None else {"servers": [documents.answer(found)], "metadata": {"count": 1}}

    return await _answered(request, versions)


@router.get(_BASE_OF_DEFAULT + "/{name:path}/versions/{version}")
@router.get(_BASE + "/{name:path}/versions/{version}")
async def get_version(request: Request, name: str, version: str) -> Response:
    """A server in its present version, by its number or as `latest`."""

    def one(documents: Documents, servers: Sequence[Server]) -> dict[str, Any] | None:
        found = documents.found(servers, unquote(name))
        is_there = found is not None and unquote(version) in (LATEST, version_of(found))
        return documents.answer(found) if found is not None and is_there else None

    return await _answered(request, one)


Write = Callable[[Documents, Sequence[Server]], dict[str, Any] | None]


async def _answered(request: Request, write: Write) -> Response:
    """The document, or 404 where `write` finds none.

    Raises:
        Unauthenticated: the registry is not public, and there is no valid credential.
        RateLimited, StorageUnavailable.
    """
    registries: Registries = request.app.state.registries
    registries.spend(limited_address(client_address(request.scope)))
    tenant = request.path_params.get("tenant", DEFAULT_TENANT)
    listing, can_sign_in = await registries.of(tenant) if is_name(tenant) else (None, False)
    is_public = listing is not None and listing.mode == "public"
    shown: Sequence[Server] = listing.servers if listing is not None and is_public else ()
    if not is_public:
        principal = await authenticate(request)
        if listing is None or listing.mode != "keys" or principal.tenant != tenant:
            return _nothing()
        shown = [server for server in listing.servers if _may_see(principal, tenant, server.name)]
    document = write(Documents(tenant, request.scope[BASE_URL], can_sign_in), shown)
    if document is None:
        return _nothing()
    caching = f"public, max-age={PUBLIC_S}" if is_public else "private, no-cache"
    headers = {**_OPEN, "ETag": etag_of(document), "Cache-Control": caching, "Vary": "Authorization, X-API-Key, Host"}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return JSONResponse(document, headers=headers)


def _may_see(principal: Principal, tenant: str, name: str) -> bool:
    return may_connect(principal, tenant, name) or has_scope(principal, tenant, Scope.TENANT_READ)


def _nothing() -> Response:
    """As the registry's API has it; the same for everything that is not there."""
    return JSONResponse({"error": "Server not found"}, 404, headers={**_OPEN, "Cache-Control": "no-store"})


def _since(text: str) -> datetime | None:
    """Raises InvalidRequest."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest("`updated_since` is a time such as 2026-01-31T12:00:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@router.get(PREFIX_OF_DEFAULT + "{rest:path}")
@router.get(PREFIX + "{rest:path}")
async def nothing_else(request: Request) -> Response:
    """Other paths, which OPTIONS knows: there is nothing."""
    registries: Registries = request.app.state.registries
    registries.spend(limited_address(client_address(request.scope)))
    return _nothing()
