"""A difference of two definitions that people can read: where, what was there, what is there now."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.protocol.approval._hidden import visible
from app.protocol.approval._schemas import pointer, same

MAX_DIFFERENCES = 200
MAX_SHOWN = 4_000  # characters of a value
_LONG_TEXT = 60  # characters from which texts are compared word by word
_MAX_WORDS = 1_500  # above, the comparison would take long
_MAX_COMPARED = 20 * _MAX_WORDS  # characters
_CONTEXT_WORDS = 6
_PIECES = re.compile(r"\s+|[^\s\w]|\w+")
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Hunk:
    """A part of two texts: words that are in both, were removed, or were added. Long common parts are shortened."""

    kind: Literal["same", "removed", "added"]
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` is a JSON Pointer; None in `before` or `after`: there was, or is, nothing. Other values than strings are
    JSON. Hidden characters are written as `\\u{200b}`. `hunks` only for two long texts."""

    path: str
    before: str | None
    after: str | None
    hunks: tuple[Hunk, ...] = ()


def difference(approved: Mapping[str, Any] | None, offered: Mapping[str, Any] | None) -> list[Difference]:
    """At most MAX_DIFFERENCES, in the order of their paths. The definitions are such as `canonical` takes."""
    found: list[Difference] = []
    for path, before, after in _walk(_or_missing(approved), _or_missing(offered), ""):
        if len(found) == MAX_DIFFERENCES:
            break
        found.append(Difference(path, _shown(before), _shown(after), _hunks(before, after)))
    return found


def _or_missing(definition: Mapping[str, Any] | None) -> Any:
    return _MISSING if definition is None else definition


def _walk(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            place = f"{path}/{pointer(visible(name))}"
            yield from _walk(before.get(name, _MISSING), after.get(name, _MISSING), place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _walk(old, new, f"{path}/{index}")
    elif before is _MISSING or after is _MISSING or not same(before, after):
        yield path, before, after


def _shown(value: Any) -> str | None:
    if value is _MISSING:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return _cut(visible(text))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + f" … ({len(text) - MAX_SHOWN} characters more)"


def _hunks(before: Any, after: Any) -> tuple[Hunk, ...]:
    if not isinstance(before, str) or not isinstance(after, str):
        return ()
    if not _LONG_TEXT <= max(len(before), len(after)) <= _MAX_COMPARED:
        return ()
    old, new = _PIECES.findall(visible(before)), _PIECES.findall(visible(after))
    if max(len(old), len(new)) > 2 * _MAX_WORDS:
        return ()
    found: list[Hunk] = []
    for what, first, last, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            found.append(Hunk("same", _shortened(old[first:last])))
            continue
        if last > first:
            found.append(Hunk("removed", _cut("".join(old[first:last]))))
        if end > start:
            found.append(Hunk("added", _cut("".join(new[start:end]))))
    return tuple(found)


def _shortened(pieces: list[str]) -> str:
    kept = 2 * _CONTEXT_WORDS  # words and what is between them
    if len(pieces) <= 2 * kept:
        return "".join(pieces)
    return "".join(pieces[:kept]) + " … " + "".join(pieces[-kept:])
