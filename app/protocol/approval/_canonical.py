"""The one form of a tool's definition that is hashed and compared, and how large a definition may be."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from app.errors import ClientError

MAX_BYTES = 128 * 1024  # of the canonical form; the largest of the real ones that were measured has 20 KiB
MAX_DEPTH = 32
MAX_VALUES = 20_000
_EXACT = 2**53  # floats below are written as the integers that they are


class DefinitionTooLarge(ClientError, reason="definition_too_large"):
    """The tool's definition is too large, or nested too deeply, to be looked at.

    So it can be neither approved nor compared, and counts as changed.
    """


def canonical(definition: Mapping[str, Any]) -> str:
    """The definition as JSON in ASCII: members sorted, no spaces, `1.0` as `1`. Equal for equal definitions.

    All members are in it, those that this version does not know as well: a client may act on any of them.

    Raises:
        DefinitionTooLarge: over MAX_BYTES, MAX_DEPTH or MAX_VALUES, or with a number that JSON does not have.
    """
    _measure(definition)
    try:
        text = json.dumps(_plain(definition), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # NaN, infinity, an integer with thousands of digits
        raise DefinitionTooLarge from error
    if len(text) > MAX_BYTES:
        raise DefinitionTooLarge
    return text


def fingerprint(definition: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical form, in hexadecimal.

    Raises:
        DefinitionTooLarge: see `canonical`.
    """
    return hashlib.sha256(canonical(definition).encode()).hexdigest()


def _measure(definition: Mapping[str, Any]) -> None:
    """Without recursion: a definition may be nested more deeply than Python may recurse."""
    level: list[Any] = [definition]
    values = depth = 0
    while level:
        depth, values = depth + 1, values + len(level)
        if depth > MAX_DEPTH or values > MAX_VALUES:
            raise DefinitionTooLarge
        level = [child for value in level for child in _children(value)]


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value
