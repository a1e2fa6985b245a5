"""The official MCP conformance suite against a real gateway: both client revisions in front of servers of each era.

Expected are the exact scores: the scenarios and checks that cannot pass are listed, each with its reason.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from tests.backend_defaults import announced
from tests.integration.gateway import Gateway, running_gateway
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.remote import LOOPBACK, behind
from tests.integration.toolboxes import among_toolboxes

HERE = Path(__file__).resolve().parent
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
# The slowest leg takes 80 s on two busy cores; where each message waits for another process, and that takes two seconds
# for its handshake, some minutes.
SUITE_WITHIN_S = 600 if announced().first else 180
GATEWAY_WITHIN_S = 120  # its start, and its end
OLD, NEW = "2025-11-25", "2026-07-28"
SCENARIOS = {OLD: 30, NEW: 37}
ERAS = ("dual", "legacy", "sessionless")
EVERY = [(era, revision) for era in ERAS for revision in SCENARIOS]
# Where a server is initialised. One that speaks 2026-07-28 with us is not, and has to answer `server/discover`.
HANDSHAKES = [("dual", OLD), ("legacy", OLD), ("legacy", NEW)]
# Without --long there are two legs: a new client in front of an old server, and an old client in front of a new server,
# through two nodes.
OFTEN = {("legacy", NEW)}
IN_TURN_OFTEN = {("sessionless", OLD)}
QUIRKS = {"stdout-noise": EVERY, "silent-discover": HANDSHAKES, "slow-init": HANDSHAKES, "ping-client": HANDSHAKES}

# Scenario -> its checks that fail. This one insists on the key `user_name` for a question; a server of the handshake
# era asks without a key, so no bridge can know it.
UNREACHABLE = {("legacy", NEW): {"input-required-result-basic-elicitation": {"sep-2322-elicitation-incomplete"}}}
# In this one the suite gives calls up after half a second. By then a slow server, or one whose session was parked, may
# not even have been told what its client can do. Where that fails, the scenario is run again with more patience.
HURRIED = "server-stateless"
PATIENCE = {"SCENARIO": HURRIED, "TIMEOUT_MS": "90000", "NODE_OPTIONS": f"--require={HERE / 'patient.cjs'}"}


class Leg(NamedTuple):
    """One run of the suite."""

    era: str
    revision: str
    warm: int = 0
    quirks: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.quirks, self.era, self.revision, "warm" if self.warm else "")))

    @property
    def cannot_pass(self) -> dict[str, set[str]]:
        """The checks that fail here, by scenario."""
        return UNREACHABLE.get((self.era, self.revision), {})


def _node() -> Path | None:
    return next(iter(sorted(HERE.glob("node_modules/node-linux-*/bin/node"))), None)


pytestmark = [
    pytest.mark.node,
    pytest.mark.timeout(SUITE_WITHIN_S + GATEWAY_WITHIN_S),
    pytest.mark.skipif(
        not SUITE.exists() or _node() is None, reason="the suite is not installed (scripts/test does it)"
    ),
]


def run_suite(
    gateway: Gateway,
    leg: Leg,
    directory: Path,
    also: Gateway | None = None,
    *,
    through_toolset: bool = False,
    front: Gateway | None = None,
) -> tuple[dict[str, Any], str]:
    """The suite's report of this leg, and what it printed. With `also`, every other request goes to that node; with
    `front`, all go to that gateway, which has the backend by its URL."""
    backend = [sys.executable, "-I", "-S", str(HERE / "stdio_backend.py"), "--era", leg.era, "--quirks", leg.quirks]
    endpoint = gateway.endpoint(backend, warm=leg.warm)
    if through_toolset:
        endpoint = among_toolboxes(endpoint)
    if front is not None:
        endpoint = behind(front, endpoint)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CONFORMANCE_SUITE": str(SUITE),
        "CONFORMANCE_NODE": str(_node()),
        "AUTH_HEADER": f"Authorization: Bearer {endpoint.key}",
    }
    if also is not None:
        environment["ALSO_URL"] = endpoint.mcp.replace(gateway.url, also.url)
    result, printed = _report(leg, endpoint.mcp, directory, environment)
    if HURRIED in _failed(result):
        again, more = _report(leg, endpoint.mcp, directory, {**environment, **PATIENCE})
        result["scenarios"][HURRIED], printed = again["scenarios"][HURRIED], printed + more
    return result, printed


def _report(leg: Leg, url: str, directory: Path, environment: dict[str, str]) -> tuple[dict[str, Any], str]:
    report = directory / "report.json"
    report.unlink(missing_ok=True)
    command = [str(HERE / "run_suite.sh"), url, str(directory / "work"), leg.revision]
    printed = _run_to_its_end(command, {**environment, "JSON_OUT": str(report)})
    assert report.exists(), printed
    return json.loads(report.read_text())[leg.revision], printed


def _run_to_its_end(command: list[str], environment: dict[str, str]) -> str:
    """What it printed; after SUITE_WITHIN_S it is stopped, together with all that it started."""
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        return started.communicate(timeout=SUITE_WITHIN_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        raise AssertionError(f"not done after {SUITE_WITHIN_S} s\n{started.communicate()[0]}") from None


def check(leg: Leg, directory: Path) -> None:
    with running_gateway(directory / "data") as gateway:
        result, printed = run_suite(gateway, leg, directory)
    require_score(leg, result, printed)


def require_score(
    leg: Leg, result: dict[str, Any], printed: str, cannot_pass: Mapping[str, set[str]] | None = None
) -> None:
    scored = {name: each for name, each in result["scenarios"].items() if each["scored"]}
    assert len(scored) == result["scored_total"] == SCENARIOS[leg.revision], printed
    assert _failed(result) == (leg.cannot_pass if cannot_pass is None else cannot_pass), printed


def _failed(result: dict[str, Any]) -> dict[str, set[str]]:
    """The checks that failed, by scored scenario."""
    scenarios = result["scenarios"].items()
    return {name: set(each["failed"]) for name, each in scenarios if each["scored"] and each["fail"]}


@pytest.mark.parametrize(
    "leg", [pytest.param(Leg(*each), marks=() if each in OFTEN else pytest.mark.long) for each in EVERY], ids=str
)
def test_every_reachable_scored_scenario_passes(leg: Leg, tmp_path: Path) -> None:
    check(leg, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("leg", [Leg(*each) for each in EVERY], ids=str)
def test_the_same_passes_through_a_toolset(leg: Leg, tmp_path: Path) -> None:
    """The server is one of three members."""
    with running_gateway(tmp_path / "data") as gateway:
        result, printed = run_suite(gateway, leg, tmp_path, through_toolset=True)
    require_score(leg, result, printed)


@pytest.mark.long
@pytest.mark.parametrize("leg", [Leg(*each) for each in EVERY], ids=str)
def test_the_same_passes_through_two_gateways(leg: Leg, tmp_path: Path) -> None:
    """The server is reached by URL: behind another gateway."""
    with running_gateway(tmp_path / "data") as gateway, running_gateway(tmp_path / "front", **LOOPBACK) as front:
        result, printed = run_suite(gateway, leg, tmp_path, front=front)
    require_score(leg, result, printed)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory, postgres_database: str) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), postgres_database, 2) as nodes:
        anyio.run(nodes.all_know_each_other)
        yield nodes


@pytest.mark.parametrize(
    "leg",
    [pytest.param(Leg(*each), marks=() if each in IN_TURN_OFTEN else pytest.mark.long) for each in EVERY],
    ids=str,
)
def test_the_same_passes_when_two_nodes_are_asked_in_turn(leg: Leg, tmp_path: Path, two_nodes: Nodes) -> None:
    """Design §6: no affinity is needed."""
    result, printed = run_suite(two_nodes.all[0], leg, tmp_path, also=two_nodes.all[1])
    require_score(leg, result, printed)
    forwarded = sum(node.metrics().get('trunkline_forwards_total{result="ok"}', 0) for node in two_nodes.all)
    assert forwarded > 0


@pytest.mark.long
@pytest.mark.parametrize("leg", [Leg(*each, warm=2) for each in EVERY], ids=str)
def test_the_same_passes_with_warm_processes(leg: Leg, tmp_path: Path) -> None:
    check(leg, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "leg",
    [Leg(*each, warm=warm, quirks=quirk) for quirk, legs in QUIRKS.items() for each in legs for warm in (0, 2)],
    ids=str,
)
def test_the_same_passes_in_front_of_servers_with_manners_of_their_own(leg: Leg, tmp_path: Path) -> None:
    check(leg, tmp_path)
