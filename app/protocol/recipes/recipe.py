"""Recipe: a tool that is made of calls of other tools, as an administrator has written it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

MAX_STEPS = 32
MAX_AT_ONCE = 8  # steps of one group
MAX_DEADLINE_S = 3600.0
STEP_ID = r"^[A-Za-z_][A-Za-z0-9_]{0,31}$"  # what JMESPath reads without quotes

Otherwise = Literal["stop", "skip"]


def _no_fields() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asked before a step. `message` is an expression; `requested_schema` has the fields of the form, as JSON Schema.
    If the user declines or dismisses it, the run stops, or goes on without the step."""

    message: str
    requested_schema: dict[str, Any] = msgspec.field(default_factory=_no_fields)
    if_declined: Otherwise = "stop"
    if_cancelled: Otherwise = "stop"


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call. `tool` is the name that the toolset shows. In `arguments` strings are expressions, at any depth.
    Without a true `condition` it is skipped."""

    id: str
    tool: str
    arguments: dict[str, Any] = {}
    condition: str | None = None
    question: Question | None = None


class Method(msgspec.Struct, frozen=True, omit_defaults=True):
    """How it is done: groups in order, and the steps of a group at once. `output` makes the result; in it strings are
    expressions. `deadline_s` is for the whole, questions included."""

    groups: tuple[tuple[Step, ...], ...]
    output: Any = None
    deadline_s: float = 50.0

    @property
    def steps(self) -> Iterator[Step]:
        """All, in order."""
        return (step for group in self.groups for step in group)


class Recipe(msgspec.Struct, frozen=True):
    """A recipe of one toolset."""

    name: str
    toolset: str
    title: str
    description: str
    input_schema: dict[str, Any]
    method: Method
    changed_at: datetime
    version: int = 1


def as_json(method: Method) -> dict[str, Any]:
    """For storage."""
    found: dict[str, Any] = msgspec.to_builtins(method)
    return found


def from_json(stored: Any) -> Method:
    """What `as_json` made. Raises msgspec.ValidationError."""
    return msgspec.convert(stored, Method)


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
