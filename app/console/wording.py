"""How values are written on pages."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

_NOTHING = "\N{EN DASH}"
_RANDOM = 16  # characters at the end of a node's id
MANY_SESSIONS = 1_000
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def size(count: float | None) -> str:
    """`12.3 MiB`."""
    if count is None:
        return _NOTHING
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" or value >= 100 else f"{value:.1f} {units[0]}"


def span(seconds: float | None) -> str:
    """`3 h 12 min`; below a second `120 ms`."""
    if seconds is None:
        return _NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    left, words = round(seconds), list[str]()
    for step, unit in _STEPS:
        if left >= step and len(words) < 2:
            words.append(f"{left // step} {unit}")
            left %= step
        elif words:
            break
    return " ".join(words)


def moment(text: str | None) -> str:
    """A time of REST for people: to the second, in UTC."""
    if not text:
        return _NOTHING
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: float | None) -> str:
    """`12,345`."""
    if value is None:
        return _NOTHING
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def short(text: str, most: int = 80) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else text[: most - 1] + "…"


def node_name(node_id: str) -> str:
    """Its NODE_NAME and the beginning of the random part, by which two of one name differ."""
    name, dash, rest = node_id.rpartition("-")
    return f"{name}-{rest[:4]}" if dash and len(rest) == _RANDOM else short(node_id, 20)


def is_odd_line(text: str) -> bool:
    """Whether it would be another text as a line of a field: forms take the ends of lines, and empty ones, away."""
    return text != text.strip() or not text or len(text.splitlines()) > 1


def every_s(sessions: int) -> str:
    """How many seconds apart a list of what runs renews itself: that of thousands is slow to make, and nobody sees what
    changes in it."""
    return "20" if sessions <= MANY_SESSIONS else "40"


FILTERS: Mapping[str, Callable[..., str]] = {
    "size": size,
    "span": span,
    "moment": moment,
    "number": number,
    "short": short,
    "node_name": node_name,
    "every_s": every_s,
}
