"""What stands in the claims of a token: how it is found, read as a list, and shown to administrators."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

MAX_SCOPES = 100
MAX_NAMES = 1000  # of groups; 8 KiB of token have room for 500 of the shortest that make sense
MAX_SHOWN, MAX_SHOWN_ITEMS, MAX_SHOWN_TOGETHER = 200, 20, 600  # refused tokens are remembered with what is shown


def claim(claims: Mapping[str, Any], path: str) -> object:
    """The claim down this path of names with dots between.

    A name may have dots itself (`https://example.com/scopes`, a client's id at Keycloak): at each step the longest
    name that is there is taken.
    """
    found: object = claims
    while isinstance(found, Mapping):
        if path in found:
            value: object = found[path]
            return value
        end = path.rfind(".")
        while end >= 0 and path[:end] not in found:
            end = path.rfind(".", 0, end)
        if end < 0:
            return None
        found, path = found[path[:end]], path[end + 1 :]
    return None


def named_in(value: object) -> Sequence[str] | None:
    """Groups or roles: an array, or a text that is one name, spaces and all. None if it is neither."""
    named = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(named, list) or len(named) > MAX_NAMES or not all(isinstance(each, str) for each in named):
        return None
    return named


def scopes_in(value: object) -> Sequence[str] | None:
    """Scopes: a text with spaces (RFC 8693) or an array. None if it is neither."""
    listed = value.split() if isinstance(value, str) else [] if value is None else value
    if not isinstance(listed, list) or len(listed) > MAX_SCOPES or not all(isinstance(each, str) for each in listed):
        return None
    return listed


def shown(value: object) -> object:
    """A value that a stranger may have written, as it can stand in a log line or on a terminal: of a list the first
    few, as long as they are short together, and no list in a list."""
    if not isinstance(value, (list, tuple)):
        return _one(value)
    found, room = list[object](), MAX_SHOWN_TOGETHER
    for each in value[:MAX_SHOWN_ITEMS]:
        item = _one(each)
        room -= len(str(item))
        if room < 0:
            break
        found.append(item)
    return found if len(found) == len(value) else [*found, "…"]


def _one(value: object) -> object:
    if isinstance(value, str):
        return _printable(value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    try:
        return _printable(json.dumps(value))
    except (ValueError, RecursionError):
        return f"a value of the kind {type(value).__name__}"


def _printable(text: str) -> str:
    cut = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
