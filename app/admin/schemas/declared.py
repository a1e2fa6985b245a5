"""Bodies and answers of a resource, made of its declaration."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from datetime import datetime
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, Field, create_model, model_validator

from app.admin.schemas.fields import BODIES, Answer, Strict, checked, field_of, no_items
from app.domain.resources.members import DeclaredMember, declared_members, is_declared, reader_of, sent
from app.domain.resources.resource import Resource

M = TypeVar("M", bound=BaseModel)
V = TypeVar("V")


@dataclass(frozen=True)
class Schemas(Generic[V]):
    """The models of a resource: of a new object, of a merge patch, of an object in a list, and of one object."""

    body: type[BaseModel]
    patch: type[BaseModel]
    listed: type[Answer]
    answer: type[Answer]


class DeclaredBody(Strict):
    """A body whose members are those of a declared model."""

    model: ClassVar[type[Any]]
    rules: ClassVar[Sequence[Callable[[Any], None]]] = ()

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        if self.rules:
            value = self.value()
            for rule in self.rules:
                checked(rule)(value)
        return self

    def value(self, changed_at: datetime | None = None, version: int = 1, *, tenant: str = "") -> Any:
        """The object."""
        given = {"tenant": tenant, "changed_at": changed_at, "version": version}
        known = {each.name for each in declared_members(self.model)}
        return self.made(**{name: each for name, each in given.items() if name in known})

    def made(self, **given: Any) -> Any:
        """The object, with members that are given."""
        return reader_of(self.model)(self.model_dump(), **given)


def sends(members: Iterable[DeclaredMember]) -> Callable[[type[M]], type[M]]:
    """Adds to a body the members that clients send, besides those that the class has itself."""
    return lambda body: _with(body, Strict, {each.name: _declared(each) for each in sent(members)})


def part(model: type[Any]) -> Callable[[type[M]], type[M]]:
    """As `sends`, for the objects of this model that are members of others: their body."""

    def completed(body: type[M]) -> type[M]:
        made = sends(declared_members(model))(body)
        BODIES[model] = made
        return made

    return completed


def patches(body: type[BaseModel], *, without: Sequence[str] = ("name",)) -> Callable[[type[M]], type[M]]:
    """Adds to a merge patch the members of the body, besides those that cannot be changed and what the class has
    itself. null restores a default, and removes a member of an object."""

    def completed(patch: type[M]) -> type[M]:
        above: Any = patch.__base__
        sent = {name: kind for name, kind in _sent(body).items() if name not in {*without, *above.model_fields}}
        return _with(patch, above, {name: (_or_null(kind), None) for name, kind in sent.items()})

    return completed


def shows(body: type[BaseModel], *, of_tenant: bool = True) -> Callable[[type[M]], type[M]]:
    """Adds to an answer the members of the body in its order, without limits, which only what is sent has to keep. What
    the class has itself replaces them, or comes behind them."""
    own = {"tenant": str} if of_tenant else {}
    members = {**own, **{name: _shown(kind) for name, kind in _sent(body).items()}}

    return lambda answer: _with(answer, Answer, members)


def schemas_of(resource: Resource[Any]) -> Schemas[Any]:
    """Makes the models of a declared resource. They are called by its name: `GuideBody`, `GuidePatch` and so on."""
    kind, one = resource.model.__name__, f"A {resource.one}."

    class Own(DeclaredBody):
        model = resource.model
        rules = resource.rules

    body = _model(f"{kind}Body", f"A new {resource.one}.", (Own,), {}, is_whole=False)
    body = sends(resource.members)(body)
    patch = patches(body)(_model(f"{kind}Patch", "A merge patch.", (Strict,), {}, is_whole=False))
    shown = {name: _shown(each) for name, each in _sent(body).items()}
    last = {name: shown.pop(name) for name in resource.unlisted}
    listed = _model(f"Listed{kind}", resource.words.get("listed"), (Answer,), {**shown, **_STORED})
    answer = _model(f"{kind}Answer", one, (listed,), last)
    return Schemas(body, patch, listed if last else answer, answer)


def _model(
    name: str, words: str | None, bases: tuple[type[Any], ...], members: Mapping[str, Any], *, is_whole: bool = True
) -> Any:
    """Of one that is not whole, and only the base of another, the validator is never asked for, and not built."""
    options = {"defer_build": not is_whole}
    module = bases[0].__module__
    return create_model(name, __doc__=words, __base__=bases, __module__=module, __cls_kwargs__=options, **dict(members))


def _with(model: type[M], above: type[BaseModel], members: Mapping[str, Any]) -> type[M]:
    """The model with these members in this order, as far as it has not its own."""
    parts = _model(model.__name__, None, (above,), members, is_whole=False)
    made: type[M] = _model(model.__name__, model.__doc__, (model, parts), {})
    return made


def _declared(each: DeclaredMember) -> Any:
    """The member of a body, with its default."""
    kind, default = field_of(each.kind), each.default
    if is_declared(each.kind):
        return kind, Field(default_factory=kind)
    if isinstance(default, tuple):
        return kind, Field(default_factory=no_items)
    if each.default_factory is not MISSING:
        return kind, Field(default_factory=each.default_factory)
    return kind if default is MISSING else (kind, default)


def _sent(body: type[BaseModel]) -> dict[str, Any]:
    """The types of the members, with their limits."""
    hints = get_type_hints(body, include_extras=True)
    limits = {name: each.metadata for name, each in body.model_fields.items()}
    return {
        name: Annotated[(hints[name], *marks)] if marks and get_origin(hints[name]) is not Annotated else hints[name]
        for name, marks in limits.items()
    }


def _or_null(kind: Any) -> Any:
    if kind is Any or get_origin(kind) is not dict:
        return kind if kind is Any else kind | None
    value = get_args(kind)[1]
    return kind | None if value is Any else dict[get_args(kind)[0], value | None] | None  # type: ignore[misc]


def _shown(kind: Any, *, is_part: bool = False) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _shown(parts[0])
    if origin is Literal:
        return kind if is_part else str
    if origin in (Union, UnionType):
        return Union[tuple(_shown(each, is_part=True) for each in parts)]  # noqa: UP007 - as many as there are
    return origin[tuple(map(_shown, parts))] if origin in (list, dict) else kind


_STORED: dict[str, Any] = {"changed_at": datetime, "version": int}  # of every resource, and never sent
