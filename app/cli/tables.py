"""What the REST API answers, as text: tables that fit a terminal for lists, a line for each member for one object.

Knows no resource: whatever an answer has is shown, under the names that `set` takes. Pure.
"""

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from app.cli.text import printable

GAP = "  "
WIDEST = 40  # of a column that is not the first, where the terminal is not wide enough for all
NARROWEST = 12
INLINE = 100  # a list of texts that is longer has a line for each
MIB = 2**20
MOST_BYTES = 2**64  # above that it is no size, and perhaps no float either
_LAST = ("version", "created_at", "tenant")  # these go first when there is no room
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def table(
    rows: Sequence[Mapping[str, Any]], *, first: Sequence[str] = (), width: int | None = None
) -> tuple[str, list[str]]:
    """A line for each row below a line of names, and the columns that were left out for want of room.

    `first` are the columns that matter most, as far as there are such. Without `width` nothing is cut or left out.
    Columns in which nobody has anything are never there.
    """
    columns = _columns(rows, first)
    cells = {name: [printable(name), *(_shown(name, row.get(name)) for row in rows)] for name in columns}
    widths = {name: max(map(columns_of, each)) for name, each in cells.items()}
    left_out = [] if width is None else _fit(widths, width)
    shown = [name for name in columns if name in widths]
    lines = (
        GAP.join(_cell(cells[name][number], widths[name]) for name in shown).rstrip() for number in range(len(rows) + 1)
    )
    return "\n".join(lines), [printable(name) for name in left_out]


def record(members: Mapping[str, Any], *, width: int | None = None) -> str:
    """A line for each member, dots for levels; a list of objects as a table below its name."""
    flat = [(printable(name), value) for name, value in _flat(members)]
    longest = max((columns_of(name) for name, value in flat if not _is_block(value)), default=0)
    lines = list[str]()
    for name, value in flat:
        if _is_block(value):
            lines += [name, *(f"{GAP}{line}".rstrip() for line in _block(value, width))]
        else:
            lines.append(f"{_cell(name, longest)}{GAP}{_shown(name, value)}".rstrip())
    return "\n".join(lines)


def _shown(name: str, value: Any) -> str:
    """A value in one line. Bytes are counted for people: nobody reads nine digits."""
    if name.endswith("_bytes") and isinstance(value, int) and MIB <= value < MOST_BYTES:
        return f"{value / MIB:.1f} MiB"
    return one_line(value)


def one_line(value: Any) -> str:
    """A value in one line: as `set` takes it, but for moments and numbers, which are cut to what a person reads."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, str):
        return _moment(value) if _MOMENT.fullmatch(value) else printable(value)
    if isinstance(value, Mapping):
        return " ".join(f"{printable(str(name))}={one_line(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " ".join(shlex.quote(printable(each) if isinstance(each, str) else one_line(each)) for each in value)
    return printable(str(value))


def columns_of(text: str) -> int:
    """How much room a text takes on a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text if not unicodedata.combining(each)
    )


def _moment(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError):  # the first or the last hours of the calendar, elsewhere
        return text


def _columns(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> list[str]:
    """Names in the order of what matters: those asked for, what is one value, what has members, what may be missing."""
    found = dict.fromkeys(name for row in rows for name in row)
    filled = [name for name in found if any(row.get(name) not in (None, "", [], {}) for row in rows)]
    nested = {name for name in filled if any(isinstance(row.get(name), Mapping | list) for row in rows)}

    def rank(name: str) -> tuple[int, int]:
        if name in first:
            return 0, first.index(name)
        return (3 if name in _LAST else 2 if name in nested else 1), filled.index(name)

    return sorted(filled, key=rank)


def _fit(widths: dict[str, int], width: int) -> list[str]:
    """Makes columns narrower, and leaves the last ones out where that is not enough. The first is always whole."""
    names, left_out = list(widths), list[str]()
    while len(names) > 1 and sum(min(widths[name], NARROWEST) for name in names[1:]) + widths[names[0]] > _room(
        names, width
    ):
        left_out.insert(0, names.pop())
        del widths[left_out[0]]
    for name in names[1:]:
        widths[name] = min(widths[name], max(WIDEST, width // 2))
    while len(names) > 1 and sum(widths.values()) > _room(names, width):
        widest = max(names[1:], key=lambda name: widths[name])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return left_out


def _room(names: Sequence[str], width: int) -> int:
    return width - len(GAP) * (len(names) - 1)


def _cell(text: str, width: int) -> str:
    if columns_of(text) > width:
        while text and columns_of(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - columns_of(text))


def _flat(members: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in members.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_block(value: Any) -> bool:
    """Whether it has lines of its own."""
    if isinstance(value, str):
        return "\n" in value.rstrip("\n")
    return isinstance(value, list) and (_are_objects(value) or len(one_line(value)) > INLINE)


def _are_objects(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(each, Mapping) for each in value)


def _block(value: Any, width: int | None) -> Iterable[str]:
    if isinstance(value, str):
        return [printable(line) for line in value.splitlines()]
    if not _are_objects(value):
        return [one_line(each) for each in value]
    room = None if width is None else width - len(GAP)
    if any(_is_block(each) or isinstance(each, Mapping) for item in value for each in item.values()):
        return [line for item in value for line in (*record(item, width=room).splitlines(), "")][:-1]
    return table(value, width=room)[0].splitlines()
