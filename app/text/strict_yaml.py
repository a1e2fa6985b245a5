"""YAML as this program reads it: one document of plain values, of which each has its line. Pure.

Anchors, aliases, merge keys and tags are refused: a few lines with them can stand for gigabytes, and what they mean
differs from reader to reader. Scalars are those of the core schema of YAML 1.2, as editors read them: `yes` and `on`
are texts. What two readers would understand differently is refused too.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

MAX_DEPTH = 48
MAX_VALUES = 1_000_000
MAX_DIGITS = 20
LEAST, MOST = -(1 << 63), (1 << 64) - 1

Path = tuple[str | int, ...]
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast, if there is one
_NULLS = {"", "~", "null", "Null", "NULL"}
_TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_AMBIGUOUS = re.compile(r"[-+]?(0[0-9_]+|0[xob][0-9A-Fa-f_]+|[0-9][0-9_]*_[0-9_]*)")
_NO_NUMBER = re.compile(r"([-+]?\.(inf|Inf|INF))|\.(nan|NaN|NAN)")


class Unreadable(ValueError):
    """What is wrong with the text, and in which line (from 1)."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True, slots=True)
class Text:
    """The value of a text, and the line of each value in it by its path."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """The line of the value at this path, or of the innermost one around it."""
        return next((self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines), 1)


def read(text: str) -> Text:
    """The one document of the text; None if there is none.

    Raises:
        Unreadable: it is not YAML, or has what is refused here.
    """
    reader = _Reader()
    try:
        events = (each for each in yaml.parse(text, Loader=_Loader))
        return Text(reader.document(events), reader.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(mark.line + 1 if mark else 1, f"this is not YAML: {error.problem or error}") from None
    except yaml.YAMLError as error:  # such as control characters
        raise Unreadable(1, f"this is not YAML: {' '.join(str(error).split())}") from None


def resolved(text: str) -> Any:
    """The value of a scalar that is not quoted.

    Raises:
        ValueError: it is no number that JSON has, or it could be meant in two ways.
    """
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > MAX_DIGITS or not LEAST <= int(text) <= MOST:
            raise ValueError("a number has at most 64 bits; write a text in quotes")
        return int(text)
    if _AMBIGUOUS.fullmatch(text):
        raise ValueError(f"{text[:40]} is a number to some programs and a text to others: write it in quotes")
    if _NO_NUMBER.fullmatch(text):
        raise ValueError(f"{text} is no number; write a text in quotes")
    if _FLOAT.fullmatch(text):
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"{text[:40]} is too large for a number")
        return value
    return text


class _Reader:
    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}

    def document(self, events: Iterator[yaml.Event]) -> Any:
        next(events)  # the start of the stream
        event = next(events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = self._value(events, next(events), ())
        next(events)  # the end of the document
        event = next(events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._refuse(event, "a file is one document: write what follows `---` into a file of its own")
        return value

    def _value(self, events: Iterator[yaml.Event], event: yaml.Event, path: Path) -> Any:
        self._require_plain(event)
        self.lines.setdefault(path, _line(event))
        if len(self.lines) > MAX_VALUES:
            self._refuse(event, f"a file has at most {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:
            self._refuse(event, f"a value is inside of more than {MAX_DEPTH} others")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            values = list[Any]()
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                values.append(self._value(events, event, (*path, len(values))))
            return values
        return self._mapping(events, path)

    def _mapping(self, events: Iterator[yaml.Event], path: Path) -> dict[str, Any]:
        found = dict[str, Any]()
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            self._require_plain(event)
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "the name of a member is a text")
            name = event.value
            if name == "<<" and _is_unquoted(event):
                self._refuse(event, "`<<` is not supported: write the members out")
            if name in found:
                self._refuse(event, f"{name[:40]!r} stands twice here, first in line {self.lines[*path, name]}")
            self.lines[*path, name] = _line(event)
            found[name] = self._value(events, next(events), (*path, name))
        return found

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        if not _is_unquoted(event):
            return event.value
        try:
            return resolved(event.value)
        except ValueError as error:
            self._refuse(event, str(error))

    def _require_plain(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse(event, "anchors and aliases (`&name`, `*name`) are not supported: write the value out")
        if getattr(event, "tag", None) is not None:
            self._refuse(event, "tags (`!name`) are not supported")

    def _refuse(self, event: yaml.Event, problem: str) -> NoReturn:
        raise Unreadable(_line(event), problem)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _is_unquoted(event: yaml.ScalarEvent) -> bool:
    return event.style in (None, "")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _: Any) -> bool:
        return True


def _dumped_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quoted where this program, or one of YAML 1.1, would read something else than a text."""
    try:
        is_text = isinstance(resolved(text), str)
    except ValueError:
        is_text = False
    is_printable = all(each.isprintable() or each == "\n" for each in text)
    style = '"' if not (is_text and is_printable) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _dumped_text)


def written(value: Any) -> str:
    """The value as YAML that `read` reads as the same value."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text
