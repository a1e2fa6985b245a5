"""/api/v1/tenants"""

from dataclasses import replace

from fastapi import APIRouter, Response

from app.admin.conditions import AskedState, tagged
from app.admin.context import MayRead, MayRegister, Platform
from app.admin.idempotency import ONCE
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.admin.schemas import TenantAnswer, TenantBody, TenantPatch
from app.domain import Limits, Tenant
from app.http.problems import responses

router = APIRouter(route_class=AdminRoute, tags=["tenants"])


@router.post("/tenants", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_tenant(access: Platform, body: TenantBody, response: Response) -> TenantAnswer:
    """Adds a tenant."""
    act = access.act("tenant.create", "", tenant=body.name)
    tenant = await access.admin.tenants.create(Tenant(body.name, body.limits.limits()), act=act)
    response.headers["Location"] = f"/api/v1/tenants/{tenant.name}"
    return tagged(response, TenantAnswer.of(tenant))


@router.get("/tenants")
async def list_tenants(access: Platform, asked: AskedPage) -> Page[TenantAnswer]:
    """All tenants, by name."""
    found = await access.admin.tenants.list(after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda tenant: tenant.name, TenantAnswer.of)


@router.get("/tenants/{tenant}", responses=responses(404))
async def get_tenant(access: MayRead, response: Response) -> TenantAnswer:
    """One tenant, for whoever may read in it."""
    return tagged(response, TenantAnswer.of(await access.admin.tenants.get(access.tenant)))


@router.patch("/tenants/{tenant}", responses=responses(404, 409, 412))
async def change_tenant(
    access: MayRegister, patch: TenantPatch, response: Response, if_match: AskedState
) -> TenantAnswer:
    """Changes limits. Sessions that are open stay open."""
    tenant = await access.admin.tenants.get(access.tenant)
    if_match.require(TenantAnswer.of(tenant))
    limits = tenant.limits
    if "limits" in patch.model_fields_set:
        limits = replace(limits, **patch.limits.model_dump(exclude_unset=True)) if patch.limits else Limits()
    if limits != tenant.limits:
        act = access.act("tenant.change", "", detail="limits")
        with if_match.still():
            tenant = await access.admin.tenants.replace(replace(tenant, limits=limits), act=act)
        access.admin.effects.tenant_changed(tenant)
    return tagged(response, TenantAnswer.of(tenant))


@router.delete("/tenants/{tenant}", status_code=204, responses=responses(404, 409, 412))
async def delete_tenant(access: MayRegister, if_match: AskedState) -> None:
    """Removes a tenant with its backends and keys, and ends its sessions. The tenant `default` stays."""
    tenant = await access.admin.tenants.get(access.tenant)
    if_match.require(TenantAnswer.of(tenant))
    version = tenant.version if if_match.is_given else None
    with if_match.still():
        await access.admin.tenants.delete(access.tenant, version=version, act=access.act("tenant.delete", ""))
    access.admin.authenticator.forget_tenant(access.tenant)
    access.admin.effects.tenant_removed(access.tenant)
