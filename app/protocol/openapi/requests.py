"""The arguments of a call become an HTTP request, as the document says that they are written."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.protocol.openapi.api import Api, Body, Operation, Parameter, encoded

MAX_TARGET = 32 << 10  # bytes of path and query: more than servers accept
_DELIMITERS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C", "tabDelimited": "%09", "simple": ","}
_is_field_value = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?").fullmatch
_TEMPLATE = re.compile(r"\{([^{}]*)\}")

Pairs = list[tuple[str, str]]


class UnfitArguments(ValueError):
    """The arguments make no request, in a sentence for the model that chose them."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request. `path` and `target` (with the query) are percent-encoded."""

    method: str
    path: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Base:
    """What holds for every request: path and query of the base address, the credentials that go into the query, and the
    names, in lower case, of headers that each request has anyway: an argument never replaces one."""

    target: str
    keys: tuple[tuple[str, str], ...]
    taken: frozenset[str]


def base_of(api: Api, target: str, headers: Mapping[str, str]) -> tuple[Base, Mapping[str, str]]:
    """And the headers that each request has: those of a backend, without the credentials that the document wants in the
    query."""
    by_name = {each.lower(): each for each in api.keys}
    keys = tuple((by_name[name.lower()], value) for name, value in headers.items() if name.lower() in by_name)
    sent = {name: value for name, value in headers.items() if name.lower() not in by_name}
    return Base(target, keys, frozenset(name.lower() for name in sent)), sent


def request_of(operation: Operation, arguments: Mapping[str, Any], base: Base) -> ApiRequest:
    """The request that this call is.

    Raises:
        UnfitArguments: it is none.
    """
    _require_known(operation, arguments)
    values, query, headers = dict[str, str](), list[tuple[str, str]](), list[tuple[bytes, bytes]]()
    for each in operation.parameters:
        value = arguments.get(each.argument)
        if value is None:
            if each.required:
                raise UnfitArguments(f"`{each.argument}` is required")
        elif each.place == "path":
            values[each.name] = _in_path(each, value)
        elif each.place == "query":
            query += _in_query(each, value)
        elif each.name.lower() not in base.taken:
            headers.append((each.name.encode(), _in_header(each, value)))
    before, _, fixed = base.target.partition("?")
    made = before.rstrip("/") + _filled(operation.path, values)
    query += [(quote(name, safe=""), quote(value, safe="")) for name, value in base.keys]
    searched = "&".join([*([fixed] if fixed else []), *(f"{name}={value}" for name, value in query)])
    target = f"{made}?{searched}" if searched else made
    if len(target) > MAX_TARGET:
        raise UnfitArguments("the address that these arguments make is too long")
    headers.append((b"Accept", b"application/json, */*;q=0.5"))
    body, media = _body(operation.body, arguments)
    if media:
        headers.append((b"Content-Type", media))
    if not body and operation.method not in ("GET", "DELETE"):
        headers.append((b"Content-Length", b"0"))
    return ApiRequest(operation.method, made, target, headers, body)


def _require_known(operation: Operation, arguments: Mapping[str, Any]) -> None:
    body = operation.body
    known = {each.argument for each in operation.parameters}
    known |= set() if body is None else {body.argument, *body.members}
    if unknown := sorted(arguments.keys() - known):
        few = ", ".join(f"`{each[:60]}`" for each in unknown[:5])
        expected = ", ".join(f"`{each}`" for each in sorted(known - {""})[:30]) or "none"
        raise UnfitArguments(f"there is no argument {few}; there are: {expected}")


# --- the path


def _in_path(parameter: Parameter, value: Any) -> str:
    """Raises UnfitArguments: it is empty, or would lead elsewhere."""
    texts = [_text(each) for each in _flat(value)]
    for text in texts:
        if any(part in (".", "..") for part in re.split(r"[/\\]", text)):
            raise UnfitArguments(
                f"`{parameter.argument}` must not have `.` or `..` between slashes: it is part of a path"
            )
        if re.search(r"[\x00-\x1f\x7f]", text):
            raise UnfitArguments(f"`{parameter.argument}` has a control character")
    if not "".join(texts):
        raise UnfitArguments(f"`{parameter.argument}` must not be empty: it is part of a path")
    if parameter.style == "json":
        return quote(_json(value), safe="")
    name, parts = quote(parameter.name, safe=""), _parts(parameter, value)
    if parameter.style == "label":
        return "." + ("." if parameter.explode else ",").join(parts)
    if parameter.style == "matrix":
        return _matrix(parameter, name, value, parts)
    return ",".join(parts)


def _matrix(parameter: Parameter, name: str, value: Any, parts: Iterable[str]) -> str:
    if parameter.explode and isinstance(value, Mapping):
        return "".join(f";{each}" for each in parts)
    return "".join(f";{name}={each}" for each in (parts if parameter.explode else [",".join(parts)]))


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The path with its values; what the document has between them is encoded where it must be."""
    made, end = "", 0
    for found in _TEMPLATE.finditer(template):
        made += quote(template[end : found.start()], safe="/:@!$&'()*+,;=~%") + values[found[1]]
        end = found.end()
    return made + quote(template[end:], safe="/:@!$&'()*+,;=~%")


# --- query and headers


def _in_query(parameter: Parameter, value: Any) -> Pairs:
    name = quote(parameter.name, safe="")
    if parameter.style == "json":
        return [(name, quote(_json(value), safe=""))]
    if parameter.style == "deepObject" and isinstance(value, Mapping):
        return [(f"{name}{place}", text) for place, text in _deep(value)]
    if isinstance(value, Mapping) and parameter.style == "form" and parameter.explode:
        return [(quote(str(key), safe=""), _quoted(each)) for key, each in value.items() if each is not None]
    if isinstance(value, Mapping | list):
        parts = _parts(parameter, value)
        if parameter.explode and isinstance(value, list):
            return [(name, each) for each in parts]
        return [(name, _DELIMITERS.get(parameter.style, ",").join(parts))]
    return [(name, _quoted(value))]


def _deep(value: Any, depth: int = 0) -> Iterable[tuple[str, str]]:
    if depth > 8:
        raise UnfitArguments("an argument is nested too deeply")
    if isinstance(value, Mapping):
        for key, each in value.items():
            for place, text in _deep(each, depth + 1):
                yield f"[{quote(str(key), safe='')}]{place}", text
    elif isinstance(value, list):
        for each in value:
            yield "", _quoted(each)
    elif value is not None:
        yield "", _quoted(value)


def _in_header(parameter: Parameter, value: Any) -> bytes:
    if parameter.style == "json":
        text = _json(value)
    elif isinstance(value, Mapping):
        between = "=" if parameter.explode else ","
        text = ",".join(f"{key}{between}{_text(each)}" for key, each in value.items())
    else:
        text = ",".join(_text(each) for each in _flat(value))
    if text and _is_field_value(text) is None:
        raise UnfitArguments(f"`{parameter.argument}` is sent in a header: it must be printable ASCII")
    return text.encode()


# --- values


def _parts(parameter: Parameter, value: Any) -> list[str]:
    """The texts that are joined, each encoded; of an object, names and values."""
    if isinstance(value, Mapping):
        pairs = [(quote(str(key), safe=""), _quoted(each)) for key, each in value.items()]
        return (
            [f"{key}={each}" for key, each in pairs] if parameter.explode else [part for pair in pairs for part in pair]
        )
    return [_quoted(each) for each in (value if isinstance(value, list) else [value])]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    return value if isinstance(value, list) else [value]


def _quoted(value: Any) -> str:
    return quote(_text(value), safe="")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _body(body: Body | None, arguments: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """And its media type, which is empty where there is no body."""
    if body is None:
        return b"", b""
    media = body.media_type.encode()
    if body.argument:
        if body.argument in arguments:
            return encoded(arguments[body.argument]), media
    else:
        given = {name: arguments[own] for own, name in body.members.items() if own in arguments}
        if given or body.required:
            return encoded(given), media
    if body.required:
        raise UnfitArguments(f"`{body.argument}` is required")
    return b"", b""
