"""scripts/check fails when a call has become a tenth dearer: bench/call_cost.py counts what a node executes for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.gateway import ROOT

SCRIPT, KEPT = ROOT / "bench/call_cost.py", ROOT / "bench/call_cost.json"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.timeout(1200)  # a quarter of a minute of CPU, of which others may leave little
@pytest.mark.skipif(VERSION not in json.loads(KEPT.read_text()), reason=f"nothing is kept for Python {VERSION}")
def test_a_call_that_executes_a_tenth_more_than_before_is_named(tmp_path: Path) -> None:
    kept = json.loads(KEPT.read_text())
    for counts in kept[VERSION].values():
        counts["c_calls"] = int(counts["c_calls"] / 1.2)
    before = tmp_path / "before.json"
    before.write_text(json.dumps(kept))
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check", "--kept", before], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    for kind, counts in kept[VERSION].items():
        assert f"{kind}: " in done.stdout
        assert f"c_calls instead of {counts['c_calls']}" in done.stdout
    assert "instructions instead of" not in done.stdout
