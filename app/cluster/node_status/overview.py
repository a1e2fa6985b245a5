"""NodeOverview: this node's sessions and processes as values, for administrators."""

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from heapq import nsmallest

from app.auth.credential_uses import CredentialUses
from app.backends.checks.backend_check import SUFFIX, CheckResult, check_backend
from app.backends.checks.steps import Steps
from app.backends.inventory import BackendSnapshot
from app.backends.pool import ProcessPool
from app.backends.upstreams.upstream_check import check_upstream
from app.backends.upstreams.upstreams import Upstreams
from app.cluster.node_status._census import NOBODY, Census, Counted
from app.cluster.node_status.activity import NodeActivity
from app.cluster.node_status.inspecting import Inspecting
from app.cluster.node_status.limits_use import LimitsUse, use_of
from app.cluster.node_status.listing import CallWindow, Listing, Use, Window, position
from app.cluster.node_status.problems.problem import Problem
from app.cluster.node_status.process_restart import Restarted, restart
from app.cluster.node_status.views import (
    AddressUse,
    BackendRunning,
    CallerUse,
    CallView,
    FailureView,
    NodeLoad,
    NodeStatus,
    ProcessView,
    SessionView,
    TenantUse,
    place_of,
)
from app.cluster.node_status.watching import Watching
from app.domain import BackendSpec, Limits
from app.jail.sandbox.report import SandboxView
from app.limits.caller_limits import CallerLimits
from app.limits.tenant_budgets import TenantBudgets
from app.processes.denials import Denial
from app.processes.process import BackendProcess
from app.processes.supervisor import Supervisor
from app.sessions.call_observers import program_of
from app.sessions.endings import ENDED_BY_ADMINISTRATOR
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.telemetry.call_history.history import CallHistory
from app.telemetry.call_history.query import CallGroup, grouped

MAX_TENANTS = 2000  # whose use one node reports
NO_CALLS = (0, 0)


class NodeOverview:
    """Owns nothing. `cluster.all_nodes` asks every node. A `tenant` of None means all tenants."""

    def __init__(  # noqa: PLR0913 - everything that is looked at
        self,
        node: str,
        version: str,
        registry: SessionRegistry,
        pool: ProcessPool,
        supervisor: Supervisor,
        budgets: TenantBudgets,
        sandbox: SandboxView,
        connections: Callable[[], int] = lambda: 0,
        uses: CredentialUses | None = None,
        upstreams: Upstreams | None = None,
        watching: Watching | None = None,
        history: CallHistory | None = None,
        inspecting: Inspecting | None = None,
        callers: CallerLimits | None = None,
    ) -> None:
        self.inspecting = inspecting
        self._callers = callers
        self._upstreams, self._watching = upstreams, watching or Watching.nothing(node)
        self._history = CallHistory(0, 0) if history is None else history
        self._registry, self._pool, self._supervisor, self._budgets = registry, pool, supervisor, budgets
        self._id, self._version, self._started_at = node, version, datetime.now(UTC)
        self._sandbox, self._census = sandbox, Census(registry)
        self._connections, self._uses = connections, uses or CredentialUses()
        self._epoch = time.time() - time.monotonic()  # once: sort keys must not change between two requests

    def status(self) -> NodeStatus:
        return NodeStatus(
            id=self._id,
            version=self._version,
            started_at=self._started_at,
            sessions=len(self._registry),
            processes=len(self._supervisor.processes),
            draining=self._registry.is_stopping,
        )

    def sandbox(self) -> SandboxView:
        return self._sandbox

    def load(self) -> NodeLoad:
        self._supervisor.watch()
        overload, processes = self._registry.overload, self._supervisor.processes
        return NodeLoad(
            node=self._id,
            host=socket.gethostname(),
            pid=os.getpid(),
            loop_lag_s=round(overload.lag_s, 4),
            memory_used_bytes=overload.memory.used,
            memory_limit_bytes=overload.memory.limit,
            descriptors_used=overload.descriptors.used,
            descriptors_limit=overload.descriptors.limit,
            connections=self._connections(),
            calls=sum(gate.calls for _, gate in self._registry.gates),  # cheaper than to ask every session
            backends_resident_bytes=sum(each.resident_bytes for each in processes),
            backends_cpu_percent=round(sum(each.cpu_percent or 0.0 for each in processes), 1),
            refuses=overload.problem,
        )

    def sessions(self, tenant: str | None, window: Window) -> Listing[SessionView]:
        self._supervisor.watch()
        processes = {each.id: each for each in self._supervisor.processes}
        found = self._registry.shown(tenant)
        if window.backend:
            found = {name: each for name, each in found.items() if each.spec.name == window.backend}

        def place(name: str) -> str:
            session = found[name]
            process = processes.get(session.connection.process or "")
            since, amounts = session.opened_at + self._epoch, _amounts(window.sort, process, _calls(session))
            return position(window.sort, name, since, amounts)

        wanted = found.keys() & {window.only} if window.only else found
        names = window.first(wanted, str if window.sort == "id" else place)  # of thousands of sessions none is touched
        shown = [found[each] for each in names]
        uses = (_use(processes.get(each.connection.process or ""), _calls(each)) for each in shown)
        rows = [_session(each, use, self._epoch, self._id) for each, use in zip(shown, uses, strict=True)]
        return Listing(rows, len(found))

    def callers(self, tenant: str | None, window: Window) -> Listing[CallerUse]:
        """Of this day."""
        now, known = time.time(), () if self._callers is None else self._callers.known(tenant or "")
        found = [CallerUse.of(each, now) for each in known if each.day.used(now)]
        return Listing(window.first(found, lambda each: each.position(window.sort)), len(found))

    def limits_use(self, tenant: str) -> LimitsUse:
        memory = sum(each.resident_bytes for each in self._supervisor.processes if each.spec.tenant == tenant)
        spawns = self._budgets.starts_in_last_minute(tenant)
        return use_of(self._registry.gates.find(tenant), self._pool.used().get(tenant, 0), memory, spawns)

    def end_session(self, tenant: str, session: str) -> bool:
        """Ends the tenant's session with this public id; returns whether there was one."""
        ended = self._registry.close_where(
            lambda each: each.spec.tenant == tenant and each.public_id == session, ENDED_BY_ADMINISTRATOR
        )
        return ended > 0

    def processes(self, tenant: str | None, window: Window) -> Listing[ProcessView]:
        """A process that is being started has no id yet, and is left out."""
        self._supervisor.watch()
        self._census.count()
        counted = self._census.of_processes
        found = [each for each in _meant(self._supervisor.processes, tenant, window.backend) if each.id]
        if window.only:
            found = [each for each in found if each.id == window.only]
        now = time.time()

        def place(process: BackendProcess) -> str:
            amounts = _amounts(window.sort, process, counted.get(process.id, NOBODY).calls)
            return position(window.sort, process.id, process.started_at, amounts)

        shown = window.first(found, place)
        rows = [_process(each, counted.get(each.id, NOBODY), now, self._id) for each in shown]
        return Listing(rows, len(found))

    def restart_process(self, tenant: str, process: str) -> Restarted | None:
        """As `process_restart.restart`."""
        return restart(self._id, self._registry, self._pool, self._supervisor, tenant, process)

    def use(self, _tenant: str | None, window: Window) -> Listing[TenantUse]:
        """What each tenant uses: the first MAX_TENANTS tenants."""
        self._supervisor.watch()
        gates = {tenant: gate for tenant, gate in self._registry.gates if gate.sessions}
        processes = defaultdict[str, list[BackendProcess]](list)
        for process in self._supervisor.processes:
            processes[process.spec.tenant].append(process)
        every = []
        for tenant in {*gates, *processes}:
            sessions, calls = 0, NO_CALLS
            if (gate := gates.get(tenant)) is not None:
                sessions, calls = gate.sessions, (gate.calls, gate.begun)
            use = sum((_use(each, NO_CALLS) for each in processes[tenant]), _use(None, calls))
            every.append(TenantUse(tenant, sessions, len(processes[tenant]), use))
        shown = nsmallest(MAX_TENANTS, every, key=lambda each: each.position(window.sort))
        return Listing(shown, len(every))

    def stderr(self, tenant: str, process: str, lines: int) -> Sequence[str] | None:
        """The last lines of the tenant's process; None if there is no such process."""
        for each in self._supervisor.processes:
            if each.spec.tenant == tenant and each.id == process:
                return each.stderr.last_lines(lines)
        return None

    def denials(self, tenant: str, process: str) -> Sequence[Denial] | None:
        """What was denied to the tenant's process last; None if there is no such process."""
        for each in self._supervisor.processes:
            if each.spec.tenant == tenant and each.id == process:
                return each.denials.last
        return None

    def backends(self, tenant: str, first: str, last: str) -> Sequence[BackendRunning]:
        """The tenant's backends from name `first` to `last` that run or have failed here. A single one has all its
        failures, several have the last one each, without details."""
        elsewhere = {} if self._upstreams is None else self._upstreams.snapshot()
        pool, failures = {**elsewhere, **self._pool.snapshot()}, self._pool.failures
        names = {key[1] for key in {*pool, *failures.backends()} if key[0] == tenant and first <= key[1] <= last}
        found = []
        for name in sorted(names):
            numbers, kept = pool.get((tenant, name), BackendSnapshot()), failures.of((tenant, name))
            shown = kept if first == last else [each.in_short() for each in kept[:1]]
            found.append(BackendRunning(name=name, node=self._id, **asdict(numbers), failures=tuple(shown)))
        return found

    def credential_uses(self, identity: tuple[str, str, str]) -> Sequence[AddressUse]:
        """From where this principal was authenticated here, as far as that is remembered."""
        return [
            AddressUse(address, use.requests, _at(use.first_at), _at(use.last_at), self._id)
            for address, use in self._uses.of(identity).items()
        ]

    def failures(self, tenant: str | None, window: Window) -> Listing[FailureView]:
        """The last failures, newest first."""
        found = [
            FailureView(*key, failure)
            for key, failure in self._pool.failures.every()
            if tenant in (None, key[0]) and window.backend in ("", key[1])
        ]
        return Listing(window.first(found, lambda view: view.position(window.sort)), len(found))

    def activity(self, tenant: str | None, node: str, steps: int) -> NodeActivity | None:
        """The last steps of the last quarter of an hour; None if another node is meant."""
        if node not in ("", self._id):
            return None
        limit = self._registry.overload.memory.limit if tenant is None else 0
        return self._watching.activity.of(tenant, self._id, limit, steps)

    def problems(self, tenant: str | None) -> Sequence[Problem]:
        """What is wrong now, as far as this tenant may know it."""
        return self._watching.problems.of(tenant)

    def calls(self, tenant: str | None, window: CallWindow) -> Listing[CallView]:
        """The last calls of a tenant, or of all, newest first."""
        found = list(filter(window.matches, self._history.of(tenant)))
        rows = [CallView.of(call, self._id) for call in window.first(found, place_of)]
        return Listing(rows, len(found))

    def call_groups(self, tenant: str | None, window: CallWindow, by: str) -> Sequence[CallGroup]:
        """The sums of those calls."""
        return grouped(filter(window.matches, self._history.of(tenant)), by)

    async def check(self, spec: BackendSpec, limits: Limits, steps: Steps) -> CheckResult:
        if spec.url is not None and self._upstreams is not None:
            return await check_upstream(self._upstreams, spec, steps)
        if spec.start == "exec":
            return await check_backend(self._pool, spec, limits, steps)
        steps.expect("fork")
        known = self._pool.spec_of(spec.key)
        found = await check_backend(self._pool, spec, limits, steps)
        if found.failure is not None:
            return found
        if known is not None and self._pool.spec_of(spec.key) is not known:
            return found.started(spec.start, "it was changed or removed meanwhile")
        with steps.timed("fork"):
            why_not = await self._supervisor.forking.settled(spec)
        return found.started(spec.start, why_not)


def _meant(every: Iterable[BackendProcess], tenant: str | None, backend: str) -> list[BackendProcess]:
    """Those of a tenant and of a backend; there may be thousands."""
    if tenant is not None:
        every = [each for each in every if each.spec.tenant == tenant]
    return [each for each in every if not backend or each.spec.name == backend]


def _amounts(sort: str, process: BackendProcess | None, calls: tuple[int, int]) -> tuple[float, ...]:
    """Like `Use.amounts`, but computes only what this order needs: it is called for thousands of rows."""
    if sort == "memory":
        return (0 if process is None else process.resident_bytes,)
    if sort == "calls":
        return calls
    return _use(process, calls).amounts(sort) if sort == "cpu" else ()


def _calls(session: Session) -> tuple[int, int]:
    """In flight, and in total."""
    return session.exchange.in_flight, session.calls.begun


def _use(process: BackendProcess | None, calls: tuple[int, int]) -> Use:
    if process is None:
        return Use(0, 0.0, None, *calls)
    percent = None if process.cpu_percent is None else round(process.cpu_percent, 1)
    return Use(process.resident_bytes, round(process.cpu_s, 3), percent, *calls)


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _session(session: Session, use: Use, epoch: float, node: str) -> SessionView:
    principal, program, now = session.principal, program_of(session), time.monotonic()
    return SessionView(
        id=session.public_id,
        tenant=session.spec.tenant,
        backend=session.spec.name,
        principal_tenant=principal.tenant,
        issuer=principal.issuer,
        subject=principal.subject,
        transport=session.transport,
        state=session.connection.rest or session.state.value,
        protocol_version=session.version,
        opened_at=_at(session.opened_at + epoch),
        age_s=round(now - session.opened_at, 3),
        idle_s=round(now - session.last_seen, 3),
        process=session.connection.process,
        node=node,
        client_name=program.get("name"),
        client_version=program.get("version"),
        address=session.address or None,
        use=use,
    )


def _process(process: BackendProcess, counted: Counted, now: float, node: str) -> ProcessView:
    return ProcessView(
        id=process.id,
        tenant=process.spec.tenant,
        backend=process.spec.name.removesuffix(SUFFIX),
        pid=process.pid,
        state="frozen" if process.is_frozen else process.state.value,
        started_at=_at(process.started_at),
        age_s=round(max(0.0, now - process.started_at), 3),
        sessions=tuple(sorted(counted.named)),
        session_count=counted.sessions,
        stderr_lines=process.stderr.line_count,
        node=node,
        use=_use(process, counted.calls),
        tier=process.origin.tier,
        start=process.origin.start,
        start_reason=process.origin.reason,
        sent_bytes=process.sent_bytes,
        received_bytes=process.received_bytes,
        denied=process.denials.count,
    )
