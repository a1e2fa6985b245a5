"""Declared resources in the database: those that go with their tenant, and those that go with another object."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.domain import BackendSpec, Toolset
from app.domain.resources.guides import GUIDES, Guide
from app.domain.resources.recipes import RECIPES, Method, Question, Recipe, Step
from app.errors import ConcurrentChange, Conflict, NotFound, QuotaExceeded
from app.storage.declared import StoredRepository
from app.storage.tools.toolsets import ToolsetRepository

AT = datetime(2026, 1, 2, tzinfo=UTC)
STYLE = Guide(name="a", title="Style", description="How to write", text="# Style\n\nBe brief: 🙂", changed_at=AT)
STEPS = (
    Step("a", "say", {"x": ["input.y", None]}, "input.go", Question("'Sure?'", if_declined="skip")),
    Step("b", "do"),
)
METHOD = Method((STEPS, (Step("c", "say"),)), {"k": "steps.c.text"}, 5.0)
COOK = Recipe(name="a", toolset="all", input_schema={"type": "object"}, method=METHOD, changed_at=AT)


@pytest.fixture
async def toolsets(database, tenants):
    toolsets = ToolsetRepository(database)
    for tenant in ("acme", "zenith"):
        await toolsets.create(tenant, BackendSpec(tenant, "all", "", toolset=Toolset()))
    return toolsets


@pytest.fixture(params=[(GUIDES, STYLE), (RECIPES, COOK)], ids=["guides", "recipes"])
def declared(request, database, toolsets):
    """A repository, and a value for it."""
    resource, value = request.param
    return StoredRepository(database, resource), value


async def test_a_value_comes_back_as_it_was_stored(declared):
    stored, value = declared
    assert await stored.create("acme", value) == value
    assert await stored.get("acme", "a") == value == (await stored.list("acme"))[0]
    before = await stored.state("acme")
    changed = await stored.replace("acme", replace(value, title="x"))
    assert changed == replace(value, title="x", version=2) == await stored.get("acme", "a")
    assert await stored.state("acme") != before
    with pytest.raises(ConcurrentChange):
        await stored.replace("acme", value)
    with pytest.raises(ConcurrentChange):
        await stored.delete("acme", "a", version=1)
    await stored.delete("acme", "a", version=2)
    assert await stored.list("acme") == [] == await stored.state("acme")
    for missing in (stored.get("acme", "a"), stored.delete("acme", "a"), stored.replace("acme", changed)):
        with pytest.raises(NotFound):
            await missing


async def test_of_another_tenant_there_is_nothing(declared):
    stored, value = declared
    await stored.create("acme", value)
    assert await stored.list("zenith") == [] == await stored.state("zenith")
    with pytest.raises(NotFound):
        await stored.get("zenith", "a")
    with pytest.raises(NotFound):
        await stored.create("nobody", value)


async def test_a_name_is_taken_once_and_there_is_a_most(declared, database):
    stored, value = declared
    await stored.create("acme", value)
    with pytest.raises(Conflict):
        await stored.create("acme", value)
    few = StoredRepository(database, replace(stored._resource, per_tenant=1))
    with pytest.raises(QuotaExceeded):
        await few.create("acme", replace(value, name="other"))
    await few.create("zenith", value)


async def test_a_recipe_needs_its_toolset_and_goes_with_it(database, toolsets):
    recipes = StoredRepository(database, RECIPES)
    with pytest.raises(NotFound):
        await recipes.create("zenith", replace(COOK, toolset="other"))
    await recipes.create("acme", COOK)
    await toolsets.delete("acme", "all")
    assert await recipes.list("acme") == []
