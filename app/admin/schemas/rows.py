"""answer_of: the model of an answer, made of the type of a row and what its members say of themselves."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from pydantic import Field, create_model

from app.admin.schemas.fields import Answer
from app.cluster.node_status.listing import Use


class _WithUse(Answer):
    @classmethod
    def of(cls, value: Any) -> Any:
        """Shows a row, with the members of its `use` among its own."""
        return cls(**{each.name: getattr(of, each.name) for of in (value, value.use) for each in fields(of)})


def answer_of(
    row: type[Any], name: str, first: Sequence[str] = (), *, without: Collection[str] = (), **inner: Any
) -> type[Answer]:
    """The members of a row, those of its `use` first, or these `first` ones. `inner`: the type of a member that is a
    row itself."""
    members = {each: kind for each, kind in _members_of(row, inner).items() if each not in without}
    use = _members_of(Use, {}) if members.pop("use", None) else {}
    ordered = {**use, **{each: members[each] for each in first}, **members}
    base: Any = _WithUse if use else Answer
    return cast("type[Answer]", create_model(name, __doc__=row.__doc__, __base__=base, __module__=__name__, **ordered))


def _members_of(row: type[Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(row, include_extras=True)
    return {each.name: _described(hints[each.name], inner.get(each.name)) for each in fields(row)}


def _described(hint: Any, inner: Any) -> Any:
    kind, words = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    return Annotated[inner or kind, Field(description=words)]
