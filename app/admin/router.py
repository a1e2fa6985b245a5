"""The REST API under /api/v1, put together."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.security import HTTPBearer

from app.admin.resources import (
    access,
    api_keys,
    audit,
    backends,
    clients,
    comparisons,
    connections,
    imports,
    issuer_checks,
    issuers,
    me,
    nodes,
    package_updates,
    principals,
    processes,
    sessions,
    tenants,
)
from app.admin.resources.now import activity, calls, inspections, problems
from app.admin.resources.tools import approvals, catalog, guides, recipes, toolsets
from app.http.problems import responses

PREFIX = "/api/v1"

# Only for OpenAPI: `AuthenticatedRoute` authenticates before this would.
_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="key",
    description="An API key: `tlk_…`, or a JWT of an issuer of the tenant; `X-API-Key` with it means the same",
)

_OF_TENANTS = (
    backends, package_updates, approvals, toolsets, guides, recipes, catalog, imports, api_keys, me, principals,
    issuers, issuer_checks, clients, connections, comparisons, access, sessions, processes, calls, inspections,
)  # fmt: skip


def build_router() -> APIRouter:
    """All resources, to be included under PREFIX. Paths without a tenant mean the tenant `default`."""
    router = APIRouter(dependencies=[Depends(_bearer)], responses=responses(400, 401, 403, 422, 429, 503))
    for resource in (tenants, nodes, activity, problems, audit):
        router.include_router(resource.router)
    for resource in _OF_TENANTS:
        router.include_router(resource.router, responses=responses(404))
        router.include_router(
            resource.router,
            prefix="/tenants/{tenant}",
            responses=responses(404),
            dependencies=[Depends(_describe_tenant)],
        )
    return router


async def _describe_tenant(tenant: Annotated[str, Path(description="The tenant's name.")]) -> None:
    """Only for OpenAPI: `admin.context` reads the tenant from the path."""
