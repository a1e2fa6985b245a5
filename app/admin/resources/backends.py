"""…/backends, of one tenant."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.admin.backend_state import ListedBackend, RunningBackends, ShownBackend
from app.admin.changes import changes_of_backend
from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, MayManage, MayRead, MayRegister
from app.admin.idempotency import ONCE
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.admin.schemas.backends import HIDDEN, BackendAnswer, BackendBody, BackendPatch, StoredBackend, TimeoutsBody
from app.admin.switches import Switch, switched
from app.auth.policy import has_scope, is_platform_admin
from app.domain import BackendSpec, Scope, is_name
from app.errors import BackendNotFound, Forbidden
from app.http.problems import responses

router = APIRouter(route_class=AdminRoute, tags=["backends"])

BackendName = Annotated[str, Path(description="The backend's name.")]


@router.post("", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_backend(access: MayRegister, body: BackendBody, response: Response) -> BackendAnswer:
    """Registers a command. This is permission to run it: only for platform administrators."""
    spec = await register(access, body)
    response.headers["Location"] = f"/api/v1/tenants/{spec.tenant}/backends/{spec.name}"
    return tagged(response, BackendAnswer.of(spec))


@router.get("")
async def list_backends(access: MayRead, asked: AskedPage) -> Page[ListedBackend]:
    """The tenant's backends, by name: how each is registered, how it is, and what went wrong last."""
    found = await access.admin.backends.list(access.tenant, after=asked.after, limit=asked.fetch)
    running = RunningBackends.nowhere()
    if found:
        running = RunningBackends.of(await access.admin.node.backends(access.tenant, found[0].name, found[-1].name))
    return asked.page(found, lambda spec: spec.name, running.listed)


@router.get("/{backend}")
async def get_backend(access: MayRead, backend: BackendName, response: Response) -> ShownBackend:
    """One backend, with its last failures on all nodes; what the process has said and whom it served is for
    administrators. The tag is that of how it is registered: what runs does not change it."""
    spec = await find_backend(access, backend)
    tagged(response, BackendAnswer.of(spec))
    running = RunningBackends.of(await access.admin.node.backends(access.tenant, spec.name, spec.name))
    return running.shown(spec, in_full=has_scope(access.principal, access.tenant, Scope.TENANT_ADMIN))


@router.patch("/{backend}", responses=responses(409, 412))
async def change_backend(
    access: MayManage, backend: BackendName, patch: BackendPatch, response: Response, if_match: AskedState
) -> BackendAnswer:
    """Changes a backend: sessions that are open keep the process they have, new ones get the new version. Or switches
    it off, or on again, which administrators of the tenant may too: off, its sessions end within a second on every
    node, and its processes stop. What the platform has switched off the platform switches on."""
    if patch.model_fields_set - {"enabled", "reason"} and not is_platform_admin(access.principal):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    spec = await find_backend(access, backend)
    if_match.require(BackendAnswer.of(spec))
    switch = switched(access, Switch(spec.enabled, spec.reason, spec.off_by_platform), patch)
    changed = patched(spec, patch, switch)
    if changed != spec:
        names, changes = " ".join(sorted(patch.model_fields_set)), changes_of_backend(spec, changed)
        act = access.act("backend.change", f"backends/{spec.name}", names, changes=changes)
        with if_match.still():
            changed = await access.admin.backends.replace(access.tenant, changed, act=act)
        access.admin.effects.backend_changed(changed)
    return tagged(response, BackendAnswer.of(changed))


@router.delete("/{backend}", status_code=204, responses=responses(409, 412))
async def delete_backend(access: MayRegister, backend: BackendName, if_match: AskedState) -> None:
    """Removes a backend and ends its sessions."""
    spec = await find_backend(access, backend)
    if_match.require(BackendAnswer.of(spec))
    version = spec.version if if_match.is_given else None
    act = access.act("backend.delete", f"backends/{spec.name}", changes=changes_of_backend(spec, None))
    with if_match.still():
        await access.admin.backends.delete(access.tenant, spec.name, version=version, act=act)
    access.admin.effects.backend_removed(spec.key)


async def register(access: Access, body: BackendBody) -> BackendSpec:
    """Makes the backend, with its record in the audit trail, and tells the node.

    Raises:
        Conflict: the name is taken.
    """
    spec = body.spec(access.tenant)
    act = access.act("backend.create", f"backends/{spec.name}", changes=changes_of_backend(None, spec))
    spec = await access.admin.backends.create(access.tenant, spec, act=act)
    access.admin.effects.backend_changed(spec)
    return spec


async def find_backend(access: Access, name: str) -> BackendSpec:
    """The backend that a path names.

    Raises:
        BackendNotFound: the tenant has none of this name, or nobody could.
    """
    if not is_name(name):
        raise BackendNotFound
    return await access.admin.backends.get(access.tenant, name)


def patched(spec: BackendSpec, patch: BackendPatch, switch: Switch) -> BackendSpec:
    """The backend with the merge patch applied, checked as a whole; on or off as `switch` says.

    Raises:
        RequestValidationError: together they are no valid backend.
    """
    changes = {**patch.model_dump(exclude_unset=True), "enabled": switch.enabled, "reason": switch.reason}
    if changes.get("env"):
        unchanged = {name for name, value in changes["env"].items() if value == HIDDEN and name in spec.env}
        changes["env"] = {name: value for name, value in changes["env"].items() if name not in unchanged}
    try:
        body = StoredBackend.model_validate(_merge(_members(spec), changes))
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_input=False)]
        raise RequestValidationError(errors) from None
    return replace(body.spec(spec.tenant, spec.version), home=spec.home, off_by_platform=switch.off_by_platform)


def _members(spec: BackendSpec) -> dict[str, Any]:
    members = {name: getattr(spec, name) for name in BackendBody.model_fields}
    timeouts = {name: getattr(spec.timeouts, name) for name in TimeoutsBody.model_fields}
    return {**members, "args": list(spec.args), "env": dict(spec.env), "timeouts": timeouts}


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7396, section 2."""
    merged = {name: value for name, value in target.items() if patch.get(name, value) is not None}
    for name, value in patch.items():
        if isinstance(value, dict):
            merged[name] = _merge(target.get(name) or {}, value)
        elif value is not None:
            merged[name] = value
    return merged
