"""Recipes for tests."""

from datetime import UTC, datetime
from typing import Any

from app.protocol.recipes.recipe import Method, Question, Recipe, Step

OPEN: dict[str, Any] = {"type": "object"}


def step(name: str, tool: str = "say", **members: Any) -> Step:
    return Step(name, tool, **members)


def recipe(*groups: Step | tuple[Step, ...], output: Any = None, schema: Any = None, deadline_s: float = 50) -> Recipe:
    """Groups of one step may be given as the step."""
    method = Method(tuple(each if isinstance(each, tuple) else (each,) for each in groups), output, deadline_s)
    return Recipe("cook", "all", "Cook", "Cooks", OPEN if schema is None else schema, method, datetime.now(UTC))


def question(message: str = "'Sure?'", **members: Any) -> Question:
    return Question(message, **members)
