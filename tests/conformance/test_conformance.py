"""The official MCP conformance suite, run against a real gateway with a stdio server behind it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.gateway import running_gateway

HERE = Path(__file__).resolve().parent
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
SUITE_WITHIN_S = 100


def _node() -> Path | None:
    return next(iter(sorted(HERE.glob("node_modules/node-linux-*/bin/node"))), None)


@pytest.mark.node
@pytest.mark.skipif(not SUITE.exists() or _node() is None, reason="the suite is not installed (scripts/test does it)")
def test_every_scored_scenario_of_2025_11_25_passes_in_front_of_a_handshake_era_server(tmp_path: Path) -> None:
    backend = [sys.executable, str(HERE / "stdio_backend.py"), "--era", "legacy"]
    with running_gateway(tmp_path / "data") as gateway:
        endpoint = gateway.endpoint(backend)
        report = tmp_path / "report.json"
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CONFORMANCE_SUITE": str(SUITE),
            "CONFORMANCE_NODE": str(_node()),
            "AUTH_HEADER": f"Authorization: Bearer {endpoint.key}",
            "JSON_OUT": str(report),
        }
        done = subprocess.run(
            [str(HERE / "run_suite.sh"), endpoint.mcp, str(tmp_path / "work"), "2025-11-25"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SUITE_WITHIN_S,
            check=False,
        )
        assert report.exists(), done.stdout + done.stderr
        result = json.loads(report.read_text())["2025-11-25"]
        assert (result["scored_pass"], result["scored_total"]) == (30, 30), done.stdout
        failed = [name for name, each in result["scenarios"].items() if each["fail"]]
        assert not failed, done.stdout
