"""The endpoints of a tenant's authorization server that programs ask: /oauth/{tenant}/… and its metadata. Those for
browsers are pages of the console (`console/consent.py`).

Who asks for an unknown tenant, or one that has no such server, gets the answer for an address where there is nothing.
"""

import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from app.auth.authorization.addresses import Addresses
from app.auth.authorization.clients import ClientRefused
from app.auth.authorization.server import AuthorizationServers
from app.domain import is_name
from app.domain.resources.fields import Unfit
from app.errors import NotFound, ProviderUnavailable, StorageUnavailable
from app.http.client_address import client_address, limited_address
from app.http.dependencies import BASE_URL
from app.http.resource_metadata import path_of
from app.limits.caller_rates import RateLimiter
from app.limits.loop_shares import LoopShares

MAX_FIELDS = 50
OF_TENANT = 0.1  # what a registration costs its tenant: ten times as many as of one address
# Browsers' programs may ask from any origin that the front lets in: no answer depends on a cookie.
_OPEN = {"Access-Control-Allow-Origin": "*", "Cache-Control": "no-store"}
_PREFLIGHT = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, MCP-Protocol-Version",
    "Access-Control-Max-Age": "600",
}


class _InItsShare(APIRoute):
    """What anybody asks of a tenant's server has a share of the event loop of its own: it takes nothing from the calls
    of that tenant, nor from those of others."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def in_its_share(request: Request) -> Response:
            shares = _of(request).shares
            whose = f"{request.path_params.get('tenant', '')} sign_in"  # the name of no tenant
            if shares.is_over(whose):
                await shares.enter(whose)
            return await shares.charged(whose, handle(request))

        return in_its_share


router = APIRouter(include_in_schema=False, route_class=_InItsShare)


class Authorization:
    """What the endpoints work with. It is `app.state.signing_in`."""

    def __init__(
        self,
        servers: AuthorizationServers,
        refused: RateLimiter,
        registrations: RateLimiter,
        metadata: RateLimiter,
        shares: LoopShares | None = None,
    ) -> None:
        """`refused`: tries at the token endpoint, by address; `metadata`: of metadata and keys. Those that succeed are
        given back."""
        self.servers, self.refused, self.registrations, self.metadata = servers, refused, registrations, metadata
        self.shares = shares or LoopShares()


@router.options("/oauth/{rest:path}")
async def preflight() -> Response:
    """What a page of another origin may ask."""
    return Response(status_code=204, headers=_PREFLIGHT)


@router.get("/.well-known/oauth-authorization-server/{place:path}")
@router.get("/.well-known/openid-configuration/{place:path}")
async def metadata_at_the_root(request: Request, place: str) -> JSONResponse:
    """RFC 8414, 3.1, and the OpenID form of it: the path of the issuer comes last, with what a proxy strips of it."""
    path = "/" + place
    tenant = path.removeprefix(path_of(request.scope[BASE_URL])).removeprefix("/oauth/") if "/oauth/" in path else ""
    return await _metadata(request, tenant)


@router.get("/oauth/{tenant}/.well-known/openid-configuration")
@router.get("/oauth/{tenant}/.well-known/oauth-authorization-server")
async def metadata(request: Request, tenant: str) -> JSONResponse:
    """The same below the issuer."""
    return await _metadata(request, tenant)


@router.get("/oauth/{tenant}/jwks")
async def jwks(request: Request, tenant: str) -> JSONResponse:
    """The public keys of access tokens."""
    found = await _found(request, tenant, _of(request).servers.jwks)
    return JSONResponse(dict(found), headers={**_OPEN, "Cache-Control": "max-age=300"})


@router.post("/oauth/{tenant}/token")
async def token(request: Request, tenant: str) -> JSONResponse:
    """The token endpoint (RFC 6749, 3.2). Many refusals from one address are slowed down."""
    authorization, to = _of(request), _to(request, tenant)
    address = limited_address(client_address(request.scope))
    authorization.refused.spend(address)
    try:
        answer = await authorization.servers.token(to, await _form(request), request.headers.get("authorization", ""))
    except (StorageUnavailable, ProviderUnavailable):  # which refuses nobody
        authorization.refused.give_back(address)
        raise
    if not answer.is_error:
        authorization.refused.give_back(address)
    return JSONResponse(dict(answer.body), answer.status, {**_OPEN, "Pragma": "no-cache", **answer.headers})


@router.post("/oauth/{tenant}/revoke")
async def revoke(request: Request, tenant: str) -> Response:
    """The revocation endpoint (RFC 7009)."""
    authorization, to = _of(request), _to(request, tenant)
    address = limited_address(client_address(request.scope))
    authorization.refused.spend(address)
    error = await authorization.servers.revoke(to, await _form(request), request.headers.get("authorization", ""))
    if error is None:
        authorization.refused.give_back(address)
        return Response(status_code=200, headers=_OPEN)
    return JSONResponse(dict(error.body), error.status, {**_OPEN, **error.headers})


@router.post("/oauth/{tenant}/register")
async def register(request: Request, tenant: str) -> JSONResponse:
    """Registration (RFC 7591)."""
    authorization, to = _of(request), _to(request, tenant)
    address = limited_address(client_address(request.scope))
    counted = ((address, 1.0), (f"tenant {tenant}", OF_TENANT))
    for whose, cost in counted:
        authorization.registrations.spend(whose, cost)
    try:
        asked: Any = json.loads(await request.body())
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        return _refused("invalid_client_metadata", "the body is no JSON object")
    try:
        made, is_new = await authorization.servers.register(to, asked)
    except Unfit as error:
        kind = "invalid_redirect_uri" if error.kind == "redirect_uri" else "invalid_client_metadata"
        return _refused(kind, str(error))
    except ClientRefused as error:
        return _refused("access_denied", str(error), 403)
    if not is_new:  # people of one hosted program have one address, and register it each
        for whose, cost in counted:
            authorization.registrations.give_back(whose, cost)
    return JSONResponse(dict(made), 201, _OPEN)


async def _metadata(request: Request, tenant: str) -> JSONResponse:
    return JSONResponse(dict(await _found(request, tenant, _of(request).servers.metadata)), headers=_OPEN)


async def _found(
    request: Request, tenant: str, ask: Callable[[Addresses], Awaitable[Mapping[str, Any]]]
) -> Mapping[str, Any]:
    """What anybody may read of a tenant's server. Who looks for tenants that have one is slowed."""
    to, metadata = _to(request, tenant), _of(request).metadata
    address = limited_address(client_address(request.scope))
    metadata.spend(address)
    found = await ask(to)
    metadata.give_back(address)
    return found


def _of(request: Request) -> Authorization:
    found: Authorization = request.app.state.signing_in
    return found


def _to(request: Request, tenant: str) -> Addresses:
    if not is_name(tenant):
        raise NotFound("There is nothing at this address")
    return Addresses(request.scope[BASE_URL], tenant)


async def _form(request: Request) -> dict[str, list[str]]:
    """The fields of a form, each with all its values; none of what is no form."""
    body = await request.body()
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}


def _refused(error: str, words: str, status: int = 400) -> JSONResponse:
    plain = "".join(each if " " <= each <= "~" and each not in '"\\' else "'" for each in words)
    return JSONResponse({"error": error, "error_description": plain}, status, _OPEN)
