"""The supervisor: from fork to reap, with real processes."""

import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import anyio
import psutil
import pytest

from app.domain import BackendSpec, ProcessLimits
from app.errors import BackendExited, ShuttingDown
from app.jail.sandbox._bubblewrap import find_bubblewrap
from app.jail.sandbox.composer import Confined, Place
from app.jail.sandbox.sandboxes import Unconfined
from app.jail.spawner import tree
from app.jail.spawner.client import Command
from app.jail.spawner.wire import INNER_STATUS_FD
from app.processes.endings import raising
from app.processes.measuring import Use
from app.processes.pipes import PipeLimits
from app.processes.process import BackendProcess, ProcessState
from app.processes.supervisor import Supervisor
from tests.integration.stopwatch import stopwatch_of
from tests.jail.sandbox.inside import needs_bubblewrap
from tests.processes.rig import Listener, Running, as_it_is, eventually, options_of, spec_of


async def spawn_failure(running, **fields) -> BackendExited:
    with pytest.raises(BackendExited) as caught:
        await running.start("echo", **fields)
    return caught.value


@pytest.mark.parametrize("fields", [{"env": {"A": "***"}}, {"args": ("--token", "***")}])
async def test_a_backend_whose_secrets_do_not_open_is_not_started(running, fields):
    error = await spawn_failure(running, **fields)
    assert (str(error), error.started) == ("its secrets do not open with the gateway's SECRET_KEY", False)
    assert error.hint == "Set them again: its env and args."
    assert running.value("trunkline_process_spawns_total", result="failed") == 1


async def test_a_command_that_does_not_exist_is_an_error_with_a_hint(running):
    error = await spawn_failure(running, command="no-such-command")
    assert str(error) == "No such file or directory: 'no-such-command'"
    assert error.started is False
    assert error.hint == "Is the command installed, and on the gateway's PATH?"
    assert running.supervisor.processes == []
    assert running.value("trunkline_process_spawns_total", result="failed") == 1


async def test_a_command_that_may_not_be_executed_is_an_error(running):
    assert str(await spawn_failure(running, command="/etc/passwd")) == "Permission denied: '/etc/passwd'"


class _OfAMissingPath(Unconfined):
    """Lets bubblewrap look for a path that is gone since it was found."""

    async def confine(self, spec: BackendSpec, place: Place) -> Confined:
        words = ["--ro-bind", "/gone/of/the/node", "/x", "--json-status-fd", str(INNER_STATUS_FD), "true"]
        command = Command([find_bubblewrap().path, *words], {}, confinement={"is_wrapped": True})
        return as_it_is(command)


@needs_bubblewrap
async def test_why_a_sandbox_could_not_be_made_is_for_administrators(metrics, tmp_path, caplog):
    async with Supervisor(metrics, options_of(tmp_path, confiner=_OfAMissingPath())) as supervisor:
        error = await spawn_failure(Running(supervisor, metrics))
    assert str(error) == "the sandbox of the backend could not be made"
    assert "trunkline backends check" in str(error.hint)
    (reason,) = error.stderr
    assert "/gone/of/the/node" in reason
    assert "/gone/of/the/node" in caplog.records[-1].getMessage()


async def test_no_descriptors_left_in_the_gateway_is_an_error(running):
    await running.start("echo")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, hard))
    try:
        error = await spawn_failure(running)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Too many open files" in str(error)
    process, listener = await running.start("echo")
    process.send(b"still here")
    assert await listener.line() == b"still here"


async def test_the_environment_is_built_from_nothing(running, tmp_path, monkeypatch):
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", "hunter2")
    process, listener = await running.start("report", env={"API_KEY": "k", "LANG": "de_DE.UTF-8"})
    report = json.loads(await listener.line())
    environment = report["environment"]
    environment.pop("LC_CTYPE", None)  # Python's own
    home = tmp_path / process.spec.tenant / "home"
    assert environment == {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home.with_name("tmp")), "LANG": "de_DE.UTF-8",
        "API_KEY": "k", tree.MARKER: process.id,
    }  # fmt: skip
    assert report["cwd"] == str(home)
    assert report["descriptors"] == [0, 1, 2]


@pytest.fixture
async def patient(metrics, tmp_path) -> AsyncIterator[Running]:
    """One that gives processes the time that they need to end by themselves."""
    async with Supervisor(metrics, options_of(tmp_path, eof_grace_s=30.0)) as supervisor:
        yield Running(supervisor, metrics)


async def test_a_server_that_reads_eof_ends_by_itself(patient):
    running = patient
    process, listener = await running.start("echo")
    process.send(b"last wish")
    with anyio.fail_after(20):
        await running.stop(process)
    assert listener.lines == [b"last wish"]  # what was sent is read and answered before EOF
    assert (await listener.exit()).reason == "stopped"
    assert process.exit.description == "exit status 0"
    assert running.value("trunkline_process_exits_total", reason="stopped") == 1


async def test_a_server_that_ignores_eof_gets_sigterm(metrics, tmp_path):
    async with Supervisor(metrics, options_of(tmp_path, term_grace_s=30.0)) as supervisor:
        running = Running(supervisor, metrics)
        process, listener = await running.start("obeys_term")
        await listener.line()
        await running.stop(process)
        assert process.exit.description == "exit status 0"
        assert listener.lines == [b"ready", b"goodbye"]


async def test_a_server_that_ignores_everything_is_killed(running):
    process, listener = await running.start("stubborn")
    await listener.line()
    async with stopwatch_of([psutil.Process()]) as watch:
        started = time.monotonic()
        await running.stop(process)
        assert time.monotonic() - started >= 0.6
        assert watch.seconds < 2
    assert process.exit.description == "signal 9 (SIGKILL)"
    assert process.exit.reason == "stopped"


async def test_stopping_twice_is_stopping_once(running):
    process, _ = await running.start("echo")
    running.supervisor.stop_soon(process)
    running.supervisor.stop_soon(process)
    await running.stop(process)
    running.supervisor.stop_soon(process)
    assert running.gone == [process]


async def test_a_caller_that_is_cancelled_does_not_stop_the_stopping(running):
    process, listener = await running.start("stubborn")
    await listener.line()
    with anyio.move_on_after(0.01) as scope:
        await running.stop(process)
    assert scope.cancelled_caught
    assert process.state is ProcessState.STOPPING
    await listener.exit()
    assert running.supervisor.processes == []


async def test_a_spawn_that_is_cancelled_leaves_nothing(running):
    for number in range(15):
        with anyio.move_on_after(number * 0.0003):
            process, _ = await running.start("echo")
            await running.stop(process)
    await eventually(lambda: not tree.children(running.supervisor._spawner._spawner.pid))
    assert [process for process in running.supervisor.processes if not process.is_stopping()] == []


async def test_the_whole_family_ends_with_its_backend(running):
    process, listener = await running.start("family")
    pids = json.loads(await listener.line())
    await running.stop(process)
    await eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids.values()))


async def test_closing_stops_all_at_once(metrics, tmp_path):
    options = options_of(tmp_path, eof_grace_s=1.0, term_grace_s=1.0)
    async with AsyncExitStack() as stack:
        async with Supervisor(metrics, options) as supervisor:
            pids, listeners = [], []
            for server in ("stubborn", "stubborn", "stubborn", "obeys_term", "echo"):
                process = await supervisor.spawn(spec_of(server), lambda _: None)
                listeners.append(Listener())
                process.attach(listeners[-1])
                pids.append(process.pid)
            watch = await stack.enter_async_context(stopwatch_of([psutil.Process()]))
        assert watch.seconds < 6  # in two; one after another: over 7 s
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert [listener.exits[0].reason for listener in listeners] == ["stopped"] * 5
    with pytest.raises(ShuttingDown):
        await supervisor.spawn(spec_of("echo"), lambda _: None)


async def test_closing_while_cancelled_leaves_nothing(metrics, tmp_path):
    pids: list[int | None] = []
    with anyio.CancelScope() as scope:
        async with Supervisor(metrics, options_of(tmp_path)) as supervisor:
            for _ in range(3):
                process = await supervisor.spawn(spec_of("stubborn"), lambda _: None)
                pids.append(process.pid)
            pids.append(supervisor._spawner._spawner.pid)
            scope.cancel()
            await anyio.sleep_forever()
    assert len(pids) == 4
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_an_unexpected_end_is_a_warning_with_the_last_lines(running, caplog):
    with caplog.at_level(logging.WARNING, "app.backends"):
        process, listener = await running.start("crash_in_handshake")
        process.send(b"{}")
        await listener.exit()
    (record,) = (record for record in caplog.records if "ended" in record.message)
    assert record.message == "Backend process ended: exit status 3"
    assert record.stderr == ["no idea what to do"]
    assert record.backend_process == process.id


async def test_an_expected_end_is_no_warning(running, caplog):
    with caplog.at_level(logging.WARNING, "app.backends"):
        process, _ = await running.start("echo")
        await running.stop(process)
    assert caplog.records == []


async def test_a_killed_spawner_ends_its_processes_and_is_replaced(running):
    process, listener = await running.start("echo")
    os.kill(running.supervisor._spawner._spawner.pid, signal.SIGKILL)
    assert (await listener.exit()).reason == "spawner_lost"
    await eventually(lambda: not os.path.exists(f"/proc/{process.pid}"))
    await eventually(lambda: running.value("trunkline_spawner_restarts_total") == 1)  # before anybody needs it
    again, listener = await running.start("echo")
    again.send(b"hello")
    assert await listener.line() == b"hello"


async def test_what_is_being_started_when_the_spawner_dies_is_started_by_the_next_one(running):
    """Else whoever opens a session is told that the backend has died, and its breaker counts that."""
    started = []

    async def start() -> None:
        started.append(await running.start("echo"))

    os.kill(running.supervisor._spawner._spawner.pid, signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(start)
        await anyio.wait_all_tasks_blocked()
        os.kill(running.supervisor._spawner._spawner.pid, signal.SIGKILL)
    for process, listener in started:
        process.send(b"hello")
        assert await listener.line() == b"hello"
    assert len({process.pid for process, _ in started}) == 5


async def test_metrics_count_processes_by_state(running):
    process, _ = await running.start("stubborn")
    other, _ = await running.start("echo")
    other.lease()
    assert running.value("trunkline_processes", state="warm") == 1
    assert running.value("trunkline_processes", state="leased") == 1
    running.supervisor.stop_soon(process)
    assert running.value("trunkline_processes", state="stopping") == 1
    assert running.value("trunkline_process_spawns_total", result="started") == 2
    assert running.value("trunkline_process_spawn_seconds_count") == 2


@pytest.mark.parametrize("variable", ["HOME", "TMPDIR"])
async def test_a_process_with_too_much_on_the_disk_is_killed(running, variable):
    code = (
        "import os, time\n"
        f"for number in range(3): open(os.environ[{variable!r}] + f'/{{number}}', 'wb').write(bytes(1 << 20))\n"
        "time.sleep(600)"
    )
    fields = {"command": sys.executable, "args": ("-I", "-S", "-c", code), "limits": ProcessLimits(disk_mb=2)}
    _, of_all = await running.start("echo", **fields)  # with the home of its tenant, as it has no sandbox
    _, listener = await running.start("echo", **fields, state="keep", isolation="shared")
    exit = await listener.exit()
    assert (exit.limit, exit.description) == ("disk", "killed: it wrote more than the 2 MiB of limits.disk_mb")
    assert exit.error().hint == raising("disk", spec_of("echo", limits=ProcessLimits(disk_mb=2)))
    assert of_all.exits == []
    await eventually(lambda: running.value("trunkline_limits_hit_total", limit="disk") == 1)


async def test_a_process_whose_files_take_long_to_look_at_gains_no_time_to_fill_the_disk(running, monkeypatch):
    monkeypatch.setattr("app.processes._disk.LOOKING_SHARE", 1e-9)  # after the first look, none for a day
    code = (
        "import os, time\n"
        "for number in range(200):\n"
        "    open(os.environ['HOME'] + f'/{number}', 'wb').write(bytes(1 << 20))\n"
        "    time.sleep(0.05)\n"
        "time.sleep(600)"
    )
    fields = {"command": sys.executable, "args": ("-I", "-S", "-c", code), "limits": ProcessLimits(disk_mb=20)}
    _, listener = await running.start("echo", **fields, state="keep", isolation="shared")
    assert (await listener.exit()).limit == "disk"


async def test_no_process_is_started_in_a_home_that_is_full(running, tmp_path, caplog):
    fields = {"state": "keep", "isolation": "shared", "limits": ProcessLimits(disk_mb=1)}
    process, _ = await running.start("echo", **fields)
    await running.stop(process)
    (home,) = (tmp_path / "acme" / "kept").glob("*/home")
    (home / "file").write_bytes(bytes(2 << 20))
    error = await spawn_failure(running, **fields)
    hint = raising("disk", spec_of("echo", limits=ProcessLimits(disk_mb=1)))
    assert (error.limit, error.started, error.hint) == ("disk", False, hint)
    assert "1 MiB of limits.disk_mb" in str(error)
    assert str(tmp_path) not in str(error)
    assert running.value("trunkline_limits_hit_total", limit="disk") == 1
    assert caplog.records[-1].home == f"acme/{home.parent.name}"


async def test_memory_is_measured_with_descendants(running):
    process, listener = await running.start("family")
    await listener.line()
    await running.supervisor.meter.measure(running.supervisor.processes)
    assert process.resident_bytes > 4 << 20
    assert running.value("trunkline_process_resident_bytes") == process.resident_bytes


async def test_processor_time_is_measured_with_descendants_and_more_often_while_somebody_looks(running, monkeypatch):
    monkeypatch.setattr("app.processes._meter.MEASURE_EVERY_S", 1e9)
    monkeypatch.setattr("app.processes._meter.LOOKING_SHARE", 1e-9)
    busy = "import os, time\nif os.fork():\n  time.sleep(60)\nwhile True: pass"
    await running.supervisor.meter.measure([])  # the first look is at once, whenever the supervisor gets to it
    process, _ = await running.start("echo", command=sys.executable, args=("-I", "-S", "-c", busy))
    quiet, _ = await running.start("echo")
    assert (process.cpu_s, process.cpu_percent) == (0.0, None)
    running.supervisor.watch()
    await eventually(lambda: process.cpu_s > 0.3, 30)
    assert process.cpu_percent > 1
    assert quiet.cpu_percent < process.cpu_percent
    assert quiet.cpu_s < process.cpu_s


def test_processor_time_never_falls_and_its_share_is_of_the_time_between_two_measurements():
    process = BackendProcess(spec_of("echo"), cast("Any", None), PipeLimits(), lambda process: None)
    began = time.monotonic()
    process.used(Use(4096, 1.0), began + 10)
    assert process.cpu_percent == pytest.approx(10, rel=0.01)
    process.used(Use(4096, 3.0), began + 14)
    assert process.cpu_percent == pytest.approx(50, rel=0.01)
    process.used(Use(0, 2.0), began + 18)
    assert (process.resident_bytes, process.cpu_s, process.cpu_percent) == (0, 3.0, 0.0)


async def test_two_hundred_processes_leak_no_descriptor(running):
    async def live() -> None:
        _, listener = await running.start("crash_in_handshake", command="true")
        await listener.exit()

    await live()
    await anyio.wait_all_tasks_blocked()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(live)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)
