"""How a process has ended, and at which of its limits: as far as its control group and its stderr tell. What helps."""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from app.domain import BackendSpec
from app.errors import BackendExited
from app.jail.spawner.client import End

_KILLED = (("signaled", signal.SIGKILL), ("exited", 128 + signal.SIGKILL))
_THROTTLED_US = 1_000_000  # of waiting for its cores, from which on it matters
# What the C library, Python and Node say. The kernel tells nobody but the program.
_no_descriptor = re.compile(r"\bToo many open files(?! in system)|\bEMFILE\b").search
_too_large, _no_space = (
    re.compile(words).search for words in (r"\bFile too large\b|\bEFBIG\b", r"\bNo space left on device\b|\bENOSPC\b")
)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `reason` is a closed set: exited, signaled, spawn_failed, spawner_lost, stopped, killed."""

    reason: str
    description: str  # for people: "exit status 3", "signal 9 (SIGKILL)", "No such file or directory: 'uvx'"
    stderr: Sequence[str] = ()
    # At which it was killed, or which it had reached when it ended by itself: its own, or `tenant_memory`.
    limit: str = ""
    advice: str = field(default="", compare=False)  # what is to be done about the limit

    def error(
        self, words: str = "the backend ended", *, started: bool = True, hint: str | None = None
    ) -> BackendExited:
        """For those who called it. What is to be done about a limit matters more than `hint`."""
        hint = self.advice or RAISING.get(self.limit) or of_end(self.description) or hint
        return BackendExited(
            f"{words}: {self.description}", started=started, stderr=self.stderr, hint=hint, limit=self.limit
        )


class Counted(Protocol):
    """What a control group counts (`Usage`, `Use`)."""

    @property
    def oom_kills(self) -> int: ...
    @property
    def refused_forks(self) -> int: ...
    @property
    def throttled_us(self) -> int: ...


class Killed(NamedTuple):
    """By the gateway: it `cause`, which was over this limit, if over any."""

    cause: str
    limit: str = ""


def exit_of(
    end: End, spec: BackendSpec, stderr: Sequence[str], killed: Killed | None, *, was_stopped: bool, has_own_disk: bool
) -> Exit:
    """`has_own_disk`: its home and temporary files are a file system of its own."""
    if was_stopped:
        return Exit("stopped", _words(end), stderr)
    if killed is not None:
        return Exit("killed", f"killed: it {killed.cause}", stderr, killed.limit, raising(killed.limit, spec))
    if end.limit and (end.reason, end.number) in _KILLED:
        needed = "all processes of its tenant together needed more memory than the tenant has"
        words = needed if end.limit == "tenant_memory" else f"it {needed_memory(spec)}"
        return Exit("killed", f"killed: {words}", stderr, end.limit, raising(end.limit, spec))
    if end.reason == "spawner_lost" or (end.reason, end.number) == ("exited", 0):
        return Exit(end.reason, _words(end), stderr)
    limit = end.limit or reached(end.usage, spec, stderr, has_own_disk=has_own_disk)
    if not limit and (end.reason, end.number) == ("signaled", signal.SIGXFSZ):
        limit = "disk"
    return Exit(end.reason, _words(end) + at_limit(limit, spec), stderr, limit, raising(limit, spec))


def reached(
    counted: Counted, spec: BackendSpec, stderr: Sequence[str], *, has_own_disk: bool, is_late: bool = False
) -> str:
    """Which limit a process that failed had reached; empty if none is known. `is_late`: it failed by its slowness."""
    limits, text = spec.limits, "\n".join(stderr)
    if counted.refused_forks and limits.pids is not None:
        return "pids"
    if counted.oom_kills and limits.memory_mb is not None:
        return "memory"
    if limits.files is not None and _no_descriptor(text):
        return "files"
    # Elsewhere it may be the disk of the machine that is full.
    is_own = has_own_disk and spec.state == "none" and not spec.sandbox.write
    if limits.disk_mb is not None and (_too_large(text) or (is_own and _no_space(text))):
        return "disk"
    return "cpu" if is_late and limits.cpu is not None and counted.throttled_us >= _THROTTLED_US else ""


def at_limit(limit: str, spec: BackendSpec) -> str:
    """The end of a sentence about a process that had reached this limit, if any."""
    limits = spec.limits
    words = {
        "memory": f"its {limits.memory_mb} MiB of memory (limits.memory_mb)",
        "tenant_memory": "the memory of all processes of its tenant (limits.memory_mb of the tenant)",
        "pids": f"its {limits.pids} processes and threads (limits.pids)",
        "files": f"its {limits.files} open files (limits.files)",
        "disk": f"its {limits.disk_mb} MiB of files (limits.disk_mb)",
        "cpu": f"its share of time, {limits.cpu} cores (limits.cpu)",
        "output": "what is read of its output: it writes faster, or sends more notifications, than its clients may get",
    }
    return f", at the limit of {words[limit]}" if limit else ""


class Met(NamedTuple):
    """A limit that a process met in a while, and went on: so many `times`, as the kernel counts it."""

    limit: str
    times: int
    words: str  # the end of "it ..."


def met(earlier: Counted, now: Counted, spec: BackendSpec) -> tuple[Met, ...]:
    """What the kernel has refused a process, or killed of it, at its own limits. Where no control group counts, nothing
    is known."""
    forks, kills = now.refused_forks - earlier.refused_forks, now.oom_kills - earlier.oom_kills
    found = list[Met]()
    if forks > 0 and spec.limits.pids is not None:
        words = f"could start no more than its {spec.limits.pids} processes and threads (limits.pids)"
        found.append(Met("pids", forks, words))
    if kills > 0 and spec.limits.memory_mb is not None:
        words = f"lost a process of its own, which {needed_memory(spec)} together (limits.memory_mb)"
        found.append(Met("memory", kills, words))
    return tuple(found)


def needed_memory(spec: BackendSpec) -> str:
    """The end of "it ..."."""
    return f"needed more memory than its {spec.limits.memory_mb} MiB"


def _words(end: End) -> str:
    if end.reason == "spawner_lost":
        return "the spawner is gone"
    if end.reason == "signaled":
        return f"signal {end.number} ({_signal_name(end.number)})"
    return f"exit status {end.number}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


# --- what helps

# By how the end is described.
_OF_ENDS = {
    "lines in a minute that are no JSON": (
        "They were on its stdout, which is for messages alone: have it write its log to stderr. Is it a server for "
        "stdio?"
    ),
    "a line without end": (
        "A message of it has far more bytes than MAX_LINE_BYTES, a setting of the gateway: have the tool answer in "
        "parts."
    ),
    "does not read its input": (
        "It is stuck, or does not read its stdin while it works: the end of its stderr may say at what."
    ),
    "closed its input or output": (
        "It has to keep its stdin and stdout open: a wrapper that starts the server in the background does not."
    ),
}
_distrusts = re.compile(
    r"certificate.verify.failed|self[- ]signed certificate|unable to (get|verify) \w+ .*certificate|"
    r"certificate has expired|UNABLE_TO_(GET|VERIFY)_|x509: ",
    re.IGNORECASE,
).search
TRUST = (
    "It does not trust the certificate of the server that it talks to. If that is right, name a file with its "
    "authority in `env` (SSL_CERT_FILE; for Node NODE_EXTRA_CA_CERTS), and the same file in `sandbox.read`."
)


def of_end(description: str) -> str | None:
    """For whoever called a process that ended so."""
    return next((words for part, words in _OF_ENDS.items() if part in description), None)


def of_words(stderr: Sequence[str]) -> str | None:
    """From what it has said itself, if none of its own limits explains it."""
    if distrusts(stderr):
        return TRUST
    return NO_THREAD if _no_thread("\n".join(stderr)) else None


def distrusts(stderr: Iterable[str]) -> bool:
    """Whether it has said that it does not trust the certificate of a server."""
    return _distrusts("\n".join(stderr)) is not None


_no_thread = re.compile(
    r"can't start new thread|unable to create (new )?(native )?thread|pthread_create.*fail|fail.*pthread_create|"
    r"\b(fork|vfork|spawn|clone|thread)\b.*(\bEAGAIN\b|Resource temporarily unavailable)",
).search
# Its own limit is counted, so it is known whether it was that one.
NO_THREAD = (
    "It could start no further process or thread, and not because of `limits.pids`: a limit of the machine is reached, "
    "`pids.max` of the container, TasksMax of the service, or `ulimit -u`."
)

CHECK_HINT = "`trunkline backends check`, and the backend's last failure, say to administrators what went wrong."
RAISING = {
    "memory": "A platform administrator can raise `limits.memory_mb` of the backend.",
    "disk": (
        "A platform administrator can raise `limits.disk_mb` of the backend, or remove a home that lasts "
        "(`trunkline homes`)."
    ),
    "pids": "A platform administrator can raise `limits.pids` of the backend: threads count as processes.",
    "files": "A platform administrator can raise `limits.files` of the backend.",
    "cpu": "A platform administrator can raise `limits.cpu` of the backend.",
    "tenant_memory": "A platform administrator can raise `limits.memory_mb` of the tenant.",
    "output": "Have it write less, or less often: a longer `timeouts.call_s` does not help.",
}

# A member of `limits`, by the limit; twice as much is what one tries first.
_MEMBERS = {"memory": "memory_mb", "disk": "disk_mb", "pids": "pids", "files": "files", "cpu": "cpu"}


def raising(limit: str, spec: BackendSpec) -> str:
    """Who can raise a limit that this backend has reached, and what to write for twice as much; empty if none is."""
    member = _MEMBERS.get(limit)
    value = None if member is None else getattr(spec.limits, member)
    if value is None:
        return RAISING.get(limit, "")
    name = spec.name.partition(":")[0]  # a check runs under a name of its own
    command = f"trunkline backends set {name} --tenant {spec.tenant} limits.{member}={2 * value:g}"
    return f"{RAISING[limit]} For twice as much: `{command}`."
