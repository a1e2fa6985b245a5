"""/api/v1/tenants"""

from dataclasses import replace
from typing import get_args

from fastapi import Response

from app.admin._conditions import AskedState, tagged
from app.admin._merge_patch import patched
from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin._switches import Switch, switched
from app.admin.audit_changes import changes_of
from app.admin.context import Access, MayPerhapsManage, MayRead, MayRegister, Platform
from app.admin.idempotency import ONCE
from app.admin.schemas.fields import SwitchPatch
from app.admin.schemas.tenants import LimitsUseAnswer, TenantAnswer, TenantBody, TenantInUse, TenantPatch
from app.auth.policy import is_platform_admin
from app.cluster.node_status.limits_use import added
from app.cluster.node_status.questions import LIMITS_USE
from app.domain import DEFAULT_TENANT, InspectionMode, Scope, Tenant
from app.domain.resources.members import plain
from app.errors import Conflict, Forbidden
from app.http.problems import responses

router = ResourceRouter(tags=["tenants"])

_OWN = frozenset({"inspections", "sign_in"})  # what administrators of the tenant may change


@router.post("/tenants", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_tenant(access: Platform, body: TenantBody, response: Response) -> TenantAnswer:
    """Adds a tenant."""
    tenant: Tenant = body.value()
    act = access.act("tenant.create", "", tenant=tenant.name, changes=changes_of(None, TenantAnswer.of(tenant)))
    tenant = await access.admin.tenants.create(tenant, act=act)
    response.headers["Location"] = f"/api/v1/tenants/{tenant.name}"
    return tagged(response, TenantAnswer.of(tenant))


@router.get("/tenants")
async def list_tenants(access: Platform, asked: AskedPage) -> Page[TenantAnswer]:
    """All tenants, by name."""
    found = await access.admin.tenants.list(after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda tenant: tenant.name, TenantAnswer.of)


@router.get("/tenants/{tenant}", responses=responses(404))
async def get_tenant(access: MayRead, response: Response) -> TenantInUse:
    """One tenant: its limits, and how much of each is used."""
    tenant = await access.admin.tenants.get(access.tenant)
    told = await access.admin.node.ask(LIMITS_USE, access.tenant)
    use = added(told.rows)
    shown = LimitsUseAnswer(
        sessions=use.sessions,
        sessions_per_principal=use.sessions_of_one,
        processes=use.processes,
        in_flight=use.in_flight,
        memory_mb=round(use.memory_bytes / (1 << 20), 1),
        spawns_per_minute=use.spawns,
        parked_sessions=use.parked_sessions,
        frozen_sessions=use.frozen_sessions,
        silent_nodes=list(told.silent),
    )
    return tagged(response, TenantInUse(**dict(TenantAnswer.of(tenant)), use=shown).made(tenant))


@router.patch("/tenants/{tenant}", responses=responses(404, 409, 412))
async def change_tenant(
    access: MayPerhapsManage, patch: TenantPatch, response: Response, if_match: AskedState
) -> TenantAnswer:
    """Changes limits, whether its backends are exempt from `SANDBOX=require`, who may read its registry, whether its
    sessions may be inspected, or how people connect clients (`sign_in`): open sessions stay open, inspections that are
    no longer allowed end within a second on every node, and without `sign_in` all that people have connected. null
    removes `sign_in`. Administrators of the tenant may change only `sign_in`, and `inspections` to something stricter.
    Or switches the tenant off or on again: off, its sessions and processes end within a second on every node, and its
    keys and tokens are refused, by this API too. The tenant `default` cannot be switched off, because platform
    administrators belong to it."""
    tenant = await access.admin.tenants.get(access.tenant)
    if_match.require(TenantAnswer.of(tenant))
    changed = _patched(access, tenant, patch)
    if not is_platform_admin(access.principal) and not _is_its_own(tenant, changed, patch):
        raise Forbidden([Scope.PLATFORM_ADMIN], held=access.principal.scopes)
    if changed != tenant:
        changes = changes_of(TenantAnswer.of(tenant), TenantAnswer.of(changed))
        act = access.act("tenant.change", "", " ".join(sorted(patch.model_fields_set)), changes=changes)
        with if_match.still():
            tenant = await access.admin.tenants.replace(changed, act=act)
    return tagged(response, TenantAnswer.of(tenant))


@router.delete("/tenants/{tenant}", status_code=204, responses=responses(404, 409, 412))
async def delete_tenant(access: MayRegister, if_match: AskedState) -> None:
    """Removes a tenant with its backends and keys, and ends its sessions. `default` cannot be removed."""
    tenant = await access.admin.tenants.get(access.tenant)
    if_match.require(TenantAnswer.of(tenant))
    with if_match.still():
        act = access.act("tenant.delete", "", changes=changes_of(TenantAnswer.of(tenant), None))
        await access.admin.tenants.delete(access.tenant, version=if_match.version(tenant.version), act=act)


def _is_its_own(old: Tenant, new: Tenant, patch: TenantPatch) -> bool:
    """Whether a tenant's own administrators may change this."""
    modes = get_args(InspectionMode)
    is_stricter = modes.index(new.inspections) >= modes.index(old.inspections)
    return bool(patch.model_fields_set) and patch.model_fields_set <= _OWN and is_stricter


def _patched(access: Access, tenant: Tenant, patch: TenantPatch) -> Tenant:
    switch = switched(access, Switch(tenant.enabled, tenant.reason), patch)
    if not switch.enabled and tenant.name == DEFAULT_TENANT:
        raise Conflict("the tenant `default` cannot be switched off: platform administrators belong to it")
    sent = patch.model_dump(exclude_unset=True, exclude=set(SwitchPatch.model_fields))
    members = {name: plain(getattr(tenant, name)) for name in TenantBody.model_fields}
    changed: Tenant = patched(TenantBody, members, sent, nulls=("limits",)).value(version=tenant.version)
    return replace(changed, made=tenant.made, enabled=switch.enabled, reason=switch.reason)
