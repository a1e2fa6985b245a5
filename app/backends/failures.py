"""FailureLog: the last failures of each backend on this node, kept after their processes are gone.

In memory, and bounded. Which sessions a failure affected is passed in.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os.path import dirname

from app.domain import BackendSpec, is_name
from app.processes.denials import Denial
from app.processes.endings import of_words, raising
from app.processes.process import BackendProcess

MAX_KEPT = 10  # of one backend
MAX_OF_CALLS = 5  # of them about calls: tools that hang or fail must not push out the last words of processes
MAX_BYTES = 2 << 20  # of one node; above it the backend whose last failure is the oldest loses its oldest ones
STDERR_BYTES = 4 << 10  # of one failure: the last bytes
MAX_NAMED = 10  # sessions of one failure; the others are only counted
MAX_TEXT = 300

NOT_STARTED, NOT_INITIALIZED, TIMEOUT, DENIED = "not_started", "not_initialized", "timeout", "denied"
_OF_CALLS = (TIMEOUT, DENIED)
_ALLOWING = (
    "If the tool should have it, a platform administrator can add it to the backend's `sandbox` (`read`, `write`, "
    "`network`)."
)
_REACHING = (
    "If the tool should have it, a platform administrator can name it in the backend's `sandbox.network.allow`, as "
    "HOST:PORT, or give it `sandbox.network=web`; `trunkline backends check NAME` says which addresses are known."
)
_BESIDE_ITSELF = (
    "It writes beside its own program, which no backend may. Give it another place as its README says, mostly by a "
    "variable: `env` with a path below ${home}, and `state: keep` if that is to stay."
)
_BY_MODES = (
    "`sandbox.write` has it, but owner and mode keep it from the user as whom the process runs: use chown or setfacl "
    "on the node. `backends check` says which user that is, where the server writes at its start."
)
_ENDS = frozenset({"exited", "signaled", "killed", "spawner_lost"})  # "stopped" is no failure

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Affected:
    """A session that a failure affected, by its public id, and its principal."""

    session: str
    tenant: str
    issuer: str
    subject: str


@dataclass(frozen=True, slots=True)
class BackendFailure:
    """One failure, or `times` equal ones; then other fields are those of the last.

    `kind`: "not_started"; how the process ended (see `Exit`; "killed" is by the gateway); "not_initialized": it failed
    at `initialize` and lives; "timeout" of a call, which `method` and `tool` name; "denied": a call failed, and
    something was denied to the process meanwhile.
    """

    kind: str
    detail: str  # for people
    before_handshake: bool
    version: int  # of the backend's configuration
    first_at: datetime
    at: datetime
    node: str
    times: int = 1
    process: str | None = None
    pid: int | None = None
    lived_s: float | None = None
    method: str | None = None
    tool: str | None = None
    affected: tuple[Affected, ...] = ()
    affected_count: int = 0  # of the last one; `affected` has the first few
    stderr: tuple[str, ...] = ()
    limit: str = ""  # see `Exit`
    hint: str = ""  # what a person can do, where that is known
    denials: tuple[Denial, ...] = ()  # of the process: the last that were known then

    def repeats(self, other: "BackendFailure") -> bool:
        """Whether the two are counted as one: calls that hang, processes that die at their start.

        Ends of processes that served sessions are not: each affected other ones.
        """
        return (self.kind in _OF_CALLS or self.before_handshake) and self.cause == other.cause

    @property
    def cause(self) -> tuple[object, ...]:
        """Equal for failures that are counted as one: timeouts, however long they took; files of one directory."""
        detail = {TIMEOUT: None, DENIED: dirname(self.detail) or self.detail}.get(self.kind, self.detail)
        return (self.kind, detail, self.before_handshake, self.version, self.method, self.tool)

    def in_short(self) -> "BackendFailure":
        """Without what is long, or for administrators only."""
        return replace(self, method=None, tool=None, affected=(), stderr=(), denials=())

    @property
    def size(self) -> int:
        """Estimated bytes in memory, and an upper bound of those in JSON."""
        named = sum(len(each.issuer) + len(each.subject) + 200 for each in self.affected)
        denied = sum(2 * len(each.what) + 100 for each in self.denials)
        return 1000 + sum(len(line) + 60 for line in self.stderr) + len(self.detail) + named + denied


UsersOf = Callable[[BackendSpec, str | None], Sequence[Affected]]


class FailureLog:
    """The last failures of each backend.

    Args:
        users_of: returns the sessions of a process by its id; for None those that wait for a process of the backend.
    """

    def __init__(
        self,
        node: str,
        *,
        users_of: UsersOf = lambda spec, process: (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._node, self._users_of, self._now = node, users_of, now
        self._kept: dict[Key, list[BackendFailure]] = {}  # newest last; the backend that failed last is last
        self._bytes = 0

    # --- what has gone wrong

    def ended(self, process: BackendProcess, *, before_handshake: bool) -> None:
        """A process has ended; to be called before its sessions hear of it. One that was stopped is not recorded."""
        exit = process.exit
        if exit is not None and exit.reason in _ENDS:
            failure = self._new(process.spec, exit.reason, exit.description, process, before_handshake=before_handshake)
            failure = replace(failure, limit=exit.limit, hint=exit.error().hint or of_words(failure.stderr) or "")
            self._add(process.spec, failure, self._users_of(process.spec, process.id))

    def not_started(self, spec: BackendSpec, why: str) -> None:
        """The command could not be executed."""
        self._add(spec, self._new(spec, NOT_STARTED, why), self._users_of(spec, None))

    def not_initialized(self, process: BackendProcess, why: str) -> None:
        """The process of a shared backend failed at `initialize`."""
        failure = self._new(process.spec, NOT_INITIALIZED, why, process)
        self._add(process.spec, failure, self._users_of(process.spec, None))

    def timed_out(  # noqa: PLR0913 - fields of one failure
        self, spec: BackendSpec, process: BackendProcess | None, why: str, *, method: str, tool: str | None,
        affected: Affected, hint: str = "",
    ) -> None:  # fmt: skip
        failure = self._new(spec, TIMEOUT, why, process, before_handshake=method == "initialize")
        self._add(spec, replace(failure, method=method[:MAX_TEXT], tool=tool, hint=hint), [affected])

    def denied(
        self, process: BackendProcess, denials: Sequence[Denial], *, method: str, tool: str | None, affected: Affected
    ) -> None:
        """A call has failed, and this was denied to the process meanwhile."""
        first, more = denials[0], len(denials) - 1
        why = f"{first.kind} was denied: {first.what}" + (f", and {more} more" if more else "")
        failure = self._new(process.spec, DENIED, why, process, before_handshake=method == "initialize")
        hint = raising(first.kind, process.spec) or _way_out(first, process.spec)
        self._add(process.spec, replace(failure, method=method[:MAX_TEXT], tool=tool, hint=hint), [affected])

    def _new(
        self, spec: BackendSpec, kind: str, why: str, process: BackendProcess | None = None, *,
        before_handshake: bool = True,
    ) -> BackendFailure:  # fmt: skip
        at = self._now()
        failure = BackendFailure(kind, why[:MAX_TEXT], before_handshake, spec.version, at, at, self._node)
        if process is None:
            return failure
        lived_s = round(max(0.0, at.timestamp() - process.started_at), 3)
        stderr = _end_of(process.stderr.last_lines())
        denials = tuple(process.denials.last)
        return replace(failure, process=process.id, pid=process.pid, lived_s=lived_s, stderr=stderr, denials=denials)

    def _add(self, spec: BackendSpec, failure: BackendFailure, affected: Sequence[Affected]) -> None:
        if not is_name(spec.name):
            return  # of a `:check`, which reports its failures itself
        failure = replace(failure, affected=tuple(affected[:MAX_NAMED]), affected_count=len(affected))
        kept = self._kept[spec.key] = self._kept.pop(spec.key, [])
        like = next((each for each in kept if failure.repeats(each)), None)
        if like is not None:
            failure = replace(failure, first_at=like.first_at, times=like.times + 1)
            self._drop(spec.key, like)
        kept.append(failure)
        self._bytes += failure.size
        self._make_room(spec.key)

    # --- bounds

    def _make_room(self, key: Key) -> None:
        kept = self._kept[key]
        of_calls = [each for each in kept if each.kind in _OF_CALLS]
        if len(of_calls) > MAX_OF_CALLS:
            self._drop(key, of_calls[0])
        if len(kept) > MAX_KEPT:
            self._drop(key, kept[0])
        while self._bytes > MAX_BYTES:
            longest_ago = next(iter(self._kept))
            self._drop(longest_ago, self._kept[longest_ago][0])
            if not self._kept[longest_ago]:
                del self._kept[longest_ago]

    def _drop(self, key: Key, failure: BackendFailure) -> None:
        self._kept[key].remove(failure)
        self._bytes -= failure.size

    def forget(self, key: Key) -> None:
        for failure in self._kept.pop(key, ()):
            self._bytes -= failure.size

    # --- looking

    def of(self, key: Key) -> Sequence[BackendFailure]:
        """The backend's failures, newest first."""
        return tuple(reversed(self._kept.get(key, ())))

    def every(self) -> Iterator[tuple[Key, BackendFailure]]:
        return ((key, failure) for key, kept in self._kept.items() for failure in kept)

    def backends(self) -> set[Key]:
        return set(self._kept)

    def denied_addresses(self, spec: BackendSpec) -> Sequence[str]:
        """Which ones calls of this version of the backend were denied."""
        failures = [each for each in self.of(spec.key) if each.kind == DENIED and each.version == spec.version]
        denials = [each for failure in failures for each in failure.denials if each.kind == "address"]
        return list(dict.fromkeys(each.what for each in denials))


def _way_out(denial: Denial, spec: BackendSpec) -> str:
    if denial.kind == "address":
        return _REACHING
    if any(f"{denial.what}/".startswith(f"{each.rstrip('/')}/") for each in spec.sandbox.write):
        return _BY_MODES
    return _BESIDE_ITSELF if spec.installed and denial.what.startswith(f"{spec.installed}/") else _ALLOWING


def _end_of(lines: Sequence[str]) -> tuple[str, ...]:
    """The last lines that fit into STDERR_BYTES; of a line that does not, its end."""
    kept: list[str] = []
    left = STDERR_BYTES
    for line in reversed(lines):
        if left <= 0:
            break
        kept.append(line[-left:])
        left -= len(line)
    return tuple(reversed(kept))
