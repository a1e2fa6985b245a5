"""The members of declared models, which are dataclasses, and how objects are made of plain values."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

R = TypeVar("R")


def _once(make: Callable[[type[Any]], R]) -> Callable[[type[Any]], R]:
    """Keeps what was made for each model: there are as many as there are classes."""
    kept = dict[type[Any], R]()

    def known(model: type[Any]) -> R:
        if model not in kept:
            kept[model] = make(model)
        return kept[model]

    return known


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredMember:
    """One member: its type with limits and rules, and its default, which may have to be made for each object."""

    name: str
    kind: Any
    default: Any  # MISSING, as in `dataclasses`, where there is none
    default_factory: Any
    is_sent: bool
    is_stored: bool
    is_inline: bool

    @property
    def is_text(self) -> bool:
        """Whether its values are texts."""
        kind = bare(self.kind)[0]
        kind = bare(without_none(kind) or kind)[0]
        return kind is str or (get_origin(kind) is Literal and isinstance(get_args(kind)[0], str))


@_once
def declared_members(model: type[Any]) -> tuple[DeclaredMember, ...]:
    """In the order in which they are declared."""
    kinds = get_type_hints(model, include_extras=True)
    return tuple(
        DeclaredMember(
            each.name,
            kinds[each.name],
            each.default,
            each.default_factory,
            each.metadata.get("sent", True),
            each.metadata.get("stored", True),
            each.metadata.get("inline", False),
        )
        for each in dataclasses.fields(model)
    )


def is_declared(kind: Any) -> bool:
    """Whether a member of this type is an object with members."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def only(model: type[Any], *names: str) -> tuple[DeclaredMember, ...]:
    """The members with these names."""
    return tuple(each for each in declared_members(model) if each.name in names)


def sent(members: Iterable[DeclaredMember]) -> Iterator[DeclaredMember]:
    """Those that clients send, with those that are inline."""
    for each in members:
        if each.is_inline:
            yield from sent(declared_members(each.kind))
        elif each.is_sent:
            yield each


def has_inline(kind: Any) -> bool:
    """Whether clients see members of an object as if they were those of one that it belongs to."""
    return is_declared(kind) and any(each.metadata.get("inline") for each in dataclasses.fields(kind))


def flat(value: Any) -> dict[str, Any]:
    """The members of the object as clients see them."""
    found = dict[str, Any]()
    for each in declared_members(type(value)):
        member = getattr(value, each.name)
        found |= flat(member) if each.is_inline else {each.name: member}
    return found


def bare(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type, and what it is annotated with: limits and rules."""
    return (kind.__origin__, kind.__metadata__) if get_origin(kind) is Annotated else (kind, ())


def without_none(kind: Any) -> Any:
    """The type that a member has if it has a value; None: it has a value in any case, or one of several types."""
    if get_origin(kind) not in (Union, UnionType):
        return None
    parts = [each for each in get_args(kind) if each is not NoneType]
    return parts[0] if len(parts) == 1 else None


@_once
def reader_of(model: type[Any]) -> Callable[..., Any]:
    """Makes objects of plain values, and of members that are given as they are. A member that is not there has its
    default; what is no member is left out."""
    readers = {each.name: _reader(each.kind) for each in declared_members(model)}
    inline = [each.name for each in declared_members(model) if each.is_inline]

    def read(plain: Mapping[str, Any], **given: Any) -> Any:
        values = {**dict.fromkeys(inline, plain), **plain}
        members = {name: readers[name](each) for name, each in values.items() if name in readers and name not in given}
        return model(**members, **given)

    return read


def _reader(kind: Any) -> Callable[[Any], Any]:
    kind, parts = bare(kind)[0], get_args(bare(kind)[0])
    if (inner := without_none(kind)) is not None:
        read = _reader(inner)
        return lambda plain: None if plain is None else read(plain)
    origin = get_origin(kind)
    if origin in (Union, UnionType):  # words, or an object
        objects = next(map(reader_of, filter(is_declared, parts)), None)
        return lambda plain: objects(plain) if objects is not None and isinstance(plain, Mapping) else plain
    if origin in (tuple, list, frozenset):
        each = _reader(parts[0])
        return lambda plain: origin(map(each, plain))
    if origin in (dict, Mapping) and is_declared(parts[1]):
        read = _reader(parts[1])
        return lambda plain: {name: read(each) for name, each in plain.items()}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return partial(msgspec.convert, type=kind)
    return reader_of(kind) if is_declared(kind) else lambda plain: plain


def plain(value: Any) -> Any:
    """The value as JSON has it; sets are sorted."""
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return sorted(value) if isinstance(value, frozenset) else value
