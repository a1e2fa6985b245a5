"""What `trunkline top` shows, as lines of text: which nodes there are, and who takes how much. Pure.

Everything in it that others have made up has been made printable: it is for a terminal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.cli.tables import columns_of
from app.cli.text import printable

MAX_NODES = 8  # lines
GAP = "  "
KEYS = "q quit   p processes  s sessions  t tenants   m memory  c cpu  l calls  a age   space: now"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked at: a kind of thing, in an order, of a tenant or of all."""

    view: str = "processes"
    sort: str = "memory"
    tenant: str | None = None

    def but(self, *, view: str = "", sort: str = "") -> "Wanted":
        """The same with another view or order. A tenant has no age."""
        view, sort = view or self.view, sort or self.sort
        return Wanted(view, "memory" if (view, sort) == ("tenants", "age") else sort, self.tenant)

    @property
    def path(self) -> str:
        """Where REST has it."""
        return "/use" if self.view == "tenants" else f"/tenants/{self.tenant or '-'}/{self.view}"

    @property
    def words(self) -> str:
        """For people."""
        whose = "" if self.view == "tenants" else f" of {self.tenant or 'all tenants'}"
        return f"{self.view}{whose} by {self.sort}"


@dataclass(frozen=True, slots=True)
class Look:
    """What was found at one moment. `nodes` is None where the key may not see them."""

    at: datetime
    wanted: Wanted
    items: Sequence[Row]
    total: int
    silent_nodes: Sequence[str]
    nodes: Sequence[Row] | None

    @property
    def is_measured(self) -> bool:
        """Whether it is known of every process what it uses."""
        has_none = [row for row in self.items if row.get("process", "") is None]  # a session that waits for one
        return all(row.get("cpu_percent") is not None for row in self.items if row not in has_none)

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        asked = {"view": self.wanted.view, "sort": self.wanted.sort, "tenant": self.wanted.tenant}
        found = {"total": self.total, "silent_nodes": list(self.silent_nodes), "items": list(self.items)}
        return {"at": self.at.isoformat(), **asked, "nodes": self.nodes, **found}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, and what stands there of a row. Numbers stand on the right."""

    title: str
    text: Callable[[Row], str]
    is_number: bool = False


def frame(look: Look, problem: str = "") -> list[str]:
    """The lines: the nodes, what is looked at, the rows. `problem`: why there is nothing newer."""
    silent = f"; no answer from {', '.join(map(printable, look.silent_nodes))}" if look.silent_nodes else ""
    shown = f"{len(look.items)} of {look.total}" if len(look.items) < look.total else str(look.total)
    about = f"{look.at:%H:%M:%S}  {look.wanted.words}: {shown}{silent}"
    lines = [*_nodes(look.nodes), about]
    if problem:
        lines.append(printable(problem))
    return [*lines, "", *_table(look.items, COLUMNS[look.wanted.view])]


def title_line(look: Look, problem: str = "") -> int:
    """Which line of the frame has the titles of the columns: all below it are rows."""
    return len(_nodes(look.nodes)) + (3 if problem else 2)


def _nodes(nodes: Sequence[Row] | None) -> list[str]:
    if nodes is None:
        return []
    lines = [_node(node) for node in nodes[:MAX_NODES]]
    if len(nodes) > MAX_NODES:
        lines.append(f"... and {len(nodes) - MAX_NODES} more nodes")
    return lines


def _node(node: Row) -> str:
    words = [f"{node['id']}: {_many(node['sessions'], 'session')}, {_many(node['processes'], 'process')}"]
    load = node.get("load")
    if load is None:
        words.append("does not answer")
    else:
        words[0] += f", {_many(load['connections'], 'connection')}, {_many(load['calls'], 'call')}"
        words.append(f"loop {load['loop_lag_s'] * 1000:.0f} ms late")
        words.append(f"memory {_share(load['memory_used_bytes'], load['memory_limit_bytes'])}")
        words.append(f"files {_share(load['descriptors_used'], load['descriptors_limit'])}")
        words.append(f"backends {_bytes(load['backends_resident_bytes'])}, {load['backends_cpu_percent']:.0f} % cpu")
    words += ["drains"] if node.get("draining") else []
    words += [each for each in (node.get("problem"), (load or {}).get("refuses")) if each]
    return printable("; ".join(words))


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    cells = [[column.title for column in columns], *([column.text(row) for column in columns] for row in rows)]
    widths = [max(columns_of(line[place]) for line in cells) for place in range(len(columns))]
    return [
        GAP.join(
            _padded(text, width, to_the_right=column.is_number)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in cells
    ]


def _padded(text: str, width: int, *, to_the_right: bool) -> str:
    blanks = " " * (width - columns_of(text))
    return blanks + text if to_the_right else text + blanks


def cut(line: str, width: int) -> str:
    """As much of a line as fits."""
    while columns_of(line) > width:
        line = line[: -max(1, (columns_of(line) - width) // 2)]
    return line


# --- columns


def _many(number: int, of: str) -> str:
    return f"{number} {of if number == 1 else of + ('es' if of.endswith('s') else 's')}"


def _bytes(number: int) -> str:
    size, power = float(number), 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:.0f} {_UNITS[power]}" if power < 2 or size >= 100 else f"{size:.1f} {_UNITS[power]}"


def _share(used: int, limit: int) -> str:
    return f"{100 * used / limit:.0f} %" if limit else "?"


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: printable(str(row[name])) if row.get(name) not in (None, "") else "-"


def _number(title: str, name: str, show: Callable[[Any], str] = str) -> Column:
    return Column(title, lambda row: "-" if row.get(name) is None else show(row[name]), is_number=True)


def _client(row: Row) -> str:
    return printable(" ".join(each for each in (row.get("client_name"), row.get("client_version")) if each)) or "-"


_USE = (
    _number("MEMORY", "resident_bytes", _bytes),
    _number("CPU%", "cpu_percent", "{:.1f}".format),
    _number("CPU", "cpu_s", _seconds),
    _number("CALLS", "calls"),
    _number("TOTAL", "calls_total"),
)
_AGE = _number("AGE", "age_s", _seconds)
COLUMNS: Mapping[str, Sequence[Column]] = {
    "processes": (
        *_USE, _AGE, Column("TENANT", _text("tenant")), Column("BACKEND", _text("backend")),
        Column("STATE", _text("state")), _number("SESSIONS", "session_count"), _number("PID", "pid"),
        Column("NODE", _text("node")), Column("ID", _text("id")),
    ),
    "sessions": (
        *_USE, _AGE, _number("IDLE", "idle_s", _seconds), Column("TENANT", _text("tenant")),
        Column("BACKEND", _text("backend")),
        Column("WHO", lambda row: printable(f"{row['issuer']} {row['subject']}")), Column("CLIENT", _client),
        Column("ADDRESS", _text("address")), Column("ID", _text("id")), Column("NODE", _text("node")),
    ),
    "tenants": (
        *_USE, _number("SESSIONS", "sessions"), _number("PROCESSES", "processes"), Column("TENANT", _text("tenant")),
    ),
}  # fmt: skip
