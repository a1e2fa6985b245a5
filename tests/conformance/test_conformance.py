"""The official MCP conformance suite against a real gateway: both client revisions in front of servers of each era.

Expected are the exact scores. Where a server speaks the handshake era only, one scenario cannot pass: it insists on the
key `user_name` for a question, which a bridge cannot know, as such a server's question has none.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.gateway import Gateway, running_gateway

HERE = Path(__file__).resolve().parent
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
SUITE_WITHIN_S = 120
OLD, NEW = "2025-11-25", "2026-07-28"
SCENARIOS = {OLD: 30, NEW: 37}
ERAS = ("dual", "legacy", "modern")
UNREACHABLE = {("legacy", NEW): {"input-required-result-basic-elicitation"}}
# It wants a progress message within half a second, of the first call with these capabilities; the handshake that
# they need takes such a server two seconds.
TOO_SLOW = {("slow-init", NEW): {"server-stateless"}}
QUIRKS = ("stdout-noise", "silent-discover", "slow-init", "ping-client")


class Leg(NamedTuple):
    """One run of the suite."""

    era: str
    revision: str
    warm: int = 0
    quirks: str = ""

    def __str__(self) -> str:
        return f"{self.era}-{self.revision}"


def _node() -> Path | None:
    return next(iter(sorted(HERE.glob("node_modules/node-linux-*/bin/node"))), None)


pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(
        not SUITE.exists() or _node() is None, reason="the suite is not installed (scripts/test does it)"
    ),
]


def run_suite(gateway: Gateway, leg: Leg, directory: Path) -> tuple[dict[str, Any], str]:
    """The suite's report of this leg, and what it printed."""
    backend = [sys.executable, str(HERE / "stdio_backend.py"), "--era", leg.era, "--quirks", leg.quirks]
    endpoint = gateway.endpoint(backend, warm=leg.warm)
    report = directory / "report.json"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CONFORMANCE_SUITE": str(SUITE),
        "CONFORMANCE_NODE": str(_node()),
        "AUTH_HEADER": f"Authorization: Bearer {endpoint.key}",
        "JSON_OUT": str(report),
    }
    done = subprocess.run(
        [str(HERE / "run_suite.sh"), endpoint.mcp, str(directory / "work"), leg.revision],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SUITE_WITHIN_S,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    return json.loads(report.read_text())[leg.revision], done.stdout


def check(leg: Leg, directory: Path) -> None:
    with running_gateway(directory / "data") as gateway:
        result, printed = run_suite(gateway, leg, directory)
    scored = {name: each for name, each in result["scenarios"].items() if each["scored"]}
    assert len(scored) == result["scored_total"] == SCENARIOS[leg.revision], printed
    failed = {name for name, each in scored.items() if each["fail"]}
    unreachable = UNREACHABLE.get((leg.era, leg.revision), set()) | TOO_SLOW.get((leg.quirks, leg.revision), set())
    assert failed == unreachable, printed


@pytest.mark.parametrize("leg", [Leg(era, revision) for era in ERAS for revision in SCENARIOS], ids=str)
def test_every_reachable_scored_scenario_passes(leg: Leg, tmp_path: Path) -> None:
    check(leg, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("leg", [Leg(era, revision, warm=2) for era in ERAS for revision in SCENARIOS], ids=str)
def test_the_same_passes_with_warm_processes(leg: Leg, tmp_path: Path) -> None:
    check(leg, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("quirks", QUIRKS)
@pytest.mark.parametrize("revision", SCENARIOS)
@pytest.mark.parametrize("warm", [0, 2], ids=["cold", "warm"])
def test_the_same_passes_in_front_of_servers_with_manners_of_their_own(
    quirks: str, revision: str, warm: int, tmp_path: Path
) -> None:
    check(Leg("legacy", revision, warm, quirks), tmp_path)
