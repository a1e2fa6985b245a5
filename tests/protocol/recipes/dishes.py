"""Recipes for tests."""

from datetime import UTC, datetime
from typing import Any

from app.domain.resources.recipes import Method, Question, Recipe, Step

OPEN: dict[str, Any] = {"type": "object"}


def step(name: str, tool: str = "say", **members: Any) -> Step:
    return Step(name, tool, **members)


def recipe(*groups: Step | tuple[Step, ...], output: Any = None, schema: Any = None, deadline_s: float = 50) -> Recipe:
    """Groups of one step may be given as the step."""
    method = Method(tuple(each if isinstance(each, tuple) else (each,) for each in groups), output, deadline_s)
    return Recipe(
        name="cook",
        toolset="all",
        title="Cook",
        description="Cooks",
        input_schema=OPEN if schema is None else schema,
        method=method,
        changed_at=datetime.now(UTC),
    )


def question(message: str = "'Sure?'", **members: Any) -> Question:
    return Question(message, **members)
