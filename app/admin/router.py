"""The REST API under /api/v1, put together."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.security import HTTPBearer

from app.admin.resources import (
    api_keys,
    audit,
    backends,
    checks,
    failures,
    imports,
    issuer_checks,
    issuers,
    nodes,
    principals,
    processes,
    sessions,
    tenants,
    use,
)
from app.http.problems import responses

PREFIX = "/api/v1"

# Only for OpenAPI: `AuthenticatedRoute` has authenticated before this could.
_bearer = HTTPBearer(
    auto_error=False, scheme_name="key", description="An API key: `tlk_…`, or a JWT of an issuer of the tenant"
)

_OF_TENANTS = (
    ("/backends", backends.router),
    ("/backends", checks.router),
    ("/backends:import", imports.router),
    ("/keys", api_keys.router),
    ("/principals", principals.router),
    ("/issuers", issuers.router),
    ("/issuers", issuer_checks.router),
    ("/sessions", sessions.router),
    ("/processes", processes.router),
    ("/failures", failures.router),
)


def build_router() -> APIRouter:
    """All resources. Paths without a tenant speak of the tenant `default`."""
    router = APIRouter(
        prefix=PREFIX, dependencies=[Depends(_bearer)], responses=responses(400, 401, 403, 422, 429, 503)
    )
    for resource in (tenants.router, nodes.router, use.router, audit.router):
        router.include_router(resource)
    for path, resource in _OF_TENANTS:
        router.include_router(resource, prefix=path, responses=responses(404))
        router.include_router(
            resource,
            prefix="/tenants/{tenant}" + path,
            responses=responses(404),
            dependencies=[Depends(_describe_tenant)],
        )
    return router


def _describe_tenant(tenant: Annotated[str, Path(description="The tenant's name.")]) -> None:
    """Only for OpenAPI: the endpoints find the tenant through `admin.context`."""
