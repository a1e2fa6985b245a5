"""docs/scaling.md shows what bench/simulate_cluster.py prints, and the simulation behaves as the design says."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from app.cluster.redis._waiting_commands import DEADLINE_S
from app.sessions.routes import LEASE_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench/simulate_cluster.py"
DOCUMENT = (ROOT / "docs/scaling.md").read_text()
WITHIN_S = 240


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    """bench/simulate_cluster.py, which is a script."""
    spec = importlib.util.spec_from_file_location("simulate_cluster", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def printed(simulation: ModuleType, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What it prints with these options."""

    def run(*options: str) -> str:
        simulation.main(options)
        return capsys.readouterr().out

    return run


def rows(table: str) -> list[list[str]]:
    """The cells below the line of dashes."""
    _, _, body = re.split(r"^ *(-[- ]+)$", table, maxsplit=1, flags=re.MULTILINE)
    return [re.split(r" {2,}", line.strip()) for line in body.strip().splitlines()]


def test_the_document_shows_what_the_simulation_prints(printed):
    """After a change of a constant: put its output into the document again, and read what stands around it."""
    (shown,) = re.findall(r"^```text\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert printed().lstrip("\n") == shown


def test_what_the_document_says_of_one_node_was_measured():
    """Its figures are those of performance.md, so that there is one place where they are changed."""
    measured = (ROOT / "docs/performance.md").read_text()
    taken = [line for line in DOCUMENT.splitlines() if line.startswith("|") and "[performance.md]" in line]
    assert len(taken) >= 4
    for line in taken:
        for figure in re.findall(r"[0-9.]+ (?:µs|MiB|KiB)", line):
            assert figure in measured, line


def test_the_simulation_says_how_it_is_used(printed, capsys):
    with pytest.raises(SystemExit):
        printed("--help")
    assert "--per-node" in capsys.readouterr().out


def test_another_seed_gives_other_numbers_of_the_same_kind(printed):
    one, other = (rows(printed("--tables", "herd", "--seed", seed)) for seed in ("2", "3"))
    assert one != other
    assert [row[:2] for row in one] == [row[:2] for row in other]


def test_nobody_waits_much_longer_than_a_lease_where_nothing_must_be_started(printed):
    for row in rows(printed("--tables", "death", "--per-node", "500")):
        if row[4] == "shared, no start":
            assert LEASE_S - 1 <= float(row[8]) <= LEASE_S + 1
            assert row[9] == "0"


def test_costs_of_another_machine_can_be_given(printed, tmp_path):
    costs = json.loads((ROOT / "bench/cluster_costs.json").read_text())
    slow = {
        name: {key: 10 * cost for key, cost in each.items()} if isinstance(each, dict) else each
        for name, each in costs.items()
    }
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    table = rows(printed("--tables", "flush", "--costs", str(tmp_path / "slow.json")))
    assert float(table[-1][4].split()[0].replace(",", "")) > 1000 * DEADLINE_S
    assert table[-1][6] == "yes"


@pytest.mark.real
def test_the_costs_can_be_measured_again():
    command = [sys.executable, str(ROOT / "bench/measure_routes.py"), "--routes", "500", "--no-starts"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=True)
    found = json.loads(done.stdout)
    known = json.loads((ROOT / "bench/cluster_costs.json").read_text())
    assert set(found) == {name for name in known if not name.startswith("start_of")}
    assert found["redis_bytes_of_a_route"] == pytest.approx(known["redis_bytes_of_a_route"], rel=0.2)
    assert found["nodes_300"]["redis_us"] > found["nodes_2"]["redis_us"] > 0
