"""A server that fails at a limit of its process: its check, its failures and its client name the limit."""

import sys
from typing import Any

import httpx2
import pytest

from tests.integration.gateway import Endpoint, Gateway
from tests.integration.test_limits import INITIALIZE
from tests.integration.wire import Wire, error_of

THREADS = "import threading; [threading.Thread(target=threading.Event().wait, daemon=True).start() for _ in range(100)]"
PATIENT = f"import sys\ntry:\n    {THREADS}\nexcept RuntimeError: pass\nsys.stdin.read()"
FILES = "kept = [open('/dev/null') for _ in range(2000)]"
LARGE = "with open('large', 'wb') as file: [file.write(bytes(1 << 20)) for _ in range(20)]"


def backend(gateway: Gateway, code: str, **fields: Any) -> tuple[Endpoint, dict[str, Any]]:
    """A backend that runs this, and what its check says."""
    endpoint = gateway.endpoint([sys.executable, "-I", "-S", "-c", code], **fields)
    check: dict[str, Any] = gateway.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
    return endpoint, check["failure"]


def needs_pids(gateway: Gateway) -> None:
    if not gateway.metrics()['trunkline_sandbox_enforced{guarantee="pids"}']:
        pytest.skip("the number of processes is not limited on this machine")


@pytest.mark.parametrize(
    ("code", "limits", "limit", "named"),
    [
        (THREADS, {"pids": 64}, "pids", "64 processes and threads (limits.pids)"),
        (FILES, {"files": 1024}, "files", "1024 open files (limits.files)"),
        (LARGE, {"disk_mb": 4}, "disk", "4 MiB of files (limits.disk_mb)"),
    ],
)
async def test_the_limit_at_which_a_server_dies_is_named_everywhere(
    gateway: Gateway, code: str, limits: dict[str, int], limit: str, named: str
) -> None:
    if limit == "pids":
        needs_pids(gateway)
    endpoint, failure = backend(gateway, code, limits=limits)
    assert named in failure["detail"], failure
    member = named.partition("limits.")[2][:-1]
    assert f"`limits.{member}`" in failure["hint"]
    double = 2 * int(named.partition(" ")[0])
    assert f"backends set {endpoint.name} --tenant {endpoint.tenant} limits.{member}={double}`" in failure["hint"]
    async with httpx2.AsyncClient(timeout=30) as http:
        error = error_of(await Wire(http, endpoint).post(INITIALIZE))
    assert named in str(error)
    assert error.data["limit"] == limit
    assert error.data["hint"] == failure["hint"]
    (kept,) = gateway.api("GET", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}")["failures"]
    assert named in kept["detail"]


def test_too_few_processes_for_a_sandbox_are_no_fault_of_the_sandbox(gateway: Gateway) -> None:
    needs_pids(gateway)
    _, failure = backend(gateway, "", limits={"pids": 1})
    if "exit status" in failure["detail"]:
        pytest.skip("a sandbox takes no process here")
    assert failure["detail"].startswith("its 1 processes and threads (limits.pids) are too few")
    assert "limits.pids" in failure["hint"]


def test_a_check_of_a_server_that_lives_on_at_a_limit_and_says_nothing_names_it(gateway: Gateway) -> None:
    needs_pids(gateway)
    _, failure = backend(gateway, PATIENT, timeouts={"initialize_s": 3}, limits={"pids": 64})
    assert failure["reason"] == "timeout"
    assert "64 processes and threads (limits.pids)" in failure["detail"]
