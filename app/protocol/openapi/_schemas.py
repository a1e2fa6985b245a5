"""Schemas of a document, in the dialect that clients of MCP accept: JSON Schema 2020-12 without what few programs know.

What is left out of a schema only makes it wider: the API checks what it is sent.
"""

import re
from typing import Any

from app.protocol.openapi._references import LeftOut, References

MAX_VALUES = 500  # of an `enum`
MAX_WORDS = 600  # characters of the description of a property
DEFS = "#/$defs/"
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_NUMBERS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf")
_ONE = ("items", "additionalProperties", "not", "contains")
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
_LIMITS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


class TooLarge(Exception):
    """The schema has more parts than it may."""


def short(text: object, most: int) -> str:
    """The text, or its beginning; empty if it is none."""
    words = text.strip() if isinstance(text, str) else ""
    return words if len(words) <= most else f"{words[: most - 1].rstrip()}…"


class Schemas:
    """Of one tool. `shares`: a schema that is referred to stands once, in `definitions`; otherwise only one that
    contains itself does. `most` parts, and below `depth` anything goes.
    """

    def __init__(self, references: References, *, shares: bool, most: int, depth: int) -> None:
        self._references, self._shares, self._left, self._depth = references, shares, most, depth
        self._under_way: list[str] = []
        self._names = dict[str, str]()  # in `definitions`, by reference
        self.definitions = dict[str, dict[str, Any]]()

    def converted(self, node: Any, depth: int = 0) -> dict[str, Any]:
        """The schema for clients.

        Raises:
            TooLarge: there are too many parts.
            LeftOut: it refers to what is not there.
        """
        self._left -= 1
        if self._left < 0:
            raise TooLarge
        if node is False:
            return {"not": {}}
        if not isinstance(node, dict) or depth > self._depth:
            return {}
        if isinstance(reference := node.get("$ref"), str):
            return self._referred(reference, node, depth)
        made = _plain(node)
        for name in _ONE:
            if isinstance(node.get(name), dict | bool):
                made[name] = node[name] if node[name] is False else self.converted(node[name], depth + 1)
        for name in _SEVERAL:
            if isinstance(found := node.get(name), list) and found:
                made[name] = [self.converted(each, depth + 1) for each in found]
        if isinstance(found := node.get("properties"), dict):
            made |= self._properties(found, node.get("required"), depth)
        return _or_null(made) if node.get("nullable") is True else made

    def _properties(self, found: dict[str, Any], required: Any, depth: int) -> dict[str, Any]:
        shown = {name: each for name, each in found.items() if not is_read_only(each)}
        made: dict[str, Any] = {
            "properties": {str(name): self.converted(each, depth + 1) for name, each in shown.items()}
        }
        needed = [name for name in _texts(required) if name in shown or name not in found]
        return made | ({"required": needed} if needed else {})

    def _referred(self, reference: str, node: dict[str, Any], depth: int) -> dict[str, Any]:
        own = {"description": words} if (words := short(node.get("description"), MAX_WORDS)) else {}
        if reference in self._names:
            return {"$ref": DEFS + self._names[reference], **own}
        if reference in self._under_way:
            return {"$ref": DEFS + self._named(reference), **own}
        if self._shares:
            self._named(reference)
        if len(self._under_way) >= 64:
            raise LeftOut("has a schema whose references lead too far")
        self._under_way.append(reference)
        made = self.converted(self._references.target(reference), 0 if self._shares else depth)
        self._under_way.pop()
        if reference not in self._names:
            return made | own
        self.definitions[self._names[reference]] = made
        return {"$ref": DEFS + self._names[reference], **own}

    def _named(self, reference: str) -> str:
        if reference not in self._names:
            name = plain = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])[:60] or "schema"
            taken, number = set(self._names.values()), 2
            while name in taken:
                name, number = f"{plain}_{number}", number + 1
            self._names[reference] = name
        return self._names[reference]


def is_read_only(node: Any) -> bool:
    return isinstance(node, dict) and node.get("readOnly") is True


def _texts(found: Any) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _plain(node: dict[str, Any]) -> dict[str, Any]:
    """What does not consist of schemas."""
    made = dict[str, Any]()
    given = node.get("type")
    types = [each for each in (given if isinstance(given, list) else [given]) if each in _TYPES]
    if types:
        made["type"] = types if len(types) > 1 else types[0]
    if words := short(node.get("description"), MAX_WORDS):
        made["description"] = words
    if isinstance(values := node.get("enum"), list) and 0 < len(values) <= MAX_VALUES:
        made["enum"] = [each for number, each in enumerate(values) if each not in values[:number]]
    made |= {name: node[name] for name in ("const", "default") if name in node}
    if isinstance(node.get("format"), str):
        made["format"] = node["format"]
    made |= {name: node[name] for name in _NUMBERS if _is_number(node.get(name))}
    if isinstance(node.get("uniqueItems"), bool):
        made["uniqueItems"] = node["uniqueItems"]
    if isinstance(pattern := node.get("pattern"), str) and _is_portable(pattern):
        made["pattern"] = pattern
    if "properties" not in node and (required := _texts(node.get("required"))):
        made["required"] = required
    return made | _limits(node)


def _limits(node: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI 3.0 says with a truth value whether a limit itself is excluded."""
    made = dict[str, Any]()
    for limit, exclusive in _LIMITS:
        if _is_number(node.get(limit)):
            made[exclusive if node.get(exclusive) is True else limit] = node[limit]
        if _is_number(node.get(exclusive)):
            made[exclusive] = node[exclusive]
    return made


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_portable(pattern: str) -> bool:
    """Whether it means the same in ECMAScript, as far as can be seen: a client refuses a tool whose pattern it cannot
    compile."""
    if re.search(r"\(\?(?![:=!])|\\[AZzGhHRQEpP]|\[\[:|[*+?}]\+", pattern) or len(pattern) > 500:
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _or_null(made: dict[str, Any]) -> dict[str, Any]:
    """`nullable` of OpenAPI 3.0."""
    if isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
        if "enum" in made and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
        return made
    if "type" in made or not ({"allOf", "anyOf", "oneOf", "enum"} & made.keys()):
        return made
    return {"anyOf": [made, {"type": "null"}]}
