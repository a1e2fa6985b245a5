"""/api/v1/tenants"""

from dataclasses import replace

from fastapi import APIRouter, Response

from app.admin.context import MayRead, MayRegister, Platform
from app.admin.paging import AskedPage, Page
from app.admin.schemas import TenantAnswer, TenantBody, TenantPatch
from app.domain import Limits, Tenant
from app.http.dependencies import AuthenticatedRoute
from app.http.problems import responses

router = APIRouter(route_class=AuthenticatedRoute, tags=["tenants"])


@router.post("/tenants", status_code=201, responses=responses(409))
async def create_tenant(admin: Platform, body: TenantBody, response: Response) -> TenantAnswer:
    """Adds a tenant."""
    tenant = await admin.tenants.create(Tenant(body.name, body.limits.limits()))
    response.headers["Location"] = f"/api/v1/tenants/{tenant.name}"
    return TenantAnswer.of(tenant)


@router.get("/tenants")
async def list_tenants(admin: Platform, asked: AskedPage) -> Page[TenantAnswer]:
    """All tenants, by name."""
    found = await admin.tenants.list(after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda tenant: tenant.name, TenantAnswer.of)


@router.get("/tenants/{tenant}", responses=responses(404))
async def get_tenant(access: MayRead) -> TenantAnswer:
    """One tenant, for whoever may read in it."""
    return TenantAnswer.of(await access.admin.tenants.get(access.tenant))


@router.patch("/tenants/{tenant}", responses=responses(404, 409))
async def change_tenant(access: MayRegister, patch: TenantPatch) -> TenantAnswer:
    """Changes limits. Sessions that are open stay open."""
    tenant = await access.admin.tenants.get(access.tenant)
    limits = tenant.limits
    if "limits" in patch.model_fields_set:
        limits = replace(limits, **patch.limits.model_dump(exclude_unset=True)) if patch.limits else Limits()
    if limits != tenant.limits:
        tenant = await access.admin.tenants.replace(replace(tenant, limits=limits))
        access.admin.effects.tenant_changed(tenant)
    return TenantAnswer.of(tenant)


@router.delete("/tenants/{tenant}", status_code=204, responses=responses(404, 409))
async def delete_tenant(access: MayRegister) -> None:
    """Removes a tenant with its backends and keys, and ends its sessions. The tenant `default` stays."""
    await access.admin.tenants.delete(access.tenant)
    access.admin.authenticator.forget_tenant(access.tenant)
    access.admin.effects.tenant_removed(access.tenant)
