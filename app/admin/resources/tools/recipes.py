"""…/recipes, of one tenant: tools of a toolset that are made of calls of its other tools."""

from typing import Annotated

import msgspec
from fastapi import Path, Response

from app.admin.audit_changes import changes_of
from app.admin.conditions import AskedState, tagged
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.merge_patch import patched
from app.admin.paging import AskedPage, Page
from app.admin.route import ResourceRouter
from app.admin.schemas.recipes import CheckedRecipe, RecipeAnswer, RecipeBody, RecipePatch
from app.domain import is_name
from app.errors import Conflict, InvalidRequest, NotFound
from app.http.problems import responses
from app.protocol.recipes.checking import Problem, checking
from app.protocol.recipes.recipe import Recipe

router = ResourceRouter(tags=["recipes"])

RecipeName = Annotated[str, Path(description="The recipe's name.")]


@router.post("/recipes", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_recipe(access: MayManage, body: RecipeBody, response: Response) -> CheckedRecipe:
    """Writes a recipe, once it has been checked against what its toolset shows now."""
    recipe = body.value(access.admin.now())
    await _require_sound(access, recipe, is_new=True)
    act = access.act("recipe.create", f"recipes/{recipe.name}", changes=changes_of(None, RecipeAnswer.of(recipe)))
    recipe = await access.admin.recipes.create(access.tenant, recipe, act=act)
    access.admin.effects.writings_changed(access.tenant)
    response.headers["Location"] = f"/api/v1/tenants/{access.tenant}/recipes/{recipe.name}"
    tagged(response, RecipeAnswer.of(recipe))
    return _checked(recipe, [])


@router.get("/recipes")
async def list_recipes(access: MayRead, asked: AskedPage) -> Page[RecipeAnswer]:
    """The tenant's recipes by name."""
    return await asked.read(access.admin.recipes.list, access.tenant, lambda recipe: recipe.name, RecipeAnswer.of)


@router.get("/recipes/{recipe}")
async def get_recipe(access: MayRead, recipe: RecipeName, response: Response) -> CheckedRecipe:
    """One recipe, checked against what its toolset shows now. The tag does not cover the problems."""
    found = await _find(access, recipe)
    tagged(response, RecipeAnswer.of(found))
    return _checked(found, await _problems(access, found))


@router.patch("/recipes/{recipe}", responses=responses(409, 412))
async def change_recipe(
    access: MayManage, recipe: RecipeName, patch: RecipePatch, response: Response, if_match: AskedState
) -> CheckedRecipe:
    """Changes a recipe, once it has been checked. Runs that have begun end as they began."""
    found = await _find(access, recipe)
    if_match.require(RecipeAnswer.of(found))
    changed = _patched(found, patch)
    if changed != found:
        await _require_sound(access, changed)
        changed = msgspec.structs.replace(changed, changed_at=access.admin.now())
        names = " ".join(sorted(patch.model_fields_set))
        changes = changes_of(RecipeAnswer.of(found), RecipeAnswer.of(changed))
        act = access.act("recipe.change", f"recipes/{found.name}", names, changes=changes)
        with if_match.still():
            changed = await access.admin.recipes.replace(access.tenant, changed, act=act)
        access.admin.effects.writings_changed(access.tenant)
    tagged(response, RecipeAnswer.of(changed))
    return _checked(changed, await _problems(access, changed))


@router.delete("/recipes/{recipe}", status_code=204, responses=responses(409, 412))
async def delete_recipe(access: MayManage, recipe: RecipeName, if_match: AskedState) -> None:
    """Removes a recipe. Runs that have begun end as they began."""
    found = await _find(access, recipe)
    if_match.require(RecipeAnswer.of(found))
    act = access.act("recipe.delete", f"recipes/{found.name}", changes=changes_of(RecipeAnswer.of(found), None))
    with if_match.still():
        version = if_match.version(found.version)
        await access.admin.recipes.delete(access.tenant, found.name, version=version, act=act)
    access.admin.effects.writings_changed(access.tenant)


async def _find(access: Access, name: str) -> Recipe:
    """Raises NotFound."""
    if not is_name(name):
        raise NotFound("Recipe not found")
    return await access.admin.recipes.get(access.tenant, name)


async def _require_sound(access: Access, recipe: Recipe, *, is_new: bool = False) -> None:
    """Raises InvalidRequest, with the first problem; Conflict: a tool of the toolset has its name."""
    try:
        spec = await access.admin.toolsets.get(access.tenant, recipe.toolset)
    except NotFound:
        raise InvalidRequest(f"there is no toolset {recipe.toolset}", field="toolset") from None
    if recipe.method.deadline_s >= spec.timeouts.call_s:
        words = f"the toolset gives up a call after its `timeouts.call_s`, {spec.timeouts.call_s:g} s: raise that first"
        raise InvalidRequest(words, field="deadline_s")
    listing = await access.admin.offered.listing(spec)
    if is_new and recipe.name in listing.tools and recipe.name not in listing.own.recipes:
        raise Conflict(f"the toolset shows a tool of the name {recipe.name}")
    for problem in await access.admin.shares.in_pieces(access.tenant, checking(recipe, listing.schema, most=1)):
        raise InvalidRequest(problem.words, field=problem.where)


async def _problems(access: Access, recipe: Recipe) -> list[Problem]:
    """As far as it is known what the toolset shows. Raises StorageUnavailable."""
    spec = await access.admin.toolsets.get(access.tenant, recipe.toolset)
    listing = await access.admin.offered.listing(spec)
    return await access.admin.shares.in_pieces(access.tenant, checking(recipe, listing.schema))


def _checked(recipe: Recipe, problems: list[Problem]) -> CheckedRecipe:
    return CheckedRecipe(**dict(RecipeAnswer.of(recipe)), problems=[each.words for each in problems][:20])


def _patched(recipe: Recipe, patch: RecipePatch) -> Recipe:
    members = RecipeAnswer.of(recipe).model_dump(include=set(RecipeBody.model_fields))
    changed = patched(RecipeBody, members, patch.model_dump(exclude_unset=True))
    return changed.value(recipe.changed_at, recipe.version)
