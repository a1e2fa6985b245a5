"""Recipes in the database."""

from datetime import UTC, datetime

import msgspec
import pytest

from app.domain import BackendSpec, Toolset
from app.errors import ConcurrentChange, Conflict, NotFound, QuotaExceeded
from app.protocol.recipes.recipe import Method, Question, Recipe, Step
from app.storage.tools import recipes as module
from app.storage.tools.recipes import RecipeRepository
from app.storage.tools.toolsets import ToolsetRepository

STEPS = (
    Step("a", "say", {"x": ["input.y", None]}, "input.go", Question("'Sure?'", if_declined="skip")),
    Step("b", "do"),
)
METHOD = Method((STEPS, (Step("c", "say"),)), {"k": "steps.c.text"}, 5.0)
COOK = Recipe("cook", "all", "Cook", "Cooks", {"type": "object"}, METHOD, datetime(2026, 1, 2, tzinfo=UTC))


@pytest.fixture
async def recipes(database, tenants):
    toolsets = ToolsetRepository(database)
    for tenant in ("acme", "zenith"):
        await toolsets.create(tenant, BackendSpec(tenant, "all", "", toolset=Toolset()))
    return RecipeRepository(database)


async def test_a_recipe_comes_back_as_it_was_stored(recipes):
    assert await recipes.create("acme", COOK) == COOK
    assert await recipes.get("acme", "cook") == COOK == (await recipes.list("acme"))[0]
    before = await recipes.state("acme")
    changed = await recipes.replace("acme", msgspec.structs.replace(COOK, title="x"))
    assert changed == msgspec.structs.replace(COOK, title="x", version=2) == await recipes.get("acme", "cook")
    assert await recipes.state("acme") != before
    with pytest.raises(ConcurrentChange):
        await recipes.replace("acme", COOK)
    await recipes.delete("acme", "cook", version=2)
    for missing in (recipes.get("acme", "cook"), recipes.delete("acme", "cook"), recipes.replace("acme", changed)):
        with pytest.raises(NotFound):
            await missing


async def test_of_another_tenant_there_is_nothing_and_a_recipe_needs_its_toolset(recipes):
    await recipes.create("acme", COOK)
    assert await recipes.list("zenith") == [] == await recipes.state("zenith")
    with pytest.raises(NotFound):
        await recipes.get("zenith", "cook")
    with pytest.raises(NotFound):
        await recipes.create("zenith", msgspec.structs.replace(COOK, toolset="other"))


async def test_a_name_is_taken_once_and_there_is_a_most(recipes, monkeypatch):
    await recipes.create("acme", COOK)
    with pytest.raises(Conflict):
        await recipes.create("acme", COOK)
    monkeypatch.setattr(module, "MAX_RECIPES_PER_TENANT", 1)
    with pytest.raises(QuotaExceeded):
        await recipes.create("acme", msgspec.structs.replace(COOK, name="other"))
    await recipes.create("zenith", COOK)


async def test_a_recipe_goes_with_its_toolset(recipes, database):
    await recipes.create("acme", COOK)
    await ToolsetRepository(database).delete("acme", "all")
    assert await recipes.list("acme") == []
