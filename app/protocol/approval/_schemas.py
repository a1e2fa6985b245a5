"""Two JSON Schemas compared: which differences let something in that was not approved.

Only tighter limits are harmless. What these rules do not know is not: a keyword of tomorrow counts as a change.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.protocol.approval._change import Finding, Reason

Schema = Mapping[str, Any]
_MISSING: Any = object()
_SHOWN = 200
_WORDING = frozenset({"title", "description", "$comment"})
_UPPER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"})
_LOWER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"})
_SIZES = frozenset({"minLength", "minItems", "minProperties", "minContains"})  # raised, they ask for more to be sent
_DIALECTS = frozenset(
    f"{scheme}://json-schema.org/{version}schema"
    for scheme in ("http", "https")
    for version in ("draft-04/", "draft-06/", "draft-07/", "draft/2019-09/", "draft/2020-12/")
)
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def differences(before: Any, after: Any, path: str) -> Iterator[Finding]:
    """All but those of the wording."""
    old, new = _as_members(before), _as_members(after)
    if old is None or new is None:
        if not same(before, after):
            yield _finding(Reason.SCHEMA, path, before, after)
        return
    for keyword in sorted(old.keys() | new.keys()):
        was, now = old.get(keyword, _MISSING), new.get(keyword, _MISSING)
        if was is _MISSING or now is _MISSING or not same(was, now):
            rule = _RULES.get(keyword, _any_change)
            yield from rule(was, now, f"{path}/{pointer(keyword)}")


def is_wording(keyword: str) -> bool:
    return keyword in _WORDING


def same(one: Any, other: Any) -> bool:
    """Whether they are equal as JSON. In Python True is 1."""
    return json.dumps(one, sort_keys=True, default=repr) == json.dumps(other, sort_keys=True, default=repr)


def pointer(name: str) -> str:
    """A member's name as a part of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _as_members(schema: Any) -> dict[str, Any] | None:
    """A schema without what says nothing, and in the shorter of two forms. None: it is no schema."""
    if schema is True or schema is _MISSING:
        return {}
    if not isinstance(schema, Mapping):
        return None
    members = dict(schema)
    for name, nothing in (("required", []), ("default", None), ("additionalProperties", True), ("properties", {})):
        if name in members and same(members[name], nothing):
            del members[name]
    if same(members.get("additionalProperties"), {}):
        del members["additionalProperties"]
    return members


def _finding(reason: Reason, path: str, was: Any, now: Any) -> Finding:
    return Finding(reason, path, f"{shown(was)} -> {shown(now)}")


def shown(value: Any) -> str:
    return "none" if value is _MISSING else json.dumps(value, sort_keys=True, default=repr)[:_SHOWN]


# --- a rule for each keyword: what was there, what is there now, where


def _any_change(was: Any, now: Any, path: str) -> Iterator[Finding]:
    yield _finding(Reason.SCHEMA, path, was, now)


def _wording(was: Any, now: Any, path: str) -> Iterator[Finding]:
    if not all(each is _MISSING or isinstance(each, str) for each in (was, now)):
        yield _finding(Reason.SCHEMA, path, was, now)


def _dialect(was: Any, now: Any, path: str) -> Iterator[Finding]:
    for each in (was, now):
        if each is not _MISSING and str(each).rstrip("#") not in _DIALECTS:
            yield _finding(Reason.SCHEMA, path, was, now)


def _properties(was: Any, now: Any, path: str) -> Iterator[Finding]:
    old, new = ({} if each is _MISSING else each for each in (was, now))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield _finding(Reason.SCHEMA, path, was, now)
        return
    for name in sorted(old.keys() | new.keys()):
        place = f"{path}/{pointer(name)}"
        if name not in old:
            yield Finding(Reason.NEW_PARAMETER, place, name[:_SHOWN])
        elif name not in new:
            yield Finding(Reason.REMOVED_PARAMETER, place, name[:_SHOWN])
        else:
            yield from differences(old[name], new[name], place)


def _required(was: Any, now: Any, path: str) -> Iterator[Finding]:
    old, new = _names(was), _names(now)
    if old is None or new is None:
        yield _finding(Reason.SCHEMA, path, was, now)
        return
    for name in sorted(old - new):
        yield Finding(Reason.LOOSENED, path, name)
    for name in sorted(new - old):
        yield Finding(Reason.REQUIRED, path, name)


def _names(value: Any) -> set[str] | None:
    if value is _MISSING:
        return set()
    if isinstance(value, str):
        return {value}
    return set(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def _type(was: Any, now: Any, path: str) -> Iterator[Finding]:
    old, new = (_TYPES if each is _MISSING else _names(each) for each in (was, now))
    if not old or not new or not (old <= _TYPES and new <= _TYPES):
        yield _finding(Reason.SCHEMA, path, was, now)
        return
    accepted = old | {"integer"} if "number" in old else old
    if not new <= accepted:
        yield _finding(Reason.LOOSENED, path, was, now)


def _enum(was: Any, now: Any, path: str) -> Iterator[Finding]:
    if not all(each is _MISSING or isinstance(each, list) for each in (was, now)):
        yield _finding(Reason.SCHEMA, path, was, now)
    elif now is _MISSING:
        yield _finding(Reason.LOOSENED, path, was, now)
    elif was is _MISSING:
        yield _finding(Reason.VALUE, path, was, now)
    else:
        known = {shown(each) for each in was}
        added = [each for each in now if shown(each) not in known]
        if added:
            yield _finding(Reason.LOOSENED, path, _MISSING, added)
        elif len(now) < 2:  # one choice is an order
            yield _finding(Reason.VALUE, path, was, now)


def _limit(was: Any, now: Any, path: str) -> Iterator[Finding]:
    keyword = path.rpartition("/")[2]
    numbers = [each for each in (was, now) if each is not _MISSING]
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers):
        yield _finding(Reason.SCHEMA, path, was, now)
    elif now is _MISSING or (was is not _MISSING and (now > was if keyword in _UPPER else now < was)):
        yield _finding(Reason.LOOSENED, path, was, now)
    elif keyword in _SIZES and now > 1:
        yield _finding(Reason.SCHEMA, path, was, now)


def _form(was: Any, now: Any, path: str) -> Iterator[Finding]:
    """pattern and format. A pattern that is new can leave one value only."""
    yield _finding(Reason.LOOSENED if now is _MISSING else Reason.VALUE, path, was, now)


def _value(was: Any, now: Any, path: str) -> Iterator[Finding]:
    yield _finding(Reason.VALUE, path, was, now)


def _examples(was: Any, now: Any, path: str) -> Iterator[Finding]:
    known = {shown(each) for each in was} if isinstance(was, list) else set()
    added = [each for each in now if shown(each) not in known] if isinstance(now, list) else [now]
    if added and now is not _MISSING:
        yield _finding(Reason.VALUE, path, was, now)


def _other_members(was: Any, now: Any, path: str) -> Iterator[Finding]:
    """additionalProperties and its kind. None is open to all; `_as_members` has removed the other ways to say that."""
    if now is False:
        return
    if now is _MISSING or was is False:
        yield _finding(Reason.LOOSENED, path, was, now)
    else:
        yield from differences(was, now, path)


def _one_schema(was: Any, now: Any, path: str) -> Iterator[Finding]:
    if now is _MISSING:
        yield _finding(Reason.LOOSENED, path, was, now)
    else:
        yield from differences(was, now, path)


def _alternatives(was: Any, now: Any, path: str) -> Iterator[Finding]:
    if not isinstance(was, list) or not isinstance(now, list):
        yield _finding(Reason.SCHEMA, path, was, now)
    elif len(was) != len(now):
        known = {shown(each) for each in was}
        is_fewer = all(shown(each) in known for each in now)
        yield _finding(Reason.SCHEMA if is_fewer else Reason.LOOSENED, path, was, now)
    else:
        for index, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from differences(old, new, f"{path}/{index}")


def _definitions(was: Any, now: Any, path: str) -> Iterator[Finding]:
    if not isinstance(was, Mapping) or not isinstance(now, Mapping) or was.keys() != now.keys():
        yield _finding(Reason.SCHEMA, path, was, now)
        return
    for name in sorted(was):
        yield from differences(was[name], now[name], f"{path}/{pointer(name)}")


_RULES: dict[str, Callable[[Any, Any, str], Iterator[Finding]]] = {
    **dict.fromkeys(_WORDING, _wording),
    **dict.fromkeys(_UPPER | _LOWER, _limit),
    **dict.fromkeys(("pattern", "format"), _form),
    **dict.fromkeys(("default", "const"), _value),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "additionalItems"), _other_members),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _alternatives),
    **dict.fromkeys(("$defs", "definitions"), _definitions),
    "$schema": _dialect,
    "enum": _enum,
    "examples": _examples,
    "items": _one_schema,
    "properties": _properties,
    "required": _required,
    "type": _type,
}
