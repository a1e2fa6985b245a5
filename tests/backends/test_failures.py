"""What is remembered of a backend's failures, and how much of it."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import cast

from app.backends.failures import MAX_BYTES, MAX_KEPT, MAX_NAMED, MAX_OF_CALLS, STDERR_BYTES, Affected, FailureLog
from app.domain import BackendSpec, Sandbox
from app.processes._stderr import StderrRing
from app.processes.denials import KEPT, Denials, Kind
from app.processes.endings import Exit
from app.processes.process import BackendProcess

SPEC = BackendSpec("acme", "time", "/bin/time")
START = datetime(2026, 1, 1, tzinfo=UTC)
WHO = Affected("s", "acme", "key", "AAAA")


@dataclass
class Died:
    """As much of a BackendProcess as is looked at once it has ended."""

    spec: BackendSpec = SPEC
    exit: Exit | None = field(default_factory=lambda: Exit("exited", "exit status 3"))
    id: str = "p1"
    pid: int = 77
    started_at: float = START.timestamp() - 2.5
    stderr: StderrRing = field(default_factory=StderrRing)
    denials: Denials = field(default_factory=lambda: Denials(bytes.decode))

    def said(self, text: bytes) -> "Died":
        self.stderr.feed(text)
        return self


def process(died: Died) -> BackendProcess:
    return cast(BackendProcess, died)


class Clock:
    """One second later with each look."""

    def __init__(self) -> None:
        self.at = START - timedelta(seconds=1)

    def __call__(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at


def log_of(users: int = 0) -> FailureLog:
    named = [Affected(f"s{number}", "acme", "key", "AAAA") for number in range(users)]
    return FailureLog("n1", users_of=lambda spec, process: named, now=Clock())


def ended(log: FailureLog, reason: str, description: str = "exit status 3", *, early: bool = False, **more: object):
    died = Died(exit=Exit(reason, description), **more)  # type: ignore[arg-type]
    log.ended(process(died.said(b"the last words\n")), before_handshake=early)


def hangs(log: FailureLog, tool: str) -> None:
    log.timed_out(
        SPEC, None, "did not answer within 1 s", method="tools/call", tool=tool, affected=Affected("s", "a", "k", "x")
    )


def test_an_end_is_kept_with_what_was_said_and_whom_it_concerned():
    log = log_of(users=2)
    ended(log, "signaled", "signal 9 (SIGKILL)")
    (failure,) = log.of(SPEC.key)
    assert (failure.kind, failure.detail, failure.before_handshake) == ("signaled", "signal 9 (SIGKILL)", False)
    assert (failure.node, failure.process, failure.pid, failure.lived_s) == ("n1", "p1", 77, 2.5)
    assert (failure.at, failure.first_at, failure.times, failure.version) == (START, START, 1, 1)
    assert failure.stderr == ("the last words",)
    assert [each.session for each in failure.affected] == ["s0", "s1"]


def test_what_was_stopped_has_not_failed():
    log = log_of()
    ended(log, "stopped")
    log.ended(process(Died(exit=None)), before_handshake=True)
    assert log.of(SPEC.key) == ()


def test_deaths_at_the_start_are_told_as_one_and_others_each_for_itself():
    log = log_of()
    for _ in range(37):
        ended(log, "exited", early=True)
    ended(log, "exited", "exit status 4", early=True)
    ended(log, "exited")
    ended(log, "exited")
    newest, served, other, loop = log.of(SPEC.key)
    assert (newest.times, served.times, other.times, loop.times) == (1, 1, 1, 37)
    assert loop.first_at == START
    assert loop.at == START + timedelta(seconds=36)


def test_ten_are_kept_of_a_backend_the_newest_first():
    log = log_of()
    for number in range(MAX_KEPT + 5):
        ended(log, "exited", f"exit status {number}")
    assert [each.detail for each in log.of(SPEC.key)] == [f"exit status {14 - number}" for number in range(MAX_KEPT)]


def test_tools_that_hang_push_out_no_last_words():
    log = log_of()
    ended(log, "exited")
    for tool in [f"t{number}" for number in range(20)] + ["t19"]:
        hangs(log, tool)
    kept = log.of(SPEC.key)
    assert [(each.tool, each.times) for each in kept] == [
        ("t19", 2), *((f"t{number}", 1) for number in range(18, 19 - MAX_OF_CALLS, -1)), (None, 1),
    ]  # fmt: skip
    assert kept[-1].stderr == ("the last words",)


def test_of_stderr_the_end_is_kept():
    log = log_of()
    died = Died().said(b"x" * 5000 + b"\n" + b"y" * STDERR_BYTES + b"end\n")
    log.ended(process(died), before_handshake=False)
    (failure,) = log.of(SPEC.key)
    assert "".join(failure.stderr).endswith("yend")
    assert sum(map(len, failure.stderr)) <= STDERR_BYTES


def test_many_sessions_are_counted_and_a_few_are_named():
    log = log_of(users=1000)
    ended(log, "exited")
    (failure,) = log.of(SPEC.key)
    assert (len(failure.affected), failure.affected_count) == (MAX_NAMED, 1000)


def test_a_node_keeps_so_many_bytes_and_the_backend_that_failed_first_loses_first():
    log = log_of(users=MAX_NAMED)
    names = [f"b{number}" for number in range(3000)]
    for name in names:
        ended(log, "exited", spec=BackendSpec("acme", name, "/bin/time"))
        assert log._bytes <= MAX_BYTES
    kept = [name for name in names if log.of(("acme", name))]
    assert 100 < len(kept) < 3000
    assert kept == names[-len(kept) :]
    for name in names:
        log.forget(("acme", name))
    assert (log._bytes, log.backends()) == (0, set())


def test_a_check_tells_its_own_failures():
    log = log_of()
    log.not_started(BackendSpec("acme", "time:check", "/bin/time"), "No such file")
    assert log.backends() == set()


def test_a_call_that_was_denied_something_is_kept_with_the_last_denials_and_counted_as_one():
    log, died = FailureLog("n1"), Died()
    for number in range(KEPT + 5):
        died.denials.note("file", f"/srv/{number}")
        log.denied(process(died), died.denials.take_last(), method="tools/call", tool="write", affected=WHO)
    (failure,) = log.of(SPEC.key)
    assert (failure.kind, failure.times, failure.tool) == ("denied", KEPT + 5, "write")
    assert failure.detail == f"file was denied: /srv/{KEPT + 4}"
    assert [each.what for each in failure.denials] == [f"/srv/{number}" for number in range(5, KEPT + 5)]
    assert "`sandbox`" in failure.hint
    assert failure.in_short().denials == ()


def test_what_was_denied_is_counted_by_folder_and_address_and_a_check_is_told_the_addresses():
    log, died = FailureLog("n1"), Died()
    met: tuple[tuple[Kind, str], ...] = (
        ("address", "db:5432"),
        ("file", "/a/1"),
        ("address", "cache:6379"),
        ("file", "/b/1"),
    )
    for kind, what in met:
        died.denials.note(kind, what)
        log.denied(process(died), died.denials.take_last(), method="tools/call", tool="read", affected=WHO)
    assert [each.detail for each in log.of(SPEC.key)][::-1] == [f"{kind} was denied: {what}" for kind, what in met]
    assert "network.allow" in log.of(SPEC.key)[1].hint
    assert set(log.denied_addresses(SPEC)) == {"db:5432", "cache:6379"}
    assert log.denied_addresses(replace(SPEC, version=SPEC.version + 1)) == []


def test_who_may_not_write_is_told_what_helps_there():
    log, died = FailureLog("n1"), Died()
    died.spec = replace(SPEC, installed="/data/packages/f00")
    died.denials.note("file", "/data/packages/f00/dist/memory.jsonl")
    log.denied(process(died), died.denials.take_last(), method="tools/call", tool="write", affected=WHO)
    assert "${home}" in log.of(SPEC.key)[0].hint
    died.spec = replace(SPEC, sandbox=Sandbox(write=("/srv/notes",)))
    died.denials.note("file", "/srv/notes/a.md")
    log.denied(process(died), died.denials.take_last(), method="tools/call", tool="write", affected=WHO)
    assert "chown" in log.of(SPEC.key)[0].hint


def test_a_limit_that_was_met_in_a_call_has_the_advice_for_it():
    log, died = FailureLog("n1"), Died()
    died.denials.note("pids", "its 64 processes and threads (limits.pids)", 3)
    died.denials.note("file", "/srv/a")
    log.denied(process(died), died.denials.take_last(), method="tools/call", tool=None, affected=WHO)
    (failure,) = log.of(SPEC.key)
    assert failure.detail.endswith("pids was denied: its 64 processes and threads (limits.pids), and 1 more")
    assert "limits.pids" in failure.hint
