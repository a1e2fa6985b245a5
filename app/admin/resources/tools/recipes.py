"""…/recipes, of one tenant: tools of a toolset that are made of calls of its other tools."""

from fastapi import Request

from app.admin._resource import ResourceApi, Special
from app.admin.context import Access
from app.admin.schemas.recipes import SCHEMAS, CheckedRecipe, RecipeAnswer
from app.domain.resources.recipes import RECIPES, Recipe
from app.errors import Conflict, InvalidRequest, NotFound
from app.protocol.recipes.checking import Problem, checking


async def _require_sound(access: Access, old: Recipe | None, recipe: Recipe | None) -> None:
    """Raises InvalidRequest, with the first problem; Conflict: a tool of the toolset has its name."""
    if recipe is None:
        return
    try:
        spec = await access.admin.toolsets.get(access.tenant, recipe.toolset)
    except NotFound:
        raise InvalidRequest(f"there is no toolset {recipe.toolset}", field="toolset") from None
    if recipe.method.deadline_s >= spec.timeouts.call_s:
        words = f"the toolset gives up a call after its `timeouts.call_s`, {spec.timeouts.call_s:g} s: raise that first"
        raise InvalidRequest(words, field="deadline_s")
    listing = await access.admin.offered.listing(spec)
    if old is None and recipe.name in listing.tools and recipe.name not in listing.own.recipes:
        raise Conflict(f"the toolset shows a tool of the name {recipe.name}")
    for problem in await access.admin.shares.in_pieces(access.tenant, checking(recipe, listing.schema, most=1)):
        raise InvalidRequest(problem.words, field=problem.where)


async def _checked(access: Access, recipe: Recipe, _: Request) -> CheckedRecipe:
    """With its problems, as far as it is known what the toolset shows. Raises StorageUnavailable."""
    spec = await access.admin.toolsets.get(access.tenant, recipe.toolset)
    listing = await access.admin.offered.listing(spec)
    return _with(await access.admin.shares.in_pieces(access.tenant, checking(recipe, listing.schema)), recipe)


def _with(problems: list[Problem], recipe: Recipe) -> CheckedRecipe:
    return CheckedRecipe(**dict(RecipeAnswer.of(recipe)), problems=[each.words for each in problems][:20])


router = ResourceApi(
    RECIPES,
    SCHEMAS,
    Special(
        before=_require_sound,
        shown=CheckedRecipe,
        show=_checked,
        show_new=lambda _access, recipe, _response: _with([], recipe),  # it was checked before it was stored
    ),
).router
