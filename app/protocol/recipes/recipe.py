"""The tool that clients see of a recipe."""

from typing import Any

from app.domain.resources.recipes import Recipe


def definition(recipe: Recipe, tools: dict[str, Any]) -> dict[str, Any]:
    """The tool that clients see. `tools` are the annotations of the tools that are shown, by name; a tool that is not
    there may do anything."""
    shown: dict[str, Any] = {"name": recipe.name}
    if recipe.title:
        shown["title"] = recipe.title
    if recipe.description:
        shown["description"] = recipe.description
    annotations = _annotations([tools.get(step.tool) or {} for step in recipe.method.steps])
    return {**shown, "inputSchema": recipe.input_schema, "annotations": annotations}


def _annotations(each: list[dict[str, Any]]) -> dict[str, bool]:
    """What is true of all steps together; hints that a tool does not give have their defaults."""
    writing = [one for one in each if one.get("readOnlyHint") is not True]
    return {
        "readOnlyHint": not writing,
        "destructiveHint": any(one.get("destructiveHint") is not False for one in writing),
        "idempotentHint": all(one.get("idempotentHint") is True for one in writing),
        "openWorldHint": any(one.get("openWorldHint") is not False for one in each),
    }
