"""`scripts/test --costs FILE`: what each test file and each fixture costs, as two tables in Markdown.

Seconds of CPU (of the worker and of programs that ended meanwhile) and of waiting: the rest of the time that passed.
A fixture's seconds are also in those of the file whose test asked for it first.
"""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Costs = dict[str, Counter[str]]
ROOT = Path(__file__).resolve().parent.parent


class Measured:
    """Of one process of pytest; a worker's are added to those of the process that started it."""

    def __init__(self) -> None:
        self.files: Costs = defaultdict(Counter)
        self.fixtures: Costs = defaultdict(Counter)

    @contextmanager
    def _adding_to(self, costs: Counter[str]) -> Iterator[None]:
        began_at, cpu_before_s = time.monotonic(), sum(os.times()[:4])
        try:
            yield
        finally:
            cpu_ms = round(1e3 * (sum(os.times()[:4]) - cpu_before_s))
            wall_ms = round(1e3 * (time.monotonic() - began_at))
            costs.update({"times": 1, "cpu_ms": cpu_ms, "wait_ms": max(0, wall_ms - cpu_ms)})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._adding_to(self.files[item.nodeid.partition("::")[0]]):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.func.__name__ == "get_direct_param_fixture_func":  # what `parametrize` gives
            return (yield)
        with self._adding_to(self.fixtures[f"{fixturedef.argname} ({fixturedef.baseid or 'plugin'})"]):
            return (yield)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = json.dumps({"files": self.files, "fixtures": self.fixtures})
        else:
            Path(session.config.getoption("--costs")).write_text(self.tables())

    def pytest_testnodedown(self, node: object) -> None:
        for table, rows in json.loads(getattr(node, "workeroutput", {}).get("costs", "{}")).items():
            for name, costs in rows.items():
                getattr(self, table)[name].update(costs)

    def tables(self) -> str:
        return "\n".join(_table(title, rows) for title, rows in (("file", self.files), ("fixture", self.fixtures)))


def _table(title: str, rows: Costs) -> str:
    lines = [f"| {title} | times | CPU s | waiting s |", "|---|---:|---:|---:|"]
    for name, costs in sorted(rows.items(), key=lambda row: -(row[1]["cpu_ms"] + row[1]["wait_ms"])):
        lines.append(f"| {name} | {costs['times']} | {costs['cpu_ms'] / 1e3:.1f} | {costs['wait_ms'] / 1e3:.1f} |")
    return "\n".join([*lines, ""])
