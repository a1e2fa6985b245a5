"""JSON as editors write it, with comments and trailing commas: read with the place of each value in the text, so that
members are set without touching anything else."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_LITERAL = re.compile(r"[-+.0-9A-Za-z]+")
_INDENTED = re.compile(r"^([ \t]+)\S", re.MULTILINE)


@dataclass(slots=True)
class Node:
    """A value and where it stands. `members` are those of an object, each with the place of its key."""

    value: Any
    start: int
    end: int
    members: "dict[str, tuple[int, Node]]" = field(default_factory=dict)
    has_last_comma: bool = False


def read(text: str) -> Node:
    """The one value of the text.

    Raises:
        ValueError: it is no JSON, an object has a member twice, or it is nested too deeply.
    """
    try:
        node = _value(text, _skip(text, 0))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _skip(text, node.end) != len(text):
        raise _wrong(text, node.end, "something stands after the end")
    return node


def with_member(text: str, path: Sequence[str], name: str, value: Any) -> str:
    """The text with a member set in the object at `path`, which must be there."""
    node = read(text)
    for each in path:
        node = node.members[each][1]
    unit = found[1] if (found := _INDENTED.search(text)) else "  "
    if name in node.members:
        old = node.members[name][1]
        return text[: old.start] + _dumped(value, _indent_at(text, old.start), unit) + text[old.end :]
    if not node.members:
        outer = _indent_at(text, node.start)
        body = f"{outer}{unit}{json.dumps(name)}: {_dumped(value, outer + unit, unit)}"
        inner = text[node.start + 1 : node.end - 1].rstrip()  # comments, if anything
        return f"{text[: node.start + 1]}{inner}\n{body}\n{outer}}}{text[node.end :]}"
    first = next(iter(node.members.values()))[0]
    last = list(node.members.values())[-1][1]
    if text[:first].rstrip(" \t")[-1] != "\n":  # all in one line
        return f"{text[: last.end]}, {json.dumps(name)}: {json.dumps(value)}{text[last.end :]}"
    indent, comma = _indent_at(text, first), "" if node.has_last_comma else ","
    behind = len(text[: node.end - 1].rstrip())  # after what stands behind the last member: a comma, a comment
    member = f"\n{indent}{json.dumps(name)}: {_dumped(value, indent, unit)}"
    return text[: last.end] + comma + text[last.end : behind] + member + text[behind:]


def _dumped(value: Any, indent: str, unit: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False, allow_nan=False).replace("\n", "\n" + indent)


def _indent_at(text: str, position: int) -> str:
    """With what the line of this place begins."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _value(text: str, at: int) -> Node:
    match text[at : at + 1]:
        case "{":
            return _object(text, at)
        case "[":
            return _array(text, at)
        case '"':
            string, end = _string(text, at)
            return Node(string, at, end)
    found = _LITERAL.match(text, at)
    if not found:
        raise _wrong(text, at, "a value is missing")
    try:
        return Node(json.loads(found[0], parse_constant=_refuse), at, found.end())
    except ValueError:
        raise _wrong(text, at, f"{found[0][:40]!r} is no value") from None


def _string(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    try:
        if found:
            return json.loads(found[0]), found.end()
    except ValueError:  # an escape that there is not
        pass
    raise _wrong(text, at, "a string has no end, or something in it that JSON does not have")


def _object(text: str, start: int) -> Node:
    node, at = Node({}, start, start), _skip(text, start + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise _wrong(text, at, "the name of a member is missing")
        key_at, (key, end) = at, _string(text, at)
        if key in node.value:
            raise _wrong(text, at, f"{key[:40]!r} stands twice in one object")
        at = _skip(text, end)
        if text[at : at + 1] != ":":
            raise _wrong(text, at, "a colon is missing")
        value = _value(text, _skip(text, at + 1))
        node.members[key], node.value[key] = (key_at, value), value.value
        at, node.has_last_comma = _comma(text, value.end, "}")
    node.end = at + 1
    return node


def _array(text: str, start: int) -> Node:
    node, at = Node([], start, start), _skip(text, start + 1)
    while text[at : at + 1] != "]":
        value = _value(text, at)
        node.value.append(value.value)
        at, node.has_last_comma = _comma(text, value.end, "]")
    node.end = at + 1
    return node


def _comma(text: str, at: int, closing: str) -> tuple[int, bool]:
    """Where it goes on behind a comma, or at the end of the object."""
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1), True
    if text[at : at + 1] != closing:
        raise _wrong(text, at, f"a comma or {closing!r} is missing")
    return at, False


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _wrong(text: str, at: int, problem: str) -> ValueError:
    line = text.count("\n", 0, at) + 1
    return ValueError(f"line {line}: {problem}")
