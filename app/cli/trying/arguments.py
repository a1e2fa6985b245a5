"""`NAME=VALUE` words as the arguments of a tool, by its input schema. Pure but for `@FILE`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.members import content_of, refuse_constant
from app.errors import InvalidRequest
from app.text.meant import did_you_mean

Schema = Mapping[str, Any]
_NAMES = {  # of a type, in an error
    "integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null",
    "array": "a JSON list", "object": "a JSON object", "string": "text",
}  # fmt: skip
MAX_DEPTH = 16  # of references and alternatives


def arguments_of(words: Sequence[str], schema: Schema, tool: str) -> dict[str, Any]:
    """The arguments that the words give.

    Raises:
        InvalidRequest: one is unknown, missing, given twice, or not of its type.
    """
    found, known = dict[str, Any](), properties(schema)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"{word[:100]!a} is not of the form name=value{_usage(tool, schema)}")
        if name not in known and not _takes_any(schema):
            meant = did_you_mean(name, known) or _usage(tool, schema)
            raise InvalidRequest(f"{tool} has no argument {name[:100]!a}{meant}")
        value = _value(name, content_of(text), known.get(name, {}), schema)
        _require_json(name, value, text)
        if name not in found:
            found[name] = value
        elif isinstance(value, list) and isinstance(found[name], list):
            found[name] += value
        else:
            raise InvalidRequest(f"{name!a} is given twice")
    if missing := [name for name in required(schema) if name not in found]:
        raise InvalidRequest(f"{tool} needs {', '.join(_described(name, known, schema) for name in missing)}")
    return found


def properties(schema: Schema) -> dict[str, Schema]:
    """The schemas of the arguments, by name."""
    found = schema.get("properties")
    items = found.items() if isinstance(found, dict) else ()
    return {name: each if isinstance(each, dict) else {} for name, each in items}


def required(schema: Schema) -> list[str]:
    found = schema.get("required")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def summary(schema: Schema) -> str:
    """All arguments in one line, those that may be left out in brackets: `text=string [count=integer]`."""
    needed = required(schema)
    words = {name: f"{name}={'|'.join(types_of(each, schema)) or 'any'}" for name, each in properties(schema).items()}
    return " ".join(word if name in needed else f"[{word}]" for name, word in words.items())


def types_of(schema: Schema, root: Schema, depth: int = 0) -> list[str]:
    """The JSON types that it allows; empty if any."""
    if depth == MAX_DEPTH:
        return []
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return [kind] if isinstance(kind, str) else [str(each) for each in kind]
    if isinstance(schema.get("$ref"), str):
        return types_of(_referred(schema["$ref"], root), root, depth + 1)
    below = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if isinstance(below, list):
        kinds = [types_of(each, root, depth + 1) for each in below if isinstance(each, dict)]
        return list(dict.fromkeys(each for some in kinds for each in some)) if all(kinds) else []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return list(dict.fromkeys(map(_type_of, values))) if isinstance(values, list) else []


def _referred(reference: str, root: Schema) -> Schema:
    node: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def _value(name: str, text: str, schema: Schema, root: Schema) -> Any:
    """The text itself where texts are allowed and nothing else; else what it says as JSON, if that is allowed."""
    allowed = types_of(schema, root)
    if allowed == ["string"]:
        return text
    try:
        value = json.loads(text, parse_constant=refuse_constant)
        kind = _type_of(value)
    except (ValueError, RecursionError):
        value, kind = text, "string"
    if not allowed or kind in allowed or (kind == "integer" and "number" in allowed):
        return value
    if "string" in allowed:
        return text
    if "array" in allowed and isinstance(schema.get("items", {}), dict):  # one of its items; there may be more
        return [_value(name, text, schema.get("items", {}), root)]
    raise InvalidRequest(
        f"{name} must be {' or '.join(_NAMES.get(each, each) for each in allowed)}, not {text[:100]!a}"
    )


def _require_json(name: str, value: Any, text: str) -> None:
    """Raises InvalidRequest for a number that is too large, and half of a character."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise InvalidRequest(f"{name} cannot be sent as JSON: {text[:100]!a}") from None


def _type_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _takes_any(schema: Schema) -> bool:
    return not properties(schema) or bool(schema.get("additionalProperties"))


def _described(name: str, known: Mapping[str, Schema], root: Schema) -> str:
    schema = known.get(name, {})
    about = str(schema.get("description") or "").strip().partition("\n")[0]
    return f"{name}={'|'.join(types_of(schema, root)) or 'any'}" + (f" ({about})" if about else "")


def _usage(tool: str, schema: Schema) -> str:
    arguments = summary(schema)
    return f"; {tool} takes {arguments}" if arguments else f"; {tool} takes no arguments"
