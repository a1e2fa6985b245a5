"""…/backends, of one tenant."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, MayRead, MayRegister
from app.admin.idempotency import ONCE
from app.admin.paging import AskedPage, Page
from app.admin.route import AdminRoute
from app.admin.schemas import HIDDEN, BackendAnswer, BackendBody, BackendPatch, TimeoutsBody
from app.domain import BackendSpec, is_name
from app.errors import BackendNotFound
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
async def list_backends(access: MayRead, asked: AskedPage) -> Page[BackendAnswer]:
    """The tenant's backends, by name."""
    found = await access.admin.backends.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda spec: spec.name, BackendAnswer.of)


@router.get("/{backend}")
async def get_backend(access: MayRead, backend: BackendName, response: Response) -> BackendAnswer:
    """One backend."""
    return tagged(response, BackendAnswer.of(await find_backend(access, backend)))


@router.patch("/{backend}", responses=responses(409, 412))
async def change_backend(
    access: MayRegister, backend: BackendName, patch: BackendPatch, response: Response, if_match: AskedState
) -> BackendAnswer:
    """Changes a backend. Sessions that are open keep the process they have; new ones get the new version."""
    spec = await find_backend(access, backend)
    if_match.require(BackendAnswer.of(spec))
    changed = patched(spec, patch)
    if changed != spec:
        act = access.act("backend.change", f"backends/{spec.name}", detail=" ".join(sorted(patch.model_fields_set)))
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
    act = access.act("backend.delete", f"backends/{spec.name}")
    with if_match.still():
        await access.admin.backends.delete(access.tenant, spec.name, version=version, act=act)
    access.admin.effects.backend_removed(spec.key)


async def register(access: Access, body: BackendBody) -> BackendSpec:
    """Makes the backend, with its record in the audit trail, and tells the node.

    Raises:
        Conflict: the name is taken.
    """
    act = access.act("backend.create", f"backends/{body.name}")
    spec = await access.admin.backends.create(access.tenant, body.spec(access.tenant), act=act)
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


def patched(spec: BackendSpec, patch: BackendPatch) -> BackendSpec:
    """The backend with the merge patch applied, checked as a whole.

    Raises:
        RequestValidationError: together they are no valid backend.
    """
    changes = patch.model_dump(exclude_unset=True)
    if changes.get("env"):
        unchanged = {name for name, value in changes["env"].items() if value == HIDDEN and name in spec.env}
        changes["env"] = {name: value for name, value in changes["env"].items() if name not in unchanged}
    try:
        body = BackendBody.model_validate(_merge(_members(spec), changes))
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_input=False)]
        raise RequestValidationError(errors) from None
    return body.spec(spec.tenant, spec.version)


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
