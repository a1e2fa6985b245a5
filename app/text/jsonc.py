"""JSON with comments and trailing commas, as editors write it. Each value has its position in the text, so that one
member can be set without touching anything else."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_INDENTED = re.compile(r"^([ \t]+)\S", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its position. `members` are those of an object, each with the position of its key."""

    value: Any
    start: int
    end: int
    members: "dict[str, tuple[int, Node]]" = field(default_factory=dict)
    has_last_comma: bool = False


def read(text: str) -> Node:
    """The one value of the text.

    Raises:
        ValueError: it is not JSON, an object has a member twice, or it is nested too deeply.
    """
    try:
        node = _value(text, _skip(text, 0))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _skip(text, node.end) != len(text):
        raise _wrong(text, node.end, "there is text after the end")
    return node


def with_member(text: str, path: Sequence[str], name: str, value: Any) -> str:
    """The text with a member set in the object at `path`, which must exist."""
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
    behind = len(text[: node.end - 1].rstrip())  # after a comma or a comment that follows the last member
    member = f"\n{indent}{json.dumps(name)}: {_dumped(value, indent, unit)}"
    return text[: last.end] + comma + text[last.end : behind] + member + text[behind:]


def _dumped(value: Any, indent: str, unit: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False, allow_nan=False).replace("\n", "\n" + indent)


def _indent_at(text: str, position: int) -> str:
    """The indent of the line that has this position."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _value(text: str, at: int) -> Node:
    if text[at : at + 1] == "{":
        return _object(text, at)
    if text[at : at + 1] == "[":
        return _array(text, at)
    return Node(*_scalar(text, at, "a value"))


def _scalar(text: str, at: int, what: str) -> tuple[Any, int, int]:
    """A string, a number or a constant, with its position."""
    try:
        value, end = _decoder.raw_decode(text, at)
    except ValueError:
        raise _wrong(text, at, f"{what} is missing or malformed") from None
    return value, at, end


def _object(text: str, start: int) -> Node:
    members = dict[str, tuple[int, Node]]()
    at, has_last_comma = _skip(text, start + 1), False
    while text[at : at + 1] != "}":
        key, key_at, end = _scalar(text, at, "the name of a member")
        if not isinstance(key, str):
            raise _wrong(text, at, "the name of a member is not a string")
        if key in members:
            raise _wrong(text, at, f"{key[:40]!r} stands twice in one object")
        at = _skip(text, end)
        if text[at : at + 1] != ":":
            raise _wrong(text, at, "a colon is missing")
        value = _value(text, _skip(text, at + 1))
        members[key] = (key_at, value)
        at, has_last_comma = _comma(text, value.end, "}")
    values = {key: value.value for key, (_, value) in members.items()}
    return Node(values, start, at + 1, members, has_last_comma)


def _array(text: str, start: int) -> Node:
    values, at = list[Any](), _skip(text, start + 1)
    while text[at : at + 1] != "]":
        value = _value(text, at)
        values.append(value.value)
        at, _ = _comma(text, value.end, "]")
    return Node(values, start, at + 1)


def _comma(text: str, at: int, closing: str) -> tuple[int, bool]:
    """The position of the next item, or of the closing bracket; and whether there was a comma."""
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1), True
    if text[at : at + 1] != closing:
        raise _wrong(text, at, f"a comma or {closing!r} is missing")
    return at, False


def _skip(text: str, at: int) -> int:
    """The position after white space and comments."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity


_decoder = json.JSONDecoder(parse_constant=_refuse)


def _wrong(text: str, at: int, problem: str) -> ValueError:
    return ValueError(f"line {text.count(chr(10), 0, at) + 1}: {problem}")
