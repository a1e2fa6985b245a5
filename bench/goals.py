"""Every figure that the gateway has a goal for, measured in one run: a table with target and ratio.

    scripts/bench --goals [--keep] [--only PARTS] [--rounds 5]

Runs the other benchmarks one after the other, half an hour in all; nothing else should run on the machine meanwhile.
`--keep` writes bench/goals.json and the table of docs/performance.md, `--keep --draw` makes the table again from that
file, `--keep --only` replaces parts of it. What the parts print is kept in $BENCH_HOME/goals.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from run_peers import dig

from tests.clients import environments
from tests.clients.environments import Unavailable

HOME = Path(os.environ.get("BENCH_HOME", "/tmp/trunkline-bench"))
OUT = HOME / "goals"
KEPT, PAGE = ROOT / "bench/goals.json", ROOT / "docs/performance.md"
BEGIN, END = "<!-- scripts/bench --goals: begin -->", "<!-- end of goals -->"
TIMES = "\N{MULTIPLICATION SIGN} "
LIMIT_S = 2400.0  # of one part
SYSTEMS = (
    "bridge,bridge-warm-lazy,bridge-shared,trunkline,trunkline-unconfined,trunkline-warm,trunkline-shared,supergateway"
)
FORKED = (
    ("mcp-server-time", ("mcp-server-time==2026.10.19",)),
    ("mcp-server-git", ("mcp-server-git==2026.10.19",)),
    ("mcp-server-fetch", ("mcp-server-fetch==2026.10.24",)),
    ("mcp-server-sqlite", ("mcp-server-sqlite==2025.4.25", "mcp<2")),
    ("mcp-server-calculator", ("mcp-server-calculator==0.2.1", "mcp<2")),
)


Found = dict[str, dict[str, Any]]  # by part: its date, the load before it, its rows


@dataclass(frozen=True)
class Row:
    """One figure. It holds while it is at most `target`, or at least where `is_least`; None: it is only shown."""

    what: str
    value: float
    unit: str  # "x": a ratio
    target: float | None
    is_least: bool = False
    shown: str = ""  # what the ratio is of

    @property
    def holds(self) -> bool:
        if self.target is None:
            return True
        return self.value >= self.target if self.is_least else self.value <= self.target


@dataclass(frozen=True)
class Part:
    """One command; `read` makes the rows of what it has printed, and raises ValueError where that has other words."""

    name: str
    commands: Callable[[int], list[list[str]]]
    read: Callable[[str], list[Row]]


# --- side by side with the floors


def _side_by_side(rounds: int) -> list[list[str]]:
    python, script = str(HOME / "base/bin/python"), str(ROOT / "bench/run_peers.py")
    out = ["--out", str(OUT / "peers")]
    return [[python, script, "--systems", SYSTEMS, "--rounds", str(rounds), *out]]


def _rows_side_by_side(_: str) -> list[Row]:
    found = json.loads((OUT / "peers/results.json").read_text())

    def row(what: str, path: str, target: float, ours: str = "trunkline", floor: str = "bridge", **more: Any) -> Row:
        pairs = zip(found[ours], found[floor], strict=True)
        both = [(mine, base) for one, two in pairs if (mine := dig(one, path)) and (base := dig(two, path))]
        if not both:
            raise ValueError(f"{ours} and {floor} have no {path}")
        shown = " → ".join(_plain(statistics.median(each[place] for each in both)) for place in (1, 0))
        return Row(what, statistics.median(a / b for a, b in both), "x", target, shown=shown, **more)

    cpu, rate = "calls.{}.gateway_us_per_call", "calls.{}.calls_per_s"
    one, many = "setup.sequential.p50_ms", "setup.concurrent_50.p50_ms"
    rows = []
    for sessions in (16, 64):
        at = f"{sessions} sessions"
        rows += [
            row(f"CPU per call (µs), {at}, x the floor", cpu.format(sessions), 1.4),
            row(
                "the same, without a sandbox, which the floor has not either, x the floor",
                cpu.format(sessions),
                1.4,
                "trunkline-unconfined",
            ),
            row("the same, warm, x the floor", cpu.format(sessions), 1.4, "trunkline-warm"),
            row("the same, x supergateway", cpu.format(sessions), 0.2, floor="supergateway"),
            row(
                "the same, one process for all, x `bridge-shared`",
                cpu.format(sessions),
                1.3,
                "trunkline-shared",
                "bridge-shared",
            ),
        ]
    for number in (1, 16, 64):
        what = f"calls/s, {_sessions(number)}, x the floor"
        rows.append(row(what, rate.format(number), 0.75, is_least=True))
    rows += [
        row("p50 (ms), 1 session, x the floor", "calls.1.p50_ms", 1.3),
        row("p99 (ms), 64 sessions, x the floor", "calls.64.p99_ms", 1.5),
        row("open a session (ms), warm, x the warm floor", one, 3, "trunkline-warm", "bridge-warm-lazy"),
        row("the same, x the floor", one, 0.1, "trunkline-warm"),
        row("50 at once (ms), warm, x the warm floor", many, 3, "trunkline-warm", "bridge-warm-lazy"),
        row("the same, x the floor", many, 0.1, "trunkline-warm"),
        row("1 MB results (CPU ms per MB), x the floor", "bulk.gateway_ms_per_mb", 1.3),
    ]
    return rows


def _sessions(number: int | str) -> str:
    return "1 session" if int(number) == 1 else f"{number} sessions"


# --- what has a program of its own


def _ours(*words: str) -> list[str]:
    return [sys.executable, str(ROOT / "bench" / words[0]), *words[1:]]


def _all(pattern: str, text: str) -> Iterator[re.Match[str]]:
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if not found:
        raise ValueError(f"nothing looks like {pattern!r}")
    yield from found


def _only(pattern: str, text: str) -> re.Match[str]:
    (found,) = _all(pattern, text)
    return found


def _rows_of_memory(text: str) -> list[Row]:
    idle, streaming = (float(each[1]) for each in _all(r" ([\d.]+) KiB$", text))
    return [
        Row("memory of the node per idle session", idle, "KiB", 30),
        Row("with an open GET stream", streaming, "KiB", 70),
    ]


def _rows_of_kills(text: str) -> list[Row]:
    found = _only(r"^(\d+) kills: median ([\d.]+) ms, longest ([\d.]+) ms", text)
    what = f"from the kill of a server in a call to the error, longest of {found[1]}"
    return [Row(what, float(found[3]), "ms", 100, shown=f"median {found[2]} ms")]


def _rows_of_forwarding(text: str) -> list[Row]:
    counts = [each[1] for each in _all(r"^(\d+) sessions, medians", text)]
    costs = _all(r"cpu_us +local +([\d.]+) +forwarded +([\d.]+) +ratio +([\d.]+)", text)
    return [
        Row(
            f"forwarded by another node, CPU per call (µs) of both, {_sessions(count)}, x a local one",
            float(each[3]), "x", 3.0, shown=f"{each[1]} → {each[2]}",
        )
        for count, each in zip(counts, costs, strict=True)
    ]  # fmt: skip


def _rows_of_toolsets(text: str) -> list[Row]:
    rows = []
    for what, target in (("call", 1.15), ("tools/list", 1.2)):
        found = _only(rf"^{what} +alone ([\d.]+) ms, through the toolset ([\d.]+) ms of CPU: x ([\d.]+)", text)
        shown = f"{found[1]} → {found[2]}"
        rows.append(
            Row(f"`{what}` through a toolset of 20, CPU (ms), x direct", float(found[3]), "x", target, shown=shown)
        )
    return rows


def _forks(rounds: int) -> list[list[str]]:
    programs = []
    for program, packages in FORKED:
        made = environments.python(*packages)
        if isinstance(made, Unavailable):
            raise ValueError(made.reason)
        programs.append(str(made / "bin" / program))
    return [_ours("forking.py", "--rounds", str(rounds), *programs)]


def _rows_of_forks(text: str) -> list[Row]:
    rows = []
    for each in _all(r"^([\w-]+): a template of .*\n((?:  .*\n)+)", text):
        costs = {line[1]: line for line in _all(r"^  (\w+) +([\d.]+) +([\d.]+)  x ([\d.]+)", each[2])}
        for name, what, target in (
            ("first_answer_ms", "first answer (ms)", 0.125),
            ("cpu_ms", "CPU (ms)", 0.1),
            ("private_mib", "private memory (MiB)", 0.4),
        ):
            cost = costs[name]
            shown = f"{cost[2]} → {cost[3]}"
            rows.append(Row(f"`{each[1]}` forked, {what}, x executed", float(cost[4]), "x", target, shown=shown))
    return rows


def _rows_of_parking(text: str) -> list[Row]:
    found = _only(r"^(\d+) sessions opened and parked in \d+ s, ([\d.]+) KiB each; (\d+) processes", text)
    rows = [Row(f"memory of each of {int(found[1]):,} parked sessions", float(found[2]), "KiB", 30)]
    for name in ("cold", "warm"):
        wait = _only(rf"^a call that wakes, {name} +p50 +([\d.]+) ms +p99 +([\d.]+) ms", text)
        shown = f"p50 {wait[1]} ms"
        rows.append(Row(f"a call that wakes one, {name}, p99", float(wait[2]), "ms", None, shown=shown))
    return rows


def _rows_of_freezing(text: str) -> list[Row]:
    count = _only(r"^(\d+) sessions opened and frozen", text)[1]
    wait = _only(r"^the next call of each +p50 +([\d.]+) ms +p99 +([\d.]+) ms", text)
    lost = _only(r"^(\d+) lost", text)[1]
    return [
        Row(
            f"the next call of each of {int(count):,} frozen sessions, p99",
            float(wait[2]),
            "ms",
            None,
            shown=f"p50 {wait[1]} ms",
        ),
        Row("of these lost", float(lost), "", 0),
    ]


def _rows_of_traces(text: str) -> list[Row]:
    found = {
        each[1]: each
        for each in _all(r"^  (.+?) +median +[\d.]+ +lower quarter +([\d.]+) us/call +x off ([\d.]+)", text)
    }
    shown = f"{found['off'][2]} → {found['1 %'][2]}"
    return [Row("CPU per call (µs) with 1 % of calls traced, x without", float(found["1 %"][3]), "x", 1.1, shown=shown)]


def _rows_of_console(text: str) -> list[Row]:
    pages = [float(each[1]) for each in _all(r"times, median \d+ ms, p95 (\d+) ms", text)]
    cost = _only(r"^a call: ([\d.]+) ms of CPU, with (\d+) consoles ([\d.]+): x ([\d.]+)", text)
    return [
        Row("pages and parts of the console with 5,000 sessions, the slowest p95", max(pages), "ms", 200),
        Row(
            f"CPU per call (ms) with {cost[2]} consoles, x without",
            float(cost[4]),
            "x",
            1.05,
            shown=f"{cost[1]} → {cost[3]}",
        ),
    ]


PARTS = (
    Part("calls", _side_by_side, _rows_side_by_side),
    Part("memory", lambda _: [_ours("streams.py")], _rows_of_memory),
    Part("kills", lambda _: [_ours("killed.py")], _rows_of_kills),
    Part(
        "forwarded",
        lambda rounds: [_ours("forwarded.py", "--sessions", n, "--rounds", str(rounds)) for n in ("1", "16", "64")],
        _rows_of_forwarding,
    ),
    Part("toolset", lambda rounds: [_ours("toolset.py", "--rounds", str(rounds))], _rows_of_toolsets),
    Part("forks", _forks, _rows_of_forks),
    Part("parked", lambda _: [_ours("parked.py")], _rows_of_parking),
    Part("frozen", lambda _: [_ours("parked.py", "--frozen", "1000")], _rows_of_freezing),
    Part("traces", lambda _: [_ours("tracing.py", "--only", "off,1 %")], _rows_of_traces),
    Part("console", lambda _: [_ours("console.py")], _rows_of_console),
)


# --- one run


def run(parts: list[Part], rounds: int) -> Found:
    OUT.mkdir(parents=True, exist_ok=True)
    found: Found = {}
    for number, part in enumerate(parts, 1):
        began, load = time.monotonic(), os.getloadavg()[0]
        print(f"== {part.name} ({number} of {len(parts)})", end="", flush=True, file=sys.stderr)
        about = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "load_before": round(load, 1)}
        try:
            rows, why = part.read(_printed(part, rounds)), ""
        except (ValueError, OSError, subprocess.SubprocessError) as error:
            rows, why = [], str(error)
        found[part.name] = {**about, "missing": why, "rows": [asdict(each) for each in rows]}
        print(f": {why or 'done'}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def _printed(part: Part, rounds: int) -> str:
    """What the commands of a part have printed. Raises SubprocessError if one fails, ValueError if it cannot be run."""
    said = ""
    with (OUT / f"{part.name}.log").open("w") as log:
        for command in part.commands(rounds):
            done = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, timeout=LIMIT_S, check=True
            )
            said += done.stdout
            log.write(done.stdout)
    return said


def table(found: Found) -> str:
    lines = ["| | | | target | |", "|---|---|--:|--:|---|"]
    for each in (Row(**row) for part in found.values() for row in part["rows"]):
        bound = "" if each.target is None else _shown(each.target, each.unit)
        bound = f"≥ {bound}" if each.is_least else bound
        what = each.what.replace(", x ", f", {TIMES}") if each.unit == "x" else each.what
        verdict = "" if each.holds else "**missed**"
        lines.append(f"| {what} | {each.shown} | {_shown(each.value, each.unit)} | {bound} | {verdict} |")
    missing = {name: part["missing"] for name, part in found.items() if part["missing"]}
    lines += [f"| {name} | not measured: {why} | | | **missed** |" for name, why in missing.items()]
    return "\n".join(lines)


def _plain(number: float) -> str:
    """Four digits, and never as a power of ten."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def _shown(number: float, unit: str) -> str:
    return f"{TIMES}{number:.3g}" if unit == "x" else f"{_plain(number)} {unit}".rstrip()


def kept() -> Found:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def keep(found: Found) -> None:
    """Puts these parts in the place of those that were measured before."""
    together = kept() | found
    together = {part.name: together[part.name] for part in PARTS if part.name in together}
    KEPT.write_text(json.dumps(together, indent=1, ensure_ascii=False) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(together)}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench --goals", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--only", metavar="PARTS", help=f"of {','.join(names)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="as the figures of the repository")
    parser.add_argument("--draw", action="store_true", help="from the file that is kept, nothing is run")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else names
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    parts = [part for part in PARTS if part.name in wanted]
    found = kept() if options.draw else run(parts, options.rounds)
    if options.keep:
        keep(found)
    print(table(found))


if __name__ == "__main__":
    main()
