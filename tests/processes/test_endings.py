"""What is said of the end of a process: whether it was killed, and at which of its limits it was."""

import signal
from dataclasses import replace
from typing import Any

import pytest

from app.domain import BackendSpec, ProcessLimits, Sandbox
from app.jail.spawner.cgroups import Usage
from app.jail.spawner.client import End
from app.processes.endings import RAISING, Exit, Killed, Met, at_limit, exit_of, met, raising, reached
from app.processes.measuring import Use

SPEC = BackendSpec("acme", "echo", "server", limits=ProcessLimits(512, 64, 1.0, 1024, 256))
NO_LIMITS = replace(SPEC, limits=ProcessLimits(None, None, None, None, None))
ENOSPC = "OSError: [Errno 28] No space left on device"


def ended(end: End, *stderr: str, spec: BackendSpec = SPEC, killed: Killed | None = None, **options: Any) -> Exit:
    return exit_of(end, spec, stderr, killed, **{"was_stopped": False, "has_own_disk": True, **options})


@pytest.mark.parametrize(
    ("usage", "stderr", "limit", "named"),
    [
        (Usage(refused_forks=1), "", "pids", "its 64 processes and threads (limits.pids)"),
        (Usage(oom_kills=1), "", "memory", "its 512 MiB of memory (limits.memory_mb)"),
        (Usage(), "OSError: [Errno 24] Too many open files: 'x'", "files", "its 1024 open files (limits.files)"),
        (Usage(), "Error: EMFILE: too many open files, open 'x'", "files", "its 1024 open files (limits.files)"),
        (Usage(), "OSError: [Errno 27] File too large", "disk", "its 256 MiB of files (limits.disk_mb)"),
        (Usage(), ENOSPC, "disk", "its 256 MiB of files (limits.disk_mb)"),
    ],
)
def test_a_process_that_ends_by_itself_at_a_limit_names_it_with_its_value_and_who_can_raise_it(
    usage, stderr, limit, named
):
    found = ended(End("exited", 1, usage=usage), stderr)
    assert (found.reason, found.limit, found.description) == (
        "exited",
        limit,
        f"exit status 1, at the limit of {named}",
    )
    assert found.error().hint == raising(limit, SPEC)
    assert raising(limit, SPEC).startswith(RAISING[limit])
    assert ended(End("exited", 1, usage=usage), stderr, spec=NO_LIMITS).limit == ""
    assert ended(End("exited", 0, usage=usage), stderr).limit == ""
    assert ended(End("exited", 1, usage=usage), stderr, was_stopped=True).limit == ""


def test_a_signal_for_a_file_that_grew_too_large_is_the_limit_of_its_files():
    found = ended(End("signaled", signal.SIGXFSZ))
    assert (found.limit, found.description) == (
        "disk", "signal 25 (SIGXFSZ), at the limit of its 256 MiB of files (limits.disk_mb)",
    )  # fmt: skip


@pytest.mark.parametrize("stderr", ["nothing", "Too many open files in system", "profile too large"])
def test_words_that_mean_something_else_name_no_limit(stderr):
    assert ended(End("exited", 1), stderr) == Exit("exited", "exit status 1", (stderr,))


def test_a_full_disk_that_may_be_the_machine_s_is_not_taken_for_a_limit():
    kept, writes = replace(SPEC, state="keep"), replace(SPEC, sandbox=Sandbox(write=("/srv",)))
    assert [ended(End("exited", 1), ENOSPC, spec=spec).limit for spec in (kept, writes)] == ["", ""]
    assert ended(End("exited", 1), ENOSPC, has_own_disk=False).limit == ""


def test_who_was_killed_at_a_limit_is_told_apart_from_who_ended_after_one_of_its_processes_was():
    assert ended(End("signaled", 9, "memory")) == Exit(
        "killed", "killed: it needed more memory than its 512 MiB", (), "memory"
    )
    assert ended(End("exited", 137, "tenant_memory")).reason == "killed"
    mourning = ended(End("exited", 3, "tenant_memory"))
    assert (mourning.reason, mourning.limit) == ("exited", "tenant_memory")
    assert "limits.memory_mb of the tenant" in mourning.description
    killed = ended(End("signaled", 9), killed=Killed("wrote too much", "disk"))
    assert killed == Exit("killed", "killed: it wrote too much", (), "disk")
    assert ended(End("spawner_lost")).description == "the spawner is gone"


def test_the_limit_of_cpu_counts_for_who_is_late_only():
    slow = Use(throttled_us=5_000_000)
    assert reached(slow, SPEC, (), has_own_disk=True) == ""
    assert reached(slow, SPEC, (), has_own_disk=True, is_late=True) == "cpu"
    assert reached(Use(throttled_us=5_000), SPEC, (), has_own_disk=True, is_late=True) == ""
    assert at_limit("cpu", SPEC) == ", at the limit of its share of time, 1.0 cores (limits.cpu)"


def test_what_to_write_for_a_larger_limit_is_a_command_for_the_backend_that_is_meant():
    limits = ProcessLimits(memory_mb=64, cpu=0.5)
    spec = replace(SPEC, name="echo:check", limits=limits)  # as a check runs it
    write = "For twice as much: `trunkline backends set echo --tenant acme limits."
    assert raising("memory", spec).endswith(f"{write}memory_mb=128`.")
    assert raising("cpu", spec).endswith(f"{write}cpu=1`.")
    assert raising("tenant_memory", spec) == RAISING["tenant_memory"]
    assert raising("pids", NO_LIMITS) == RAISING["pids"]
    assert raising("", spec) == ""


def test_what_a_process_met_and_survived_is_what_the_kernel_has_counted_since():
    earlier, now = Usage(refused_forks=2, oom_kills=1), Usage(refused_forks=5, oom_kills=2)
    assert [each[:2] for each in met(earlier, now, SPEC)] == [("pids", 3), ("memory", 1)]
    assert met(now, now, SPEC) == ()
    assert met(earlier, now, NO_LIMITS) == ()
    assert met(Usage(), Usage(refused_forks=1), replace(SPEC, limits=ProcessLimits(pids=7))) == (
        Met("pids", 1, "could start no more than its 7 processes and threads (limits.pids)"),
    )
