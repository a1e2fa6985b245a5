"""Recipes in the database."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, insert, select

from app.errors import Conflict, NotFound
from app.protocol.recipes.recipe import Recipe, as_json, from_json
from app.storage.audit_act import Act
from app.storage.engine import Database
from app.storage.rows import VersionedTable, matching, require_room
from app.storage.tables import recipes, toolsets

MAX_RECIPES_PER_TENANT = 100
_VERSIONED = VersionedTable(recipes, ["tenant", "name"], "recipe", lambda: NotFound("Recipe not found"))


class RecipeRepository:
    """Finds and changes recipes, always of one tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, name: str) -> Recipe:
        """Raises NotFound: the tenant has none of this name."""
        row = await self._database.row(select(recipes).where(_VERSIONED.row(tenant, name)))
        if row is None:
            raise NotFound("Recipe not found")
        return _recipe(row)

    async def list(self, tenant: str, *, after: str = "", limit: int = MAX_RECIPES_PER_TENANT) -> Sequence[Recipe]:
        """Up to `limit` recipes by name, after the name `after`."""
        behind = (recipes.c.tenant == tenant) & (recipes.c.name > after)
        query = select(recipes).where(behind).order_by(recipes.c.name).limit(limit)
        return [_recipe(row) for row in await self._database.rows(query)]

    async def state(self, tenant: str) -> object:
        """Equal to an earlier one if no recipe of the tenant has changed since."""
        query = select(recipes.c.name, recipes.c.version, recipes.c.changed_at).where(matching(recipes, tenant=tenant))
        return [tuple(row) for row in await self._database.rows(query.order_by(recipes.c.name))]

    async def create(self, tenant: str, recipe: Recipe, *, act: Act | None = None) -> Recipe:
        """Adds the recipe.

        Raises:
            Conflict: the tenant has one of this name.
            NotFound: there is no such toolset.
            QuotaExceeded: the tenant has as many recipes as it may have.
        """
        created = msgspec.structs.replace(recipe, version=1)
        async with self._database.write(act) as connection:
            of_toolset = matching(toolsets, tenant=tenant, name=recipe.toolset)
            if (await connection.execute(select(toolsets.c.name).where(of_toolset).with_for_update())).first() is None:
                raise NotFound("Toolset not found")
            if (await connection.execute(select(recipes.c.name).where(_VERSIONED.row(tenant, recipe.name)))).first():
                raise Conflict("there is a recipe of this name")
            words = f"a tenant has at most {MAX_RECIPES_PER_TENANT} recipes"
            await require_room(connection, recipes.c.tenant == tenant, "recipes", MAX_RECIPES_PER_TENANT, words)
            await connection.execute(insert(recipes).values(tenant=tenant, **_values(created)))
        return created

    async def replace(self, tenant: str, recipe: Recipe, *, act: Act | None = None) -> Recipe:
        """Writes a recipe that was read before, as its next version.

        Raises:
            NotFound: it is gone.
            ConcurrentChange: somebody else has changed it since it was read.
        """
        changed = msgspec.structs.replace(recipe, version=recipe.version + 1)
        async with self._database.write(act) as connection:
            await _VERSIONED.update(connection, [tenant, recipe.name], recipe.version, _values(changed))
        return changed

    async def delete(self, tenant: str, name: str, *, version: int | None = None, act: Act | None = None) -> None:
        """Removes the recipe; with a `version`, only that one.

        Raises:
            NotFound: the tenant has none of this name.
            ConcurrentChange: it is another version now.
        """
        await _VERSIONED.delete(self._database, [tenant, name], version, act)


def _values(recipe: Recipe) -> dict[str, Any]:
    return {**msgspec.structs.asdict(recipe), "method": as_json(recipe.method)}


def _recipe(row: Row[Any]) -> Recipe:
    return Recipe(
        row.name,
        row.toolset,
        row.title,
        row.description,
        row.input_schema,
        from_json(row.method),
        row.changed_at,
        row.version,
    )
