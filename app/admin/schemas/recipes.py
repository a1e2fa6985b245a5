"""Bodies: recipes."""

import math
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.admin.schemas.declared import DeclaredBody, Schemas, patches, sends, shows
from app.admin.schemas.fields import Answer, Spelled, Strict, StrictChoice, no_nul
from app.domain.resources.members import declared_members, flat
from app.domain.resources.recipes import MAX_AT_ONCE, MAX_DEADLINE_S, MAX_STEPS, STEP_ID, Method, Question, Recipe, Step
from app.protocol.recipes.expressions import MAX_EXPRESSION

MAX_BYTES = 64 << 10  # of a whole recipe, as JSON
MAX_MEMBERS = 200
MAX_DEPTH = 32  # levels of a value: those who show it have their own limits
LEAST, MOST = -(1 << 63), (1 << 64) - 1  # of whole numbers that programs read alike

Expression = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_EXPRESSION),
    AfterValidator(no_nul),
    Field(description="JMESPath over `input` and `steps`."),
]
Object = Annotated[dict[str, Any], Field(max_length=MAX_MEMBERS)]
Otherwise = Literal["stop", "skip"]
_EMPTY_FORM = {"type": "object", "properties": {}}


class QuestionBody(Strict):
    """What the user is asked before the step."""

    message: Expression
    requested_schema: Object = Field(default_factory=lambda: dict(_EMPTY_FORM), description="A flat JSON Schema.")
    if_declined: Otherwise = "stop"
    if_cancelled: Otherwise = "stop"


class StepBody(StrictChoice):
    """A call of a tool."""

    id: Annotated[str, Spelled(STEP_ID, "letters, digits, `_`, no digit first, 32 at most")]
    tool: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    arguments: Object = Field(default_factory=dict, description="Strings are expressions, at any depth.")
    condition: Expression | None = None
    question: QuestionBody | None = None

    def objects(self) -> list[object]:
        """Its values of any form."""
        return [self.arguments, *([] if self.question is None else [self.question.requested_schema])]

    def value(self) -> Step:
        """The step."""
        question = None if self.question is None else Question(**dict(self.question))
        return Step(self.id, self.tool, self.arguments, self.condition, question)


AtOnce = Annotated[list[StepBody], Field(min_length=1, max_length=MAX_AT_ONCE)]


@sends(declared_members(Recipe))
class RecipeBody(DeclaredBody):
    """A new recipe."""

    model: ClassVar[type[Any]] = Recipe

    input_schema: Object = Field(default_factory=lambda: {"type": "object", "properties": {}})
    steps: Annotated[list[StepBody | AtOnce], Field(min_length=1, max_length=MAX_STEPS)] = Field(
        description="In order; those of a list within the list at once."
    )
    output: Any = Field(None, description="The result; strings are expressions. null: the result of the last step.")
    deadline_s: float = Field(50.0, ge=1, le=MAX_DEADLINE_S, description="For all steps and questions together.")

    @model_validator(mode="after")
    def _is_stored_whole(self) -> Self:
        if self.input_schema.get("type") != "object":
            raise PydanticCustomError("input_schema", 'an `input_schema` is `{"type": "object", …}`')
        try:
            members = self.model_dump()
            size = len(msgspec.json.encode(members))
        except (RecursionError, ValueError):
            size = MAX_BYTES + 1
        if size > MAX_BYTES:
            raise PydanticCustomError("bytes", "a recipe has at most {most} bytes", {"most": MAX_BYTES})
        objects = (self.input_schema, self.output, *(each for step in self._steps() for each in step.objects()))
        for each in objects:
            _require_readable(each, MAX_DEPTH)
        return self

    def _steps(self) -> list[StepBody]:
        return [step for each in self.steps for step in _group(each)]

    def value(self, changed_at: datetime | None = None, version: int = 1, *, tenant: str = "") -> Recipe:
        """The recipe."""
        groups = tuple(tuple(step.value() for step in _group(each)) for each in self.steps)
        method = Method(groups, self.output, self.deadline_s)
        recipe: Recipe = self.made(changed_at=changed_at, version=version, method=method)
        return recipe


@patches(RecipeBody, without=("name", "toolset"))
class RecipePatch(Strict):
    """A merge patch; `steps` is replaced as a whole."""


@shows(RecipeBody, of_tenant=False)
class RecipeAnswer(Answer):
    """A recipe."""

    steps: list[Any]
    changed_at: datetime
    version: int

    @classmethod
    def of(cls, value: Recipe) -> Self:
        groups = [[msgspec.to_builtins(step) for step in group] for group in value.method.groups]
        steps = [group[0] if len(group) == 1 else group for group in groups]
        method = {"steps": steps, "output": value.method.output, "deadline_s": value.method.deadline_s}
        return cls.model_validate({**flat(value), **method})


class CheckedRecipe(RecipeAnswer):
    """A recipe, with what is wrong with it now."""

    problems: list[str] = Field(description="Why it cannot work with what its toolset shows now.")


SCHEMAS = Schemas[Recipe](RecipeBody, RecipePatch, RecipeAnswer, RecipeAnswer)


def _group(each: StepBody | list[StepBody]) -> list[StepBody]:
    return [each] if isinstance(each, StepBody) else each


def _require_readable(value: object, levels: int) -> None:
    """NaN and Infinity are no JSON, though Python reads them: PostgreSQL refuses them, and so do clients."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("finite_number", "a recipe has finite numbers only")
    if isinstance(value, int) and not LEAST <= value <= MOST:
        raise PydanticCustomError("large_number", "a whole number of a recipe has at most 64 bits")
    if not levels:
        raise PydanticCustomError("depth", "a value of a recipe has at most {most} levels", {"most": MAX_DEPTH})
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_readable(each, levels - 1)
