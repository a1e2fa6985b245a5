"""check_backend against real processes: what it finds out, how it fails, and that nothing is left."""

import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from app.backends.checks import backend_check
from app.backends.checks.backend_check import check_backend
from app.backends.checks.steps import Steps
from app.domain import BackendSpec, Limits, Timeouts
from app.errors import ShuttingDown
from tests.backends.rig import NO_LIMITS, total
from tests.processes.rig import eventually, spec_of

ROOT = Path(__file__).resolve().parents[3]


async def gone(running) -> None:
    await eventually(lambda: not running.supervisor.processes)


async def test_a_backend_that_works_is_described_and_stopped(running, make_pool):
    pool = await make_pool()
    result = await check_backend(pool, spec_of("offers"), NO_LIMITS, Steps())
    assert result.failure is None
    assert result.protocol_version == "2025-11-25"
    assert result.server == {"name": "offers", "title": "T" * 200, "version": "1"}
    assert result.capabilities == {"tools": {"listChanged": True}, "prompts": {}}
    assert result.counts == {"tools": 3, "resources": None, "prompts": 1}
    assert [step.name for step in result.steps] == ["start", "initialize", "tools/list", "prompts/list"]
    assert all(0 <= step.ms < 30_000 for step in result.steps)
    await gone(running)
    assert pool.snapshot() == {}


@pytest.mark.parametrize(
    ("wrong", "step", "reason", "detail"),
    [
        ("silent", "initialize", "timeout", "did not answer in time"),
        ("empty", "initialize", "invalid_response", "lacks protocolVersion"),
        ("error", "tools/list", "backend_error", "out of tools"),
        ("dies", "tools/list", "backend_exited", "exit status 3"),
        ("endless", "tools/list", "invalid_response", "more than 100 pages"),
    ],
)
async def test_a_failure_says_in_which_step_why_and_what_the_backend_wrote(
    running, make_pool, wrong, step, reason, detail
):
    # It is to have begun to run before it is given up, which on a busy machine takes seconds.
    spec = spec_of("offers", wrong, timeouts=Timeouts(initialize_s=5 if wrong == "silent" else 20))
    result = await check_backend(await make_pool(), spec, NO_LIMITS, Steps())
    assert result.failure is not None
    assert (result.failure.step, result.failure.reason) == (step, reason)
    assert detail in result.failure.detail
    assert result.steps[-1].name == step
    assert result.failure.stderr[0] == "trying hard"
    assert ("cannot go on" in result.failure.stderr) is (wrong == "dies")
    await gone(running)


# Nobody reads what comes after its answer, and it is too late to stop it.
CLOSES = """import json, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
asked = json.loads(sys.stdin.readline())
os.close(0)
server = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "closes", "version": "1"}}
print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": server}), flush=True)
time.sleep(0.5)
os._exit(3)
"""


async def test_who_closes_its_pipes_before_it_ends_is_described_by_its_end(running, make_pool):
    spec = BackendSpec("acme", "closes", sys.executable, ("-I", "-S", "-c", CLOSES))
    result = await check_backend(await make_pool(), spec, NO_LIMITS, Steps())
    assert result.failure is not None
    assert "exit status 3" in result.failure.detail


async def test_a_backend_without_a_handshake_is_described_as_well(running, make_pool):
    """It speaks 2026-07-28 only."""
    server = ROOT / "tests/conformance/stdio_backend.py"
    spec = BackendSpec("acme", "new", sys.executable, ("-I", "-S", str(server), "--era", "sessionless"))
    result = await check_backend(await make_pool(), spec, NO_LIMITS, Steps())
    assert (result.failure, result.protocol_version) == (None, "2026-07-28")
    assert result.server["name"]
    assert all(result.counts.values()), result.counts
    await gone(running)


async def test_a_backend_that_answers_in_batches_works(running, make_pool):
    result = await check_backend(await make_pool(), spec_of("offers", "batches"), NO_LIMITS, Steps())
    assert result.failure is None
    assert result.counts == {"tools": 3, "resources": None, "prompts": 1}
    await gone(running)


async def test_a_command_that_cannot_be_started_says_so(running, make_pool):
    result = await check_backend(await make_pool(), BackendSpec("acme", "none", "/no/such/command"), NO_LIMITS, Steps())
    assert result.failure is not None
    assert (result.failure.step, result.failure.reason) == ("start", "backend_exited")
    assert "No such file" in result.failure.detail
    assert result.failure.hint
    assert [step.name for step in result.steps] == ["start"]


async def test_one_that_dies_at_once_can_be_tried_again_and_again(running, make_pool):
    pool = await make_pool()
    for _ in range(7):
        result = await check_backend(pool, spec_of("crash_in_handshake"), NO_LIMITS, Steps())
        assert result.failure is not None
        assert result.failure.reason == "backend_exited"
        assert list(result.failure.stderr) == ["no idea what to do"]
    assert running.value("trunkline_breaker_open") == 0


async def test_a_long_boast_is_cut(running, make_pool):
    result = await check_backend(await make_pool(), spec_of("offers", "boastful"), NO_LIMITS, Steps())
    assert result.failure is None
    assert result.capabilities == {f"feature{number}": {} for number in range(50)}


async def test_the_backends_own_processes_are_left_alone_and_its_places_are_not_needed(running, make_pool):
    pool = await make_pool()
    spec = spec_of("offers", warm=1, max_processes=1, enabled=False)
    lease = await pool.lease(spec, NO_LIMITS)
    result = await check_backend(pool, spec, NO_LIMITS, Steps())
    assert result.failure is None
    assert not lease.connection.is_stopping()
    lease.release("done")


async def test_a_server_that_may_take_long_to_start_is_given_the_time(running, make_pool, monkeypatch):
    monkeypatch.setattr(backend_check, "DEADLINE_S", 0.0)
    result = await check_backend(await make_pool(), spec_of("offers", timeouts=Timeouts(90.0)), NO_LIMITS, Steps())
    assert result.failure is None


async def test_the_tenants_limit_holds(running, make_pool, monkeypatch):
    monkeypatch.setattr(backend_check, "DEADLINE_S", 0.3)
    pool = await make_pool()
    lease = await pool.lease(spec_of("echo"), NO_LIMITS)
    result = await check_backend(pool, spec_of("offers"), Limits(processes=1), Steps())
    assert result.failure is not None
    assert (result.failure.step, result.failure.reason) == ("start", "timeout")
    lease.release("done")


async def test_who_is_cancelled_leaves_nothing(running, make_pool):
    pool = await make_pool()
    spec = spec_of("offers", "silent")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(check_backend, pool, spec, NO_LIMITS, Steps())
        await eventually(lambda: total(pool, "leased"))
        tasks.cancel_scope.cancel()
    await gone(running)
    assert pool.snapshot() == {}


async def test_nothing_is_tried_while_shutting_down(running, make_pool):
    pool = await make_pool()
    await pool.aclose()
    with pytest.raises(ShuttingDown):
        await check_backend(pool, replace(spec_of("offers"), command=sys.executable), NO_LIMITS, Steps())


async def test_a_restart_replaces_what_is_warm_and_leaves_leases(running, make_pool):
    pool = await make_pool()
    spec = spec_of("echo", warm=2)
    pool.configure(spec)
    await eventually(lambda: total(pool, "warm") == 2)
    lease = await pool.lease(spec, NO_LIMITS)
    await eventually(lambda: total(pool, "warm") == 2)
    before = {process.id for process in running.supervisor.processes} - {lease.connection.id}
    pool.restart(spec.key)
    await eventually(
        lambda: total(pool, "warm") == 2 and not before & {process.id for process in running.supervisor.processes}
    )
    assert not lease.connection.is_stopping()
    pool.restart(("acme", "unknown"))
    lease.release("done")


async def test_a_command_that_would_download_fails_soon_and_says_what_helps(running, make_pool, monkeypatch, tmp_path):
    monkeypatch.setattr(backend_check, "DOWNLOAD_S", 0.5)
    program = tmp_path / "npx"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    spec = BackendSpec("acme", "notes", str(program), ("-y", "notes-mcp"))
    found = await check_backend(await make_pool(), spec, NO_LIMITS, Steps())
    assert found.failure is not None
    assert (found.failure.step, found.failure.reason) == ("initialize", "timeout")
    assert "`npm install --global notes-mcp`" in str(found.failure.hint)
