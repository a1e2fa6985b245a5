"""Fields that several bodies share, and the base classes of requests and answers."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, get_args, get_origin

from msgspec import Meta
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from app.auth.policy import is_scope
from app.domain import NAME_PATTERN, Scope
from app.domain.resources import fields as rules
from app.domain.resources.fields import NAME_SPELLING, Unfit
from app.domain.resources.members import bare, flat, has_inline, is_declared, without_none
from app.text.meant import did_you_mean

MAX_WRONG = 1000  # errors of an object that are told one by one; each takes microseconds and a kilobyte
ELSEWHERE = {"elsewhere": True}  # a context of validation: which files there are is known on the gateway's machine only
_LIMITS = ("description", "min_length", "max_length", "gt", "ge", "le")
SILENT = "Nodes that did not answer within a second: what they know is missing."


class StrictChoice(BaseModel):
    """As `Strict`, for a choice of a union: the errors of one with a wrap validator would be shown at its name."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Strict(StrictChoice):
    """What a client may send: no unknown members, no conversions, no NaN."""

    @model_validator(mode="wrap")
    @classmethod
    def _with_few_errors(cls, sent: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Pydantic goes on after an error, and whoever asks it for the errors is given all of them."""
        try:
            return validate(sent)
        except ValidationError as error:
            if error.error_count() <= MAX_WRONG:
                raise
            raise PydanticCustomError("wrong", "more than {most} members are wrong", {"most": MAX_WRONG}) from None


class Answer(BaseModel):
    """An answer that shows the attributes of a value with the same names."""

    _made: int = PrivateAttr(0)  # when the value was, for its entity tag

    @model_validator(mode="before")
    @classmethod
    def _with_inline_members(cls, value: Any) -> Any:
        return flat(value) if has_inline(type(value)) else value

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls.model_validate(value, from_attributes=True).made(value)

    def made(self, value: Any) -> Self:
        """With the time when this value was made, which is not shown."""
        self._made = getattr(value, "made", 0)
        return self


@dataclass(frozen=True, slots=True)
class Spelled:
    """How a text is spelled: the document of the API has the pattern, errors say the rule in words."""

    pattern: str
    rule: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": self.pattern}

    def _checked(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise PydanticCustomError("spelling", "must be {rule}", {"rule": self.rule})
        return text


def checked(rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A rule of `app.domain.resources.fields`, as the REST API tells that it does not hold."""

    def validate(value: Any) -> Any:
        try:
            return rule(value)
        except Unfit as problem:
            raise PydanticCustomError(problem.kind, problem.words, problem.values) from None

    return validate


BODIES: dict[type[Any], type[BaseModel]] = {}  # of declared models whose objects are members of others


def field_of(declared: Any) -> Any:
    """The type of a member of a body that is declared with `Meta` and rules."""
    kind, marks = bare(declared)
    found = list[Any]()
    for each in marks:
        if isinstance(each, str):
            found.append(Field(description=each))
            continue
        if not isinstance(each, Meta):
            found.append(AfterValidator(checked(each)))
            continue
        given = {name: getattr(each, name) for name in _LIMITS if getattr(each, name) is not None}
        found += [Field(**given)] if given else []
        found += [] if each.pattern is None else [Spelled(each.pattern, (each.extra or {})["spelling"])]
    return Annotated[(_sent(kind), *found)] if found else _sent(kind)


def _sent(kind: Any) -> Any:
    """The type without limits, as JSON has it."""
    parts = get_args(kind)
    if (value := without_none(kind)) is not None:
        return field_of(value) | None
    if get_origin(kind) in (tuple, frozenset, list):
        return list[field_of(parts[0])]  # type: ignore[misc]
    if get_origin(kind) in (dict, Mapping):
        return dict[field_of(parts[0]), field_of(parts[1])]  # type: ignore[misc]
    return BODIES[kind] if is_declared(kind) else kind


no_nul, one_line = checked(rules.no_nul), checked(rules.one_line)


def known_scope(text: str) -> str:
    if not is_scope(text):
        raise PydanticCustomError("scope", "there is no such scope{near}", {"near": did_you_mean(text, Scope)})
    return text


# Not `list` and `sorted`: pydantic asks for the signature of each such function, and for a builtin `inspect` copies the
# table of all modules. The copies stay, 80 kB each, where the collector is off while a node imports this.


def no_items() -> list[Any]:
    return []


def in_order(texts: Iterable[str]) -> list[str]:
    return sorted(texts)


KnownScope = Annotated[str, AfterValidator(known_scope)]
SortedTexts = Annotated[list[str], BeforeValidator(in_order)]
SpelledAsName = Spelled(NAME_PATTERN, NAME_SPELLING)
Name: Any = field_of(rules.Name)
Reason: Any = field_of(rules.Reason)


class SwitchPatch(Strict):
    """The members of a merge patch that switch an object off, or on again."""

    enabled: bool | None = None
    reason: Reason | None = None
