"""Charts as SVG: lines and bars, with text that can be read on a light and on a dark page. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

WIDTH, LEFT, RIGHT, TOP = 760, 70, 20, 64
HEIGHT, BOTTOM = 380, 48
BAR, GAP, NAMES = 15, 12, 190
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5609a", "#b58900", "#4a9fd8", "#7a7a7a")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.note { font-size: 12px; fill: #59636e; }
.grid { stroke: #d1d9e0; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9aa4af; }
  .grid { stroke: #3d444d; }
}
"""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axes:
    """What they say. `is_log`: the one upwards is logarithmic; that across always is, as numbers double and double."""

    across: str
    up: str
    is_log: bool = False


def lines(title: str, axes: Axes, series: Mapping[str, Points], dashed: Mapping[str, Points] | None = None) -> str:
    """A line for each name; `dashed` are further ones of the same names."""
    dashed, is_log = dashed or {}, axes.is_log
    both = [*series.values(), *dashed.values()]
    xs = sorted({x for points in both for x, _ in points})
    ys = [y for points in both for _, y in points]
    ticks = _powers(min(ys), max(ys)) if is_log else _steps(max(ys))
    low, high = (math.log10(ticks[0]), math.log10(ticks[-1])) if is_log else (0.0, ticks[-1])
    first, last = math.log2(min(xs)), math.log2(max(xs))

    def x_of(x: float) -> float:
        return LEFT + (math.log2(x) - first) / ((last - first) or 1) * (WIDTH - LEFT - RIGHT)

    def y_of(y: float) -> float:
        share = ((math.log10(y) if is_log else y) - low) / ((high - low) or 1)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    parts = [_line(LEFT, y_of(each), WIDTH - RIGHT, y_of(each)) for each in ticks]
    parts += [_text(LEFT - 8, y_of(each) + 4, number(each), anchor="end") for each in ticks]
    parts += [_text(x_of(each), HEIGHT - BOTTOM + 18, number(each), anchor="middle") for each in xs]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, axes.across, "note", "middle"))
    for name, colour in zip(series, cycle(COLOURS), strict=False):
        for points, dash in ((series[name], ""), (dashed.get(name, ()), ' stroke-dasharray="6 5"')):
            path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dash}/>')
            parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
    return _page(title, axes.up, [*series], parts, HEIGHT)


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, float]], *, is_log: bool = False) -> str:
    """For each group a bar for each name, with its value beside it; `is_log` where the longest hides the others."""
    names = [*dict.fromkeys(name for group in groups.values() for name in group)]
    colours = dict(zip(names, cycle(COLOURS), strict=False))
    values = [value for group in groups.values() for value in group.values() if value > 0]
    least, most = (_powers(min(values), max(values))[0], max(values)) if values else (1.0, 1.0)
    room = WIDTH - NAMES - 90
    parts, y = list[str](), float(TOP + 8)
    for group, of in groups.items():
        parts.append(_text(16, y + len(of) * BAR / 2 + 4, group))
        for name, value in of.items():
            share = value / most if not is_log else math.log(max(value, least) / least) / (math.log(most / least) or 1)
            width = max(1.5, share * room)
            parts.append(
                f'<rect x="{NAMES}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 2}" fill="{colours[name]}"/>'
            )
            parts.append(_text(NAMES + width + 6, y + BAR - 4, number(value) if value >= 0.1 else "< 0.1", "note"))
            y += BAR
        y += GAP
    if is_log:
        parts.append(_text(NAMES, y + 8, "the length of a bar is logarithmic", "note"))
        y += 16
    return _page(title, unit, names, parts, int(y) + 8)


def number(value: float) -> str:
    """With two digits that count, and no more than the value has."""
    if value == 0:
        return "0"
    digits = max(0, 1 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits):,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def _page(title: str, unit: str, names: Sequence[str], parts: Sequence[str], height: int) -> str:
    legend, x = list[str](), 16.0
    for name, colour in zip(names, cycle(COLOURS), strict=False):
        legend.append(f'<rect x="{x:.0f}" y="40" width="12" height="12" fill="{colour}"/>')
        legend.append(_text(x + 17, 50.5, name))
        x += 34 + 7.2 * len(name)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        _text(16, 24, title, "title"),
        _text(WIDTH - RIGHT, 24, unit, "note", "end"),
    ]
    return "\n".join([*head, *legend, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="grid"/>'


def _steps(most: float) -> list[float]:
    """Some round numbers from 0 to at least this."""
    rough = most / 5 or 1
    unit = 10 ** math.floor(math.log10(rough))
    step = next(each * unit for each in (1, 2, 5, 10) if each * unit >= rough)
    return [number * step for number in range(math.ceil(most / step) + 1)]


def _powers(least: float, most: float) -> list[float]:
    """The powers of ten around these."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return [10.0**each for each in range(first, max(last, first + 1) + 1)]
