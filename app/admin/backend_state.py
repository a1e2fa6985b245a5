"""How a backend is, beside how it is registered: its state over all nodes, and its last failures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

from pydantic import BaseModel, Field

from app.admin.schemas.backends import BackendAnswer
from app.backends.failures import MAX_KEPT, NOT_STARTED, BackendFailure
from app.domain import BackendSpec
from app.this_node.listing import Gathered
from app.this_node.views import BackendRunning

State = Literal["disabled", "breaker_open", "running", "starting", "idle"]


class BackendProcesses(BaseModel):
    """Processes of a backend on all nodes, by state."""

    leased: int = Field(description="They serve sessions.")
    warm: int
    starting: int
    stopping: int


class LastFailure(BaseModel):
    """What went wrong last."""

    at: datetime
    kind: str = Field(
        description="`not_started`; `exited`, `signaled`, `killed` (by the gateway) or `spawner_lost`: "
        "its process ended by itself; `not_initialized`: it lived, and could not be initialised; `timeout` of a call."
    )
    detail: str = Field(examples=["exit status 3", "signal 9 (SIGKILL)"])
    before_handshake: bool = Field(description="Whether it had not been initialised yet.")
    times: int = Field(description="How often in a row: the same call that hangs, the same death at the start.")
    node: str


class AffectedSession(BaseModel):
    """A session that a failure concerned, and whose it was."""

    session: str = Field(description="Its public id, see the list of sessions.")
    tenant: str
    issuer: str
    subject: str


class KeptFailure(LastFailure):
    """One failure. What can differ between several in a row is that of the last."""

    first_at: datetime
    version: int = Field(description="Of the backend, as it was registered then.")
    process: str | None
    pid: int | None
    lived_s: float | None
    method: str | None = Field(description="Of the call that took too long.")
    tool: str | None = Field(description="The tool that was called; for administrators.")
    affected: list[AffectedSession] = Field(description="The first few; for administrators.")
    affected_count: int = Field(description="How many sessions it concerned, or how many waited for the process.")
    stderr: list[str] = Field(
        description="The last lines, 4 KiB at most, for administrators. Values of the backend's `env`, API keys and "
        "bearer tokens are masked: servers may still write other secrets there."
    )


class ListedBackend(BackendAnswer):
    """A backend, and how it is."""

    state: State = Field(
        description="`disabled`; `breaker_open`: its processes die at their start, and none is started for a while on "
        "one node at least; `running`: a process serves or waits to; `starting`; `idle`: none is needed."
    )
    breaker_open_until: datetime | None = Field(description="When the next start is tried, on the last node to try.")
    processes: BackendProcesses
    waiting: int = Field(description="Sessions that wait for a process.")
    last_error: str | None = Field(
        description="`last_failure` in words.", examples=["exit status 3, at its start, 37 times"]
    )
    last_failure: LastFailure | None


class ShownBackend(ListedBackend):
    """A backend, how it is, and what went wrong."""

    failures: list[KeptFailure] = Field(
        description=f"The last {MAX_KEPT} of each node, the newest first. A node forgets them when it ends."
    )
    silent_nodes: list[str] = Field(description="Nodes that did not answer within a second: what they know is missing.")


@dataclass(frozen=True, slots=True)
class RunningBackends:
    """What the nodes have told of the backends of one tenant."""

    by_name: dict[str, list[BackendRunning]]
    silent: Sequence[str]

    @classmethod
    def of(cls, told: Gathered[BackendRunning]) -> Self:
        """Sorts it by backend."""
        by_name: dict[str, list[BackendRunning]] = {}
        for each in told.rows:
            by_name.setdefault(each.name, []).append(each)
        return cls(by_name, told.silent)

    @classmethod
    def nowhere(cls) -> Self:
        """Nobody was asked."""
        return cls({}, ())

    def listed(self, spec: BackendSpec) -> ListedBackend:
        """The backend in a list."""
        return ListedBackend.model_validate(self._members(spec))

    def shown(self, spec: BackendSpec, *, in_full: bool) -> ShownBackend:
        """The backend with its failures; less what is for administrators unless `in_full`."""
        failures = [shown_failure(each, in_full=in_full) for each in self._failures(spec)]
        return ShownBackend.model_validate(
            {**self._members(spec), "failures": failures, "silent_nodes": list(self.silent)}
        )

    def _failures(self, spec: BackendSpec) -> list[BackendFailure]:
        every = (failure for each in self.by_name.get(spec.name, ()) for failure in each.failures)
        return sorted(every, key=lambda failure: failure.at, reverse=True)

    def _members(self, spec: BackendSpec) -> dict[str, object]:
        running = self.by_name.get(spec.name, [])
        retries = [each.retry_after_s for each in running if each.breaker_open]
        failures = self._failures(spec)
        counts = {name: sum(getattr(each, name) for each in running) for name in BackendProcesses.model_fields}
        return {
            **BackendAnswer.of(spec).model_dump(),
            "state": _state(spec, counts, is_open=bool(retries)),
            "breaker_open_until": datetime.now(UTC) + timedelta(seconds=max(retries)) if retries else None,
            "processes": counts,
            "waiting": sum(each.waiting for each in running),
            "last_error": _words(failures[0]) if failures else None,
            "last_failure": asdict(failures[0]) if failures else None,
        }


def _state(spec: BackendSpec, counts: dict[str, int], *, is_open: bool) -> State:
    if not spec.enabled:
        return "disabled"
    if is_open:
        return "breaker_open"
    if counts["leased"] or counts["warm"]:
        return "running"
    return "starting" if counts["starting"] else "idle"


def _words(failure: BackendFailure) -> str:
    when = ["at its start"] if failure.before_handshake and failure.kind != NOT_STARTED else []
    often = [f"{failure.times} times"] if failure.times > 1 else []
    return ", ".join([failure.detail, *when, *often])


def shown_failure(failure: BackendFailure, *, in_full: bool) -> dict[str, object]:
    """For `KeptFailure`; less what is for administrators unless `in_full`."""
    members = asdict(failure)
    return members if in_full else {**members, "tool": None, "affected": [], "stderr": []}
