"""Recipes: tools that are made of calls of other tools, as administrators have written them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from app.domain.resources.fields import UNSENT, Name, Stored, Title, no_nul
from app.domain.resources.resource import Resource

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Stored):
    """A recipe of one toolset."""

    toolset: Name
    title: Title = ""
    description: Annotated[str, Meta(max_length=4000), no_nul] = ""
    input_schema: dict[str, Any]
    method: Method = field(metadata=UNSENT)


RECIPES = Resource(
    Recipe,
    "recipes",
    one="recipe",
    about="Tools that are made of calls of other tools.",
    per_tenant=100,
    columns=("name", "toolset", "title", "description", "changed_at"),
    goes_with="toolset",
    words={
        "create": "Writes a recipe, once it has been checked against what its toolset shows now.",
        "get": "One recipe, checked against what its toolset shows now. The tag does not cover the problems.",
        "change": "Changes a recipe, once it has been checked. Runs that have begun end as they began.",
        "delete": "Removes a recipe. Runs that have begun end as they began.",
    },
)
