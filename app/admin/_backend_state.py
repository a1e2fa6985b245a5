"""The state of a backend on all nodes, and its last failures."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from app.admin._paging import Page
from app.admin.schemas.backends import BackendAnswer
from app.admin.schemas.fields import SILENT
from app.admin.schemas.rows import answer_of
from app.backends.failures import MAX_KEPT, NOT_STARTED, BackendFailure
from app.cluster.node_status.listing import Gathered
from app.cluster.node_status.views import BackendRunning
from app.domain import BackendSpec
from app.jail.sandbox.report import ProfileView, SandboxView, of_backend, why_not_frozen

Status = Literal["disabled", "breaker_open", "running", "starting", "idle"]


class BackendProcesses(BaseModel):
    """Processes of a backend on all nodes, by state."""

    leased: int = Field(description="They serve sessions.")
    warm: int
    starting: int
    stopping: int


class LastFailure(BaseModel):
    """The last failure."""

    at: datetime
    kind: str = Field(
        description="`not_started`; `exited`, `signaled`, `killed` (by the gateway) or `spawner_lost`: its process "
        "ended; `not_initialized`: it ran, but could not be initialised; `timeout` of a call; `denied`: a call failed, "
        "and something was denied to the process."
    )
    detail: str = Field(examples=["exit status 3", "signal 9 (SIGKILL)"])
    before_handshake: bool = Field(description="Whether it happened before initialisation.")
    times: int = Field(
        description="How often in a row: the same call hangs, or the process ends in the same way at its start."
    )
    node: str


class AffectedSession(BaseModel):
    """A session that was affected by a failure, with its principal."""

    session: str = Field(description="Its id in the list of sessions.")
    tenant: str
    issuer: str
    subject: str


class DenialAnswer(BaseModel):
    """Something that its sandbox or a limit denied a process, as far as it is known."""

    kind: str = Field(
        description="`file`, `address`; or the limit that it reached: `pids` (processes and threads), `memory`, "
        "`files` (open ones), `disk`."
    )
    what: str = Field(examples=["/srv/notes/a.md", "10.0.0.7:5432", "its 64 processes and threads (limits.pids)"])
    at: datetime


class KeptFailure(LastFailure):
    """One failure. If it happened several times in a row, the values are those of the last time."""

    first_at: datetime
    version: int = Field(description="Of the backend at that time.")
    process: str | None
    pid: int | None
    lived_s: float | None
    method: str | None = Field(description="Of the call that timed out or failed.")
    tool: str | None = Field(description="The tool that was called; for administrators.")
    affected: list[AffectedSession] = Field(description="The first few; for administrators.")
    affected_count: int = Field(description="How many sessions were affected, or waited for the process.")
    denials: list[DenialAnswer] = Field(
        description="What was denied to the process last, oldest first; for administrators."
    )
    stderr: list[str] = Field(
        description="The last lines, at most 4 KiB; for administrators. Values of the backend's `env`, API keys and "
        "bearer tokens are masked, but servers may write other secrets there."
    )


class ListedBackend(BackendAnswer):
    """A backend with its state."""

    status: Status = Field(
        description="`disabled`; `breaker_open`: its processes end at their start, so that at least one node starts no "
        "more for a while; `running`: a process serves a session or is warm; `starting`; `idle`: none is needed."
    )
    breaker_open_until: datetime | None = Field(description="When the last of these nodes tries again.")
    processes: BackendProcesses
    waiting: int = Field(description="Sessions that wait for a process.")
    warm_target: int = Field(description="Processes that should be warm now, on all nodes.")
    last_error: str | None = Field(description="`last_failure` in words.", examples=["exit status 3, at its start"])
    last_failure: LastFailure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnNodes(ProfileView):
    """How the backend's processes are confined, on all nodes where that is the same."""

    nodes: list[str]


SandboxOnNodes: Any = answer_of(_OnNodes, "SandboxOnNodes", ["nodes"])


Notes = Annotated[
    list[str],
    Field(
        description="What its `sandbox` names and the node that answers does not have: it may come later. What of its "
        "`openapi` could not be made a tool. And which of its certificates have expired, or expire within 14 days."
    ),
]


class ChangedBackend(BackendAnswer):
    """A backend as it is now stored."""

    notes: Notes


class ShownBackend(ListedBackend):
    """A backend with its state and failures."""

    notes: Notes
    sandbox_report: list[SandboxOnNodes]
    warm_why: list[str] = Field(
        description="With `warm: auto`: why each node has its target.",
        examples=[["gateway-1: 2: 40 arrivals in the last hours, a start takes 0.8 s"]],
    )
    not_frozen_why: list[str] = Field(
        description="With `timeouts.park_s` and `recovery: end`: the nodes that freeze none of its sessions, and why.",
        examples=[["gateway-1: no such hierarchy is mounted"]],
    )

    failures: list[KeptFailure] = Field(
        description=f"The last {MAX_KEPT} of each node, newest first. A node forgets them when it stops."
    )
    silent_nodes: list[str] = Field(description=SILENT)


class ListedBackends(Page[ListedBackend]):
    """A page of backends with their state."""

    silent_nodes: list[str] = Field(description=SILENT)


class RunningBackends:
    """What the nodes report about the backends of one tenant."""

    def __init__(self, told: Gathered[BackendRunning]) -> None:
        self.silent = list(told.silent)
        self._by_name = defaultdict[str, list[BackendRunning]](list)
        for each in told.rows:
            self._by_name[each.name].append(each)

    def listed(self, spec: BackendSpec) -> ListedBackend:
        return ListedBackend.model_validate(self._members(spec))

    def shown(
        self, spec: BackendSpec, sandboxes: Iterable[SandboxView], notes: list[str], *, in_full: bool
    ) -> ShownBackend:
        """With its failures, see `shown_failure`."""
        failures = [shown_failure(each, in_full=in_full) for each in self._failures(spec)]
        members = {**self._members(spec), "failures": failures, "silent_nodes": self.silent, "notes": notes}
        views = sorted(sandboxes, key=lambda view: view.node)
        members["sandbox_report"] = _sandbox_report(spec, views)
        obstacles = [(each.node, why_not_frozen(each, spec)) for each in views if spec.rests_as == "frozen"]
        members["not_frozen_why"] = [f"{node}: {why}" for node, why in obstacles if why]
        running = sorted(self._by_name[spec.name], key=lambda each: each.node)
        members["warm_why"] = [f"{each.node}: {each.warm_target}: {each.warm_why}" for each in running if each.warm_why]
        return ShownBackend.model_validate(members)

    def _failures(self, spec: BackendSpec) -> list[BackendFailure]:
        every = (failure for each in self._by_name[spec.name] for failure in each.failures)
        return sorted(every, key=lambda failure: failure.at, reverse=True)

    def _members(self, spec: BackendSpec) -> dict[str, object]:
        running = self._by_name[spec.name]
        retries = [each.retry_after_s for each in running if each.breaker_open]
        failures = self._failures(spec)
        counts = {name: sum(getattr(each, name) for each in running) for name in BackendProcesses.model_fields}
        return {
            **BackendAnswer.of(spec).model_dump(),
            "status": _status(spec, counts, is_open=bool(retries)),
            "breaker_open_until": datetime.now(UTC) + timedelta(seconds=max(retries)) if retries else None,
            "processes": counts,
            "waiting": sum(each.waiting for each in running),
            "warm_target": sum(each.warm_target for each in running),
            "last_error": _words(failures[0]) if failures else None,
            "last_failure": asdict(failures[0]) if failures else None,
        }


def _sandbox_report(spec: BackendSpec, sandboxes: Iterable[SandboxView]) -> list[dict[str, object]]:
    nodes = defaultdict[str, list[str]](list)
    reports: dict[str, dict[str, object]] = {}
    for view in sandboxes:
        report = asdict(of_backend(view, spec))
        key = json.dumps(report, sort_keys=True)
        reports[key] = report
        nodes[key].append(view.node)
    return [{**report, "nodes": nodes[key]} for key, report in reports.items()]


def _status(spec: BackendSpec, counts: dict[str, int], *, is_open: bool) -> Status:
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
    """The members of `KeptFailure`; without those for administrators unless `in_full`."""
    members = asdict(failure)
    return members if in_full else {**members, "tool": None, "affected": [], "stderr": [], "denials": []}
