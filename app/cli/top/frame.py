"""The output of `trunkline top` as lines of text: the nodes, and what processes, sessions or tenants use. Pure.

All text that others can set is made printable: it goes to a terminal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from app.cli.tables import GAP
from app.text.terminal.text import columns_of, printable

MAX_NODES = 8  # with a line each
KEYS = "q quit   p processes  s sessions  t tenants   m memory  c cpu  l calls  a age   space: now"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for: a view, its order, and one tenant or all."""

    view: str = "processes"
    sort: str = "memory"
    tenant: str | None = None

    def but(self, *, view: str = "", sort: str = "") -> "Query":
        """A copy with another view or order. Tenants cannot be sorted by age."""
        view, sort = view or self.view, sort or self.sort
        return Query(view, "memory" if (view, sort) == ("tenants", "age") else sort, self.tenant)

    @property
    def path(self) -> str:
        """The path in the REST API."""
        return "/use" if self.view == "tenants" else f"/tenants/{self.tenant or '-'}/{self.view}"

    @property
    def words(self) -> str:
        """A description for people."""
        whose = "" if self.view == "tenants" else f" of {self.tenant or 'all tenants'}"
        return f"{self.view}{whose} by {self.sort}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The gateway's answer at one time. `nodes` is None if the key may not read them."""

    at: datetime
    query: Query
    items: Sequence[Row]
    total: int
    silent_nodes: Sequence[str]
    nodes: Sequence[Row] | None

    @property
    def is_measured(self) -> bool:
        """Whether the use of every process is known."""
        processes = [row for row in self.items if row.get("process", "") is not None]  # a session may wait for its own
        return all(row.get("cpu_percent") is not None for row in processes)

    def as_json(self) -> dict[str, Any]:
        """One object of `--json`."""
        found = {"total": self.total, "silent_nodes": list(self.silent_nodes), "items": list(self.items)}
        return {"at": self.at.isoformat(), **asdict(self.query), "nodes": self.nodes, **found}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, and its text for a row. Numbers are aligned to the right."""

    title: str
    text: Callable[[Row], str]
    is_number: bool = False


def frame(snapshot: Snapshot, problem: str = "") -> list[str]:
    """The lines: nodes, a description, the table. `problem` says why there is no newer answer."""
    total = snapshot.total
    shown = f"{len(snapshot.items)} of {total}" if len(snapshot.items) < total else str(total)
    about = f"{snapshot.at:%H:%M:%S}  {snapshot.query.words}: {shown}"
    if snapshot.silent_nodes:
        about += f"; no answer from {', '.join(map(printable, snapshot.silent_nodes))}"
    lines = [*_nodes(snapshot.nodes), about]
    if problem:
        lines.append(printable(problem))
    return [*lines, "", *_table(snapshot.items, COLUMNS[snapshot.query.view])]


def title_line(snapshot: Snapshot, problem: str = "") -> int:
    """The number of the line with the titles of the columns; the rows follow it."""
    return len(_nodes(snapshot.nodes)) + (3 if problem else 2)


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


def _text(name: str) -> Column:
    return Column(name.upper(), lambda row: printable(str(row[name])) if row.get(name) not in (None, "") else "-")


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
_WHO = Column("WHO", lambda row: printable(f"{row['issuer']} {row['subject']}"))
COLUMNS: Mapping[str, Sequence[Column]] = {
    "processes": (
        *_USE, _AGE, _text("tenant"), _text("backend"), _text("state"), _text("start"),
        _number("SESSIONS", "session_count"), _number("PID", "pid"), _text("node"), _text("id"),
    ),
    "sessions": (
        *_USE, _AGE, _number("IDLE", "idle_s", _seconds), _text("state"), _text("tenant"), _text("backend"), _WHO,
        Column("CLIENT", _client), _text("address"), _text("id"), _text("node"),
    ),
    "tenants": (*_USE, _number("SESSIONS", "sessions"), _number("PROCESSES", "processes"), _text("tenant")),
}  # fmt: skip
