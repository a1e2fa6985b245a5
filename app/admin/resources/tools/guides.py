"""…/guides, of one tenant: what administrators have written down for those who use tools."""

from dataclasses import replace
from typing import Annotated

from fastapi import Path, Response

from app.admin.audit_changes import changes_of
from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.merge_patch import patched
from app.admin.paging import AskedPage, Page
from app.admin.route import ResourceRouter
from app.admin.schemas.guides import GuideAnswer, GuideBody, GuidePatch, ListedGuide
from app.domain import Guide, is_name
from app.errors import NotFound
from app.http.problems import responses

router = ResourceRouter(tags=["guides"])

GuideName = Annotated[str, Path(description="The guide's name.")]


@router.post("/guides", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_guide(access: MayManage, body: GuideBody, response: Response) -> GuideAnswer:
    """Writes a guide. Toolsets show it whose `guides` have its name, or a pattern that matches it."""
    guide = body.value(access.admin.now())
    answer = GuideAnswer.of(guide)
    act = access.act("guide.create", f"guides/{guide.name}", changes=changes_of(None, answer))
    guide = await access.admin.guides.create(access.tenant, guide, act=act)
    access.admin.effects.writings_changed(access.tenant)
    response.headers["Location"] = f"/api/v1/tenants/{access.tenant}/guides/{guide.name}"
    return tagged(response, GuideAnswer.of(guide))


@router.get("/guides")
async def list_guides(access: MayRead, asked: AskedPage) -> Page[ListedGuide]:
    """The tenant's guides by name, without their texts."""
    found = await access.admin.guides.list(access.tenant, after=asked.after, limit=asked.fetch)
    return asked.page(found, lambda guide: guide.name, ListedGuide.of)


@router.get("/guides/{guide}")
async def get_guide(access: MayRead, guide: GuideName, response: Response) -> GuideAnswer:
    """One guide, with its text."""
    return tagged(response, GuideAnswer.of(await _find(access, guide)))


@router.patch("/guides/{guide}", responses=responses(409, 412))
async def change_guide(
    access: MayManage, guide: GuideName, patch: GuidePatch, response: Response, if_match: AskedState
) -> GuideAnswer:
    """Changes a guide. Open sessions of toolsets that show it are told."""
    found = await _find(access, guide)
    if_match.require(GuideAnswer.of(found))
    changed = _patched(found, patch)
    if changed != found:
        changed = replace(changed, changed_at=access.admin.now())
        names = " ".join(sorted(patch.model_fields_set))
        changes = changes_of(GuideAnswer.of(found), GuideAnswer.of(changed))
        act = access.act("guide.change", f"guides/{found.name}", names, changes=changes)
        with if_match.still():
            changed = await access.admin.guides.replace(access.tenant, changed, act=act)
        access.admin.effects.writings_changed(access.tenant)
    return tagged(response, GuideAnswer.of(changed))


@router.delete("/guides/{guide}", status_code=204, responses=responses(409, 412))
async def delete_guide(access: MayManage, guide: GuideName, if_match: AskedState) -> None:
    """Removes a guide. Open sessions of toolsets that show it are told."""
    found = await _find(access, guide)
    if_match.require(GuideAnswer.of(found))
    act = access.act("guide.delete", f"guides/{found.name}", changes=changes_of(GuideAnswer.of(found), None))
    with if_match.still():
        version = if_match.version(found.version)
        await access.admin.guides.delete(access.tenant, found.name, version=version, act=act)
    access.admin.effects.writings_changed(access.tenant)


async def _find(access: Access, name: str) -> Guide:
    """Raises NotFound."""
    if not is_name(name):
        raise NotFound("Guide not found")
    return await access.admin.guides.get(access.tenant, name)


def _patched(guide: Guide, patch: GuidePatch) -> Guide:
    members = GuideAnswer.of(guide).model_dump(include=set(GuideBody.model_fields))
    changed = patched(GuideBody, members, patch.model_dump(exclude_unset=True))
    return changed.value(guide.changed_at, guide.version)
