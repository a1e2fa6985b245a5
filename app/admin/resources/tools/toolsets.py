"""…/toolsets, of one tenant: several backends behind one address."""

from dataclasses import replace
from typing import Annotated

from fastapi import Path, Request, Response

from app.admin.audit_changes import changes_of
from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.merge_patch import patched
from app.admin.paging import AskedPage, Page
from app.admin.route import ResourceRouter
from app.admin.schemas.toolsets import MemberStatus, ShownToolset, ToolsetAnswer, ToolsetBody, ToolsetPatch
from app.admin.switches import Switch, switched
from app.domain import BackendSpec, is_name
from app.errors import Conflict, InvalidRequest, NotFound
from app.http.dependencies import BASE_URL
from app.http.problems import responses
from app.protocol.recipes.checking import checking
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.offer import Offer
from app.protocol.toolset.searching import CALL, FIND
from app.search.work import Work

router = ResourceRouter(tags=["toolsets"])

_COUNTED = ("tools/list", "prompts/list", "resources/list")

ToolsetName = Annotated[str, Path(description="The toolset's name.")]


@router.post("/toolsets", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_toolset(access: MayManage, body: ToolsetBody, request: Request, response: Response) -> ShownToolset:
    """Makes one address of several backends. Members that nobody has asked yet what they offer are asked now, which
    may take 20 seconds."""
    spec = body.spec(access.tenant)
    await _require_members(access, spec)
    _require_no_clash(spec, await access.admin.offered.listing(spec))
    act = access.act("toolset.create", f"toolsets/{spec.name}", changes=changes_of(None, ToolsetAnswer.of(spec)))
    spec = await access.admin.toolsets.create(access.tenant, spec, act=act)
    access.admin.effects.backend_changed(spec)
    response.headers["Location"] = f"/api/v1/tenants/{spec.tenant}/toolsets/{spec.name}"
    tagged(response, ToolsetAnswer.of(spec))
    return await _shown(access, spec, request)


@router.get("/toolsets")
async def list_toolsets(access: MayRead, asked: AskedPage) -> Page[ToolsetAnswer]:
    """The tenant's toolsets by name."""
    return await asked.read(access.admin.toolsets.list, access.tenant, lambda spec: spec.name, ToolsetAnswer.of)


@router.get("/toolsets/{toolset}")
async def get_toolset(access: MayRead, toolset: ToolsetName, request: Request, response: Response) -> ShownToolset:
    """One toolset, with what it shows and what is wrong with its members. The tag covers its registration only."""
    spec = await find_toolset(access, toolset)
    tagged(response, ToolsetAnswer.of(spec))
    return await _shown(access, spec, request)


@router.patch("/toolsets/{toolset}", responses=responses(409, 412))
async def change_toolset(
    access: MayManage, toolset: ToolsetName, patch: ToolsetPatch, request: Request, response: Response,
    if_match: AskedState,
) -> ShownToolset:  # fmt: skip
    """Changes a toolset: open sessions keep what they have. Or switches it off or on, as with a backend."""
    spec = await find_toolset(access, toolset)
    if_match.require(ToolsetAnswer.of(spec))
    switch = switched(access, Switch(spec.enabled, spec.reason, spec.off_by_platform), patch)
    changed = _patched(spec, patch, switch)
    if changed.timeouts.call_s < spec.timeouts.call_s:
        _require_longer(changed, await access.admin.offered.listing(spec))
    if changed.toolset != spec.toolset:
        await _require_members(access, changed)
        _require_no_clash(changed, await access.admin.offered.listing(changed))
    if changed != spec:
        names = " ".join(sorted(patch.model_fields_set))
        changes = changes_of(ToolsetAnswer.of(spec), ToolsetAnswer.of(changed))
        act = access.act("toolset.change", f"toolsets/{spec.name}", names, changes=changes)
        with if_match.still():
            changed = await access.admin.toolsets.replace(access.tenant, changed, act=act)
        access.admin.effects.backend_changed(changed)
    tagged(response, ToolsetAnswer.of(changed))
    return await _shown(access, changed, request)


@router.delete("/toolsets/{toolset}", status_code=204, responses=responses(409, 412))
async def delete_toolset(access: MayManage, toolset: ToolsetName, if_match: AskedState) -> None:
    """Removes a toolset and ends its sessions. Its members stay."""
    spec = await find_toolset(access, toolset)
    if_match.require(ToolsetAnswer.of(spec))
    act = access.act("toolset.delete", f"toolsets/{spec.name}", changes=changes_of(ToolsetAnswer.of(spec), None))
    with if_match.still():
        await access.admin.toolsets.delete(access.tenant, spec.name, version=if_match.version(spec.version), act=act)
    access.admin.effects.backend_removed(spec.key)


async def find_toolset(access: Access, name: str) -> BackendSpec:
    """Raises NotFound."""
    if not is_name(name):
        raise NotFound("Toolset not found")
    return await access.admin.toolsets.get(access.tenant, name)


async def _require_members(access: Access, spec: BackendSpec) -> None:
    """Raises InvalidRequest: a member is no backend of the tenant."""
    assert spec.toolset is not None
    for number, member in enumerate(spec.toolset.members):
        try:
            await access.admin.backends.get(access.tenant, member.backend)
        except NotFound:
            words = f"there is no backend {member.backend}"
            raise InvalidRequest(words, field=f"members/{number}/backend") from None


async def _shown(access: Access, spec: BackendSpec, request: Request) -> ShownToolset:
    """Raises StorageUnavailable: it is not known what the members offer."""
    listing = await access.admin.offered.listing(spec)
    odd_recipes = await access.admin.shares.in_pieces(access.tenant, _of_recipes(listing))
    status = [_status(access, each.name, each.offer) for each in listing.members]
    answer = ToolsetAnswer.of(spec)
    return ShownToolset(
        **dict(answer),
        address=f"{request.scope.get(BASE_URL, '')}/t/{spec.tenant}/{spec.name}/mcp",
        shown_tools=listing.tools,
        shown_guides=[each.name for each in listing.own.guides.values()],
        recipes=list(listing.own.recipes),
        status=status,
        problems=[*listing.clashes, *listing.hidden, *listing.odd, *odd_recipes],
    )


def _of_recipes(listing: ToolsetListing) -> Work[list[str]]:
    """The first problem of each recipe that cannot work with what is shown now."""
    told = list[str]()
    for name, recipe in listing.own.recipes.items():
        told += [f"recipe {name}: {each.words}" for each in (yield from checking(recipe, listing.schema, most=1))]
    return told


def _status(access: Access, backend: str, offer: Offer | None) -> MemberStatus:
    tools, prompts, resources = (None if offer is None else len(offer.items(method)) for method in _COUNTED)
    problem = access.admin.offered.problem((access.tenant, backend))
    return MemberStatus(backend=backend, tools=tools, prompts=prompts, resources=resources, problem=problem)


def _require_no_clash(spec: BackendSpec, listing: ToolsetListing) -> None:
    """Raises Conflict: two members have a tool or a prompt of one name, or one has that of a tool of the search."""
    assert spec.toolset is not None
    own = {FIND, CALL} & set(listing.tools)
    if spec.toolset.mode != "list" and own:
        raise Conflict(f"{', '.join(sorted(own))}: a search has a tool of this name: give the member another `prefix`")
    if listing.clashes:
        what = "; ".join(listing.clashes[:3])
        raise Conflict(f"{what}: give one of the members another `prefix`, or `rename` or `exclude` the tool")


def _require_longer(spec: BackendSpec, listing: ToolsetListing) -> None:
    """Raises InvalidRequest: it would give up a call of a recipe before that ends, which no new recipe may have."""
    for name, recipe in listing.own.recipes.items():
        if recipe.method.deadline_s >= spec.timeouts.call_s:
            words = f"the recipe {name} has a `deadline_s` of {recipe.method.deadline_s:g} s: lower that first"
            raise InvalidRequest(words, field="timeouts/call_s")


def _patched(spec: BackendSpec, patch: ToolsetPatch, switch: Switch) -> BackendSpec:
    members = ToolsetAnswer.of(spec).model_dump(include=set(ToolsetBody.model_fields))
    changes = {**patch.model_dump(exclude_unset=True), "enabled": switch.enabled, "reason": switch.reason}
    changed = patched(ToolsetBody, members, changes).spec(spec.tenant, spec.version)
    return replace(changed, made=spec.made, home=spec.home, off_by_platform=switch.off_by_platform)
