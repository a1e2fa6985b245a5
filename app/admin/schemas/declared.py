"""Bodies and answers of a resource, made of its declaration."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, convert
from msgspec.structs import FieldInfo, fields
from pydantic import BaseModel, Field, create_model

from app.admin.schemas.fields import Answer, Strict, field_of
from app.resources.fields import Stored
from app.resources.resource import Resource

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Body(Protocol[V_co]):
    """What a client sends to make an object."""

    def value(self, changed_at: datetime, version: int = 1, *, tenant: str = "") -> V_co:
        """The object."""


@dataclass(frozen=True)
class Schemas(Generic[V]):
    """The models of a resource: of a new object, of a merge patch, of an object in a list, and of one object."""

    body: type[BaseModel]
    patch: type[BaseModel]
    listed: type[Answer]
    answer: type[Answer]


class DeclaredBody(Strict):
    """A body whose members are those of a declared resource."""

    model: ClassVar[type[Stored]]

    def value(self, changed_at: datetime, version: int = 1, *, tenant: str = "") -> Any:
        """The object."""
        members = {**self.model_dump(), "changed_at": changed_at, "version": version}
        return convert(members, self.model, builtin_types=(datetime,))


@cache
def schemas_of(resource: Resource[Any]) -> Schemas[Any]:
    """The models of a declared resource. They are called by its name: `GuideBody`, `GuidePatch` and so on."""
    kind, one = resource.model.__name__, f"A {resource.one}."
    own = [each for each in fields(resource.model) if each.name not in _STORED]
    shown = {each.name: _shown(each.type) for each in own}
    last = {name: shown.pop(name) for name in resource.unlisted}
    listed: Any = Answer
    if last:
        listed = _model(f"Listed{kind}", resource.words.get("listed", one), Answer, {**shown, **_STORED})
    answer = _model(f"{kind}Answer", one, listed, last or {**shown, **_STORED})
    body = _model(f"{kind}Body", f"A new {resource.one}.", DeclaredBody, {each.name: _sent(each) for each in own})
    body.model = resource.model
    patch = {each.name: (_patched(each.type) | None, None) for each in own if each.name != "name"}
    return Schemas(body, _model(f"{kind}Patch", "A merge patch.", Strict, patch), listed if last else answer, answer)


def _model(name: str, words: str, base: type[Any], members: Mapping[str, Any]) -> Any:
    return create_model(name, __doc__=words, __base__=base, __module__=__name__, **dict(members))


def _sent(each: FieldInfo) -> Any:
    """The member of a body, with its default."""
    kind = field_of(each.type)
    if each.default_factory is not NODEFAULT:
        return kind, Field(default_factory=each.default_factory)
    return kind if each.default is NODEFAULT else (kind, each.default)


def _patched(declared: Any) -> Any:
    """The type of the member of a patch. Below an object a null removes a member: the whole is validated afterwards."""
    return dict[str, Any] if get_origin(_shown(declared)) is dict else field_of(declared)


def _shown(declared: Any) -> Any:
    """The type of the member of an answer: without limits, which only what is sent has to keep."""
    return get_args(declared)[0] if get_origin(declared) is Annotated else declared


_STORED: dict[str, Any] = {"changed_at": datetime, "version": int}  # of every resource, and never sent
