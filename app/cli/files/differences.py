"""What differs between what the gateway shows and what a file wants, and the merge patch that removes it. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.resources.backends import HIDDEN
from app.text.terminal.text import printable

MAX_VALUE = 120  # characters of a value in a line
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One member with its old and new value, None if there is none. Values of secrets are never in it."""

    path: str
    old: Any
    new: Any
    is_secret: bool = False

    def line(self, *, is_made: bool = False) -> str:
        """For people; of an object that `is_made` the new value only."""
        if is_made:
            return printable(f"{self.path}: {HIDDEN if self.is_secret else _shown(self.new)}")
        if self.is_secret:
            was, now = (HIDDEN if each else "nothing" for each in (self.old, self.new))
            return printable(f"{self.path}: {was} → {now}" + (" (another value)" if self.old and self.new else ""))
        if isinstance(self.old, str) and isinstance(self.new, str) and "\n" in self.old + self.new:
            return printable(f"{self.path}: {_lines(self.old)} → {_lines(self.new)}, {_first_difference(self)}")
        return printable(f"{self.path}: {_shown(self.old)} → {_shown(self.new)}")


def changes(old: Mapping[str, Any], new: Mapping[str, Any], *, secret: Iterable[str] = ()) -> list[Change]:
    """The members of `new` that `old` has not, or otherwise; below members in `secret` only which are new or gone."""
    hidden = tuple(secret)
    found = list[Change]()
    for name, value in new.items():
        for change in _between(name, old.get(name), value):
            is_shown = isinstance(value, dict) and HIDDEN not in (change.old, change.new) and "." in change.path
            found.append(_hidden(change) if name in hidden and not is_shown else change)
    return found


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a merge patch (RFC 7396) that makes `old` what `new` is. Members that only `old` has are left
    alone at the top, and removed below."""
    return {name: _patch_of(old.get(name), value) for name, value in new.items() if old.get(name) != value}


def _patch_of(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    patch = {name: None for name in old if name not in new}
    return patch | {
        name: _patch_of(old.get(name), value) for name, value in new.items() if old.get(name, _ABSENT) != value
    }


def _between(path: str, old: Any, new: Any) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(each for each in new if each not in old)]:
            yield from _between(f"{path}.{name}", old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and _are_objects(old + new):
        for number, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _between(f"{path}[{number}]", was, now)
    else:
        yield Change(path, old, new)


def _are_objects(values: list[Any]) -> bool:
    return all(isinstance(each, dict) for each in values)


def _hidden(change: Change) -> Change:
    def marked(value: Any) -> Any:
        return dict.fromkeys(value, HIDDEN) if isinstance(value, dict) else HIDDEN if value is not None else None

    return Change(change.path, marked(change.old), marked(change.new), is_secret=True)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"


def _lines(text: str) -> str:
    count = len(text.splitlines())
    return f"{count} line{'' if count == 1 else 's'}"


def _first_difference(change: Change) -> str:
    old, new = change.old.splitlines(), change.new.splitlines()
    number = next(
        (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )
    return f"differing from line {number + 1} on"
