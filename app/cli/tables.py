"""Answers of the REST API as text: a table that fits the terminal for a list, a line for each member for an object.

Pure, and independent of the resource: every member is shown, under the name that `set` accepts.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from app.text.terminal.text import columns_of, cut, printable

GAP = "  "
WIDEST = 40  # of a column other than the first, if the terminal is not wide enough for all
NARROWEST = 12
INLINE = 100  # a longer list has a line for each item
MIB = 2**20
MOST_IN_A_CELL = 1000  # columns of a list in a table: of a longer one the number of its entries is shown
MOST_BYTES = 2**64  # a larger number is not a size, and may be too large for a float
_LAST = ("version", "created_at", "tenant")  # left out first if there is no room
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def table(
    rows: Sequence[Mapping[str, Any]], *, first: Sequence[str] = (), width: int | None = None
) -> tuple[str, list[str]]:
    """A line of column names and one for each row; and the columns that were left out because there was no room.

    `first` are the leading columns, if the rows have them. Without `width` nothing is cut or left out. Columns without
    any value are never shown.
    """
    columns = _columns(rows, first)
    cells = {name: [printable(name), *(_shown(name, _counted(row.get(name))) for row in rows)] for name in columns}
    widths = {name: max(map(columns_of, each)) for name, each in cells.items()}
    left_out = [] if width is None else _fit(widths, width)
    shown = [name for name in columns if name in widths]
    lines = (
        GAP.join(_cell(cells[name][number], widths[name]) for name in shown).rstrip() for number in range(len(rows) + 1)
    )
    return "\n".join(lines), [printable(name) for name in left_out]


def record(members: Mapping[str, Any], *, width: int | None = None) -> str:
    """A line for each member, with dots between levels; a list of objects is a table below its name."""
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
    """A value in one line; a number of bytes in MiB."""
    if name.endswith("_bytes") and isinstance(value, int) and MIB <= value < MOST_BYTES:
        return f"{value / MIB:.1f} MiB"
    return one_line(value)


def _counted(value: Any) -> Any:
    """What a row would not be readable with, as its number: a node has hundreds of attempts in `sandbox`."""
    if isinstance(value, Mapping):
        return {name: _counted(each) for name, each in value.items()}
    if isinstance(value, list) and len(one_line(value)) > MOST_IN_A_CELL:
        return f"({len(value)})"
    return value


def one_line(value: Any) -> str:
    """A value in one line, as `set` accepts it; but times and fractions are shortened."""
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


def _moment(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError):  # in another time zone, and before the year 1 or after 9999 in UTC
        return text


def _columns(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> list[str]:
    """The columns in order: `first`, single values, lists and objects, and those that may be left out."""
    found = dict.fromkeys(name for row in rows for name in row)
    filled = [name for name in found if any(row.get(name) not in (None, "", [], {}) for row in rows)]
    nested = {name for name in filled if any(isinstance(row.get(name), Mapping | list) for row in rows)}

    def rank(name: str) -> tuple[int, int]:
        if name in first:
            return 0, first.index(name)
        return (3 if name in _LAST else 2 if name in nested else 1), filled.index(name)

    return sorted(filled, key=rank)


def _fit(widths: dict[str, int], width: int) -> list[str]:
    """Makes columns narrower, and leaves out the last ones if that is not enough. The first is never cut."""
    names, left_out = list(widths), list[str]()
    room = width + len(GAP)  # each column has a gap after it, and the last one's is not printed
    while len(names) > 1 and widths[names[0]] + sum(min(widths[name], NARROWEST) for name in names[1:]) > (
        room - len(GAP) * len(names)
    ):
        left_out.insert(0, names.pop())
        del widths[left_out[0]]
    for name in names[1:]:
        widths[name] = min(widths[name], max(WIDEST, width // 2))
    while len(names) > 1 and sum(widths.values()) > room - len(GAP) * len(names):
        widest = max(names[1:], key=lambda name: widths[name])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return left_out


def _cell(text: str, width: int) -> str:
    text = text if columns_of(text) <= width else cut(text, width - 1) + "…"
    return text + " " * (width - columns_of(text))


def _flat(members: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in members.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_block(value: Any) -> bool:
    """Whether it needs more than one line."""
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
