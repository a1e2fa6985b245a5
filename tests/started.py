"""How many programs the tests start: what makes a suite slow. A whole default run compares with `started.json`.

    starts: 77 gateways, 64 Redis servers, 4 PostgreSQL servers, 2288 other programs

A tenth more of one kind than was kept fails the run and names the files that added them; `scripts/test --keep-started`
keeps the new figures. Counted is what a process of pytest starts, not what a gateway in a process of its own does. What
several tests share is counted with the file that asked for it first, so that a run with more workers starts more, and
with bubblewrap each sandbox is tried: only runs that have the same of both are compared.
"""

import json
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

KEPT = Path(__file__).with_suffix(".json")
KINDS = ("gateways", "Redis servers", "PostgreSQL servers", "other programs")
MORE, LEAST_MORE = 1.1, 3  # of which no run is sure to start exactly as many
OPTIONS = ("long", "clients", "fuzz", "e2e", "newcomer", "quick", "backends", "chaos", "keyword", "markexpr", "maxfail")

ByFile = dict[str, Counter[str]]
Figures = dict[str, Any]  # workers, bubblewrap, files: as in started.json
_running_file = ""  # of the test that runs in this process
_started: ByFile = defaultdict(Counter)


def note(words: Sequence[Any]) -> None:
    """That a test starts this command line."""
    _started[_running_file][_kind_of([str(word) for word in words])] += 1


def _kind_of(words: Sequence[str]) -> str:
    name = Path(words[0]).name
    if "serve" in words and any(Path(word).name in ("trunkline", "app") for word in words):
        return "gateways"
    return {"redis-server": "Redis servers", "postgres": "PostgreSQL servers"}.get(name, "other programs")


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "tests.program") and _running_file:  # the latter: programs.py
        words = arguments[-1] if event == "tests.program" else arguments[1]
        note([words] if isinstance(words, str | bytes | Path) else words)


class Started:
    """The plugin: in each process of pytest, and in the one that started the others."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.workers = config, 0
        self.wrong: list[str] = []
        sys.addaudithook(_hear)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        global _running_file
        _running_file = item.nodeid.partition("::")[0]
        return (yield)

    def pytest_testnodedown(self, node: object) -> None:
        output = getattr(node, "workeroutput", {})
        self.workers += 1
        for file, counts in json.loads(output.get("started", "{}")).items():
            _started[file].update(counts)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["started"] = json.dumps(_started)
        elif self.config.getoption("--keep-started"):
            KEPT.write_text(json.dumps(self.figures(), indent=1) + "\n")
        elif self.is_whole_run() and KEPT.exists():
            self.wrong = compared(json.loads(KEPT.read_text()), self.figures())
            if self.wrong and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def figures(self) -> Figures:
        files = {file: _started[file] for file in sorted(_started)}
        return {"workers": self.workers, "bubblewrap": shutil.which("bwrap") is not None, "files": files}

    def is_whole_run(self) -> bool:
        """Whether nothing was left out, and nothing added."""
        is_all = self.config.args_source is not pytest.Config.ArgsSource.ARGS
        return is_all and not any(self.config.getoption(name, None) for name in OPTIONS)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if total := totals(_started):
            terminalreporter.line("starts: " + ", ".join(f"{total[kind]} {kind}" for kind in KINDS))
        for line in self.wrong:
            terminalreporter.line(line, red=True)


def totals(files: ByFile) -> Counter[str]:
    total = Counter[str]()
    for counts in files.values():
        total.update(counts)
    return total


def compared(kept: Figures, now: Figures) -> list[str]:
    """What is a tenth more than before, and through which files."""
    if any(kept[name] != now[name] for name in ("workers", "bubblewrap")):
        return []
    files = {file: Counter(counts) for file, counts in kept["files"].items()}
    before, after = totals(files), totals(now["files"])
    wrong = []
    for kind in KINDS:
        if after[kind] > max(before[kind] * MORE, before[kind] + LEAST_MORE):
            more = {file: counts[kind] - files.get(file, Counter())[kind] for file, counts in now["files"].items()}
            most = sorted((file for file in more if more[file] > 0), key=lambda file: -more[file])
            named = ", ".join(f"{file} (+{more[file]})" for file in most)
            wrong.append(f"{after[kind]} {kind} instead of {before[kind]}: {named}; `--keep-started` keeps that")
    return wrong
