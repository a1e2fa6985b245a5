"""…/toolsets, of one tenant: several backends behind one address."""

from dataclasses import replace

from fastapi import Request

from app.admin._resource import ResourceApi, Special
from app.admin._switches import Switch, switched
from app.admin.context import Access
from app.admin.schemas.toolsets import SCHEMAS, MemberStatus, ShownToolset, ToolsetAnswer, ToolsetPatch
from app.domain import BackendSpec
from app.domain.resources.toolsets import TOOLSETS
from app.errors import Conflict, InvalidRequest, NotFound
from app.http.dependencies import BASE_URL
from app.protocol.recipes.checking import checking
from app.protocol.search.work import Work
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.offer import Offer
from app.protocol.toolset.searching import CALL, FIND

_COUNTED = ("tools/list", "prompts/list", "resources/list")


async def _require_sound(access: Access, old: BackendSpec | None, spec: BackendSpec | None) -> None:
    """Raises InvalidRequest, Conflict: it cannot work."""
    if spec is None:
        return
    if old is not None and spec.timeouts.call_s < old.timeouts.call_s:
        _require_longer(spec, await access.admin.offered.listing(old))
    if old is None or spec.toolset != old.toolset:
        await _require_members(access, spec)
        _require_no_clash(spec, await access.admin.offered.listing(spec))


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


def _patched(access: Access, spec: BackendSpec, patch: ToolsetPatch) -> BackendSpec:
    switch = switched(access, Switch(spec.enabled, spec.reason, spec.off_by_platform), patch)
    changed = TOOLSET_API.merged(access, spec, patch, enabled=switch.enabled, reason=switch.reason)
    return replace(
        changed,
        made=spec.made,
        home=spec.home,
        sandbox_exempt=spec.sandbox_exempt,
        off_by_platform=switch.off_by_platform,
    )


TOOLSET_API = ResourceApi(
    TOOLSETS,
    SCHEMAS,
    Special(
        store=lambda admin: admin.toolsets,
        before=_require_sound,
        merged=_patched,
        shown=ShownToolset,
        show=_shown,
    ),
)
router, find_toolset = TOOLSET_API.router, TOOLSET_API.find
