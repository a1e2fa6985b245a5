"""`scripts/bench --capacity --quick` measures real servers behind real gateways, and says what it left out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients import environments
from tests.integration.gateway import ROOT

WITHIN_S = 1200  # 600 for what is begun, the last row, and installing


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.node
@pytest.mark.timeout(WITHIN_S + 2 * environments.INSTALL_S)
def test_a_quick_run_measures_sessions_in_each_way_and_draws_them(tmp_path: Path) -> None:
    out = tmp_path / "found/capacity.json"
    command = ["scripts/bench", "--capacity", "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    failed = {name: why for name, why in found["left_out"].items() if why != "no time was left"}
    assert not failed
    rows = {(row["server"], row["mode"]): row for row in found["rows"]}
    assert ("time", "exec") in rows, done.stderr[-4000:]
    for row in rows.values():
        assert row["failures"] == {}
        assert row["bursting"]["calls"] >= row["sessions"]
    alone = rows["time", "exec"]["memory"]["backend_mib_per_session"]
    assert 20 < alone < 200
    if fork := rows.get(("time", "fork")):
        assert fork["start"] == "fork"
        assert fork["memory"]["backend_mib_per_session"] < alone / 2
        assert fork["start_cpu_s"] < rows["time", "exec"]["start_cpu_s"] / 2
    if parked := rows.get(("time", "parked")):
        assert parked["memory"]["backends"] == 0
    if shared := rows.get(("time", "shared")):
        assert shared["memory"]["backends"] == 1
        assert shared["memory"]["backend_mib_per_session"] < 2
    assert {each.name for each in out.parent.glob("*.svg")} >= {"capacity-memory.svg", "capacity-opening.svg"}


def test_a_quick_run_is_not_kept() -> None:
    command = [sys.executable, "-m", "capacity", "--quick", "--keep"]
    there = {**os.environ, "PYTHONPATH": "bench"}
    done = subprocess.run(command, cwd=ROOT, env=there, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "a quick run is not kept" in done.stderr
