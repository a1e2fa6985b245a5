"""What a run has found, as the documents show it: JSON, tables and charts. Pure but for writing."""

import json
import re
from pathlib import Path
from typing import Any

from capacity import plots

PARKED_KIB = 11.4  # of 5,000: bench/parked.py
CHAT_PER_HOUR = 180  # calls of a session that chats: one each 20 s
NODE, GATEWAYS = "trunkline", {"bridge": "bare bridge", "supergateway": "supergateway"}
MODES = {"exec": "a process each", "fork": "forked", "parked": "parked", "shared": "shared", **GATEWAYS}
PHASES = ("idle", "chatting", "bursting")
SIZING = "docs/sizing.md"
PICTURES, PAGE = "docs/pictures", "docs/performance.md"
BEGIN, END = "<!-- scripts/bench --capacity: begin -->", "<!-- end -->"
Report = dict[str, Any]


def as_json(found: Report) -> str:
    """With short lists on one line."""
    text = json.dumps(found, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda inner: f"[{re.sub(chr(92) + 's+', ' ', inner[1])}]", text) + "\n"


# --- arithmetic: the formulas are in docs/performance.md


def session_mib(row: Report, phase: str = "idle") -> float:
    """What each session adds: idle the slope, else what the phase reached without what is there for all. Of parked
    ones there are too few to see what an idle one adds, which has no process."""
    memory = row["memory"]
    if row["mode"] == "parked" and phase == "idle":
        return PARKED_KIB / 1024
    idle: float = memory["backend_mib_per_session"] + max(0.0, memory["gateway_kib_per_session"]) / 1024
    if phase == "idle":
        return max(idle, 0.001)
    others: float = (row[phase]["mib"] - memory["node_mib"] - memory["fixed_mib"]) / row["sessions"]
    return max(idle, others)


def call_cpu_ms(row: Report, phase: str) -> float:
    return float(row[phase]["gateway_cpu_ms_per_call"] + row[phase]["backend_cpu_ms_per_call"])


def per_gib(row: Report, phase: str = "idle") -> float:
    return 1024 / session_mib(row, phase)


def per_core(row: Report) -> float:
    """Sessions that chat, on one core."""
    idle = float(row["idle"]["gateway_cpu_s_per_hour"] + row["idle"]["backend_cpu_s_per_hour"])
    return 3600 / (idle + CHAT_PER_HOUR * call_cpu_ms(row, "chatting") / 1000)


def calls_per_core(row: Report) -> float:
    """Calls in a second of one core's time, as many at once as there are sessions."""
    return 1000 / max(0.001, call_cpu_ms(row, "bursting"))


# --- the table


def table(found: Report) -> str:
    """A row for each that was measured."""
    head = (
        "| server | | tier | MiB for each session: idle; chatting; bursting | for all sessions | sessions per GiB: "
        "idle; bursting | sessions per core, chatting | calls/s per core | open after: cold; warm |"
    )
    lines = [head, "|---|---|---|--:|--:|--:|--:|--:|--:|"]
    for row in found["rows"]:
        warm = row.get("opening_warm")
        lines.append(
            "| "
            + " | ".join(
                [
                    f"`{row['server']}`",
                    MODES[row["mode"]],
                    row.get("tier", ""),
                    "; ".join(_some(session_mib(row, phase)) for phase in PHASES),
                    f"{row['memory']['fixed_mib']:.0f} MiB" if row["memory"]["fixed_mib"] >= 1 else "",
                    "; ".join(_some(per_gib(row, phase)) for phase in ("idle", "bursting")),
                    plots.number(per_core(row)),
                    "" if row["mode"] == "parked" else plots.number(calls_per_core(row)),  # most are not wakes
                    f"{opening_ms(row):,.0f} ms" + (f"; {warm['p50_ms']:,.0f} ms" if warm else ""),
                ]
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


def _some(value: float) -> str:
    """Without digits that nobody has measured."""
    return "< 0.1" if value < 0.1 else "> 10,000" if value > 10_000 else plots.number(value)


def opening_ms(row: Report) -> float:
    """Of a session; where it is parked, of a call that wakes it."""
    return float(row["chatting"].get("p50_ms", 0) if row["mode"] == "parked" else row["opening"]["p50_ms"])


# --- charts


def charts(found: Report) -> dict[str, str]:
    """Name of the file -> SVG."""
    made = {}
    if found["rows"]:
        made["capacity-memory.svg"] = plots.bars(
            "Memory of an idle session",
            "MiB, PSS; what is there for all sessions not counted",
            _by_server(found, session_mib),
        )
        made["capacity-opening.svg"] = plots.bars(
            "Until a session has its list of tools",
            "ms, median; parked: a call that wakes",
            _openings(found),
            is_log=True,
        )
    if found["curves"]:
        across = "sessions that call at the same time, of an echo server"
        made["capacity-calls.svg"] = plots.lines("Calls", plots.Axes(across, "calls/s"), _series(found, "calls_per_s"))
        cpu = plots.Axes(across, "ms", is_log=True)
        made["capacity-cpu.svg"] = plots.lines(
            "CPU of the gateway for a call", cpu, _series(found, "gateway_cpu_ms_per_call")
        )
        times = plots.Axes(across, "ms; solid: median, dashed: 99 %", is_log=True)
        made["capacity-latency.svg"] = plots.lines(
            "Time of a call", times, _series(found, "p50_ms"), _series(found, "p99_ms")
        )
    return made


def _by_server(found: Report, value: Any) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for row in found["rows"]:
        name = f"{row['server']} ({found['servers'][row['server']]['language']})"
        groups.setdefault(name, {})[MODES[row["mode"]]] = value(row)
    return groups


def _openings(found: Report) -> dict[str, dict[str, float]]:
    groups = _by_server(found, opening_ms)
    warm = {row["server"]: row["opening_warm"]["p50_ms"] for row in found["rows"] if "opening_warm" in row}
    for name, group in groups.items():
        server = name.split()[0]
        if server in warm:
            groups[name] = {MODES["exec"]: group.pop(MODES["exec"]), "warm": warm[server], **group}
    return groups


def _series(found: Report, value: str) -> dict[str, list[tuple[float, float]]]:
    series: dict[str, list[tuple[float, float]]] = {}
    for point in found["curves"]:
        if point.get(value):
            series.setdefault(point["system"], []).append((point["sessions"], point[value]))
    return series


# --- the table of docs/sizing.md


def costs(found: Report) -> str:
    """A row for each server and mode that sizes are computed with, and one of the node itself."""
    head = (
        "| server | | MiB of a process | MiB on each node | CPU s of a start | s of a start | CPU ms of a call "
        "| CPU s of an idle session in an hour |"
    )
    rows = [row for row in found["rows"] if row["mode"] in ("exec", "fork", "shared")]
    lines = [head, "|---|---|--:|--:|--:|--:|--:|--:|", *map(_costs, rows)]
    nodes = [row["memory"]["node_mib"] for row in found["rows"] if row["mode"] not in GATEWAYS]
    call = max(point["gateway_cpu_ms_per_call"] for point in found["curves"] if point["system"] == NODE)
    return "\n".join([*lines, f"| the node | | | {max(nodes):.0f} | | | {call:g} | |"]) + "\n"


def session_kib(found: Report) -> int:
    """Of a session in the node."""
    shared: list[float] = [row["memory"]["gateway_kib_per_session"] for row in found["rows"] if row["mode"] == "shared"]
    return round(max(shared))


def _costs(row: Report) -> str:
    """Memory is the most that was reached in any phase. Of a shared process nothing is started for a session."""
    idle = row["idle"]["gateway_cpu_s_per_hour"] + row["idle"]["backend_cpu_s_per_hour"]
    call = row["chatting"]["backend_cpu_ms_per_call"]
    if row["mode"] == "shared":
        most = max(row[phase]["mib"] for phase in PHASES[1:]) - row["memory"]["node_mib"]
        process = f"| {most:.0f} | |"
    else:
        each = max(session_mib(row, phase) for phase in PHASES)
        opening_s = row["opening"]["p50_ms"] / 1000
        process = f"{each:.1f} | {row['memory']['fixed_mib']:.0f} | {row['start_cpu_s']} | {opening_s:.2f}"
    return f"| `{row['server']}` | {MODES[row['mode']]} | {process} | {call:.1f} | {idle:.2f} |"


# --- what is kept


def draw(found: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in charts(found).items():
        (folder / name).write_text(svg)


def keep(found: Report, root: Path) -> None:
    """Pictures and tables of the repository."""
    draw(found, root / PICTURES)
    for path, shown in ((PAGE, table(found)), (SIZING, costs(found))):
        page = (root / path).read_text()
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        (root / path).write_text(f"{before}{BEGIN}\n\n{shown}\n{END}{after}")
