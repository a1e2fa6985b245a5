"""Signs of trouble in what this node has: its backends, processes, limits and credentials. Each function looks at one
kind of thing, keeps nothing, and says what to do in the words of docs/on-call.md."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from app.auth.credential_uses import Busy, NewAddress
from app.backends.checks.backend_check import SUFFIX
from app.backends.failures import DENIED, NOT_STARTED, TIMEOUT, BackendFailure
from app.backends.inventory import BackendSnapshot
from app.backends.upstreams.certificates import expiring
from app.cluster.node_status.problems.problem import Problem, Severity
from app.domain import KEY_ISSUER, BackendSpec
from app.jail.sandbox.report import SandboxView
from app.limits.lately import Happened, RefusedTo
from app.limits.tenant_budgets import MIB, TenantBudgets
from app.limits.tenant_limits import TenantGate
from app.processes.process import BackendProcess

LATELY_S = 600.0  # failures that are older are history
NEAR = 0.85  # of a memory limit
MANY_CREDENTIALS = 30  # bad ones from one address within `limits.lately.KEPT_S`
MANY_REQUESTS = 100  # of a key from a new address: more than a trial
_MUST_HOLD = frozenset({"files", "network", "processes"})  # others need control groups, which many machines lack

Key = tuple[str, str]


def of_backends(snapshot: Mapping[Key, BackendSnapshot], failures: Mapping[Key, BackendFailure]) -> Iterator[Problem]:
    """Breakers that are open, and callers that wait. `failures`: the last one of each backend."""
    for (tenant, name), numbers in snapshot.items():
        about = ("backend", name)
        if numbers.breaker_open:
            last = failures.get((tenant, name))
            why = "" if last is None else f" The last time: {last.detail}."
            words = f"The backend {name} keeps ending right after its start, and is not started for now.{why}"
            do = "Read the end of its stderr under its failures, and repair it. Changed or restarted it starts at once."
            yield Problem("breaker_open", "critical", about, words, do, about, tenant)
        if numbers.waiting:
            words = f"{numbers.waiting} callers wait for a process of the backend {name}."
            do = "See which limit holds starts back (processes, max_processes, memory_mb), or whether it starts slowly."
            yield Problem("callers_waiting", "warning", about, words, do, about, tenant)


def of_certificates(specs: Iterable[BackendSpec], now: float) -> Iterator[Problem]:
    """Those in the `connect` of backends, which expire soon."""
    for spec in specs:
        for note in expiring(spec.connect, datetime.fromtimestamp(now, UTC)):
            words = f"The backend {spec.name}: {note.removesuffix('; renew it')}."
            do = "Renew it, and give it to the backend: `connect.certificate` goes with `connect.key`."
            about = ("backend", spec.name)
            yield Problem("backend_certificate_expires", "warning", about, words, do, about, spec.tenant)
            break  # the others stand in its notes


def of_failures(failures: Iterable[tuple[Key, BackendFailure]], now: float) -> Iterator[Problem]:
    """What has failed within LATELY_S, by backend."""
    for (tenant, name), each in failures:
        if now - each.at.timestamp() > LATELY_S:
            continue
        since, often = each.first_at.timestamp(), f", {each.times} times" if each.times > 1 else ""
        if each.limit and each.kind == "killed":
            limit = {"memory": "limits.memory_mb", "disk": "limits.disk_mb"}.get(each.limit, "the tenant's memory_mb")
            words = f"A process of the backend {name} was ended at {limit}: {each.detail.removeprefix('killed: ')}."
            do = f"Look at what it was asked to do; if its work needs more, raise {limit}."
            kind, severity = f"killed_at_{each.limit}", "critical"
        elif each.kind == TIMEOUT:
            what = each.method if each.tool is None else f"the tool {each.tool}"
            words, kind = f"Calls of {what} of the backend {name} have had no answer in time{often}.", "timeouts"
            do = each.hint or "Look at its stderr; if the work takes so long, raise timeouts.call_s."
            severity = "warning"
        else:
            when = " at its start" if each.before_handshake else ""
            words, kind = f"{_who(each)} the backend {name} has failed{when}: {each.detail}{often}.", "backend_failed"
            do, severity = each.hint or "Read the end of its stderr under its failures.", "warning"
            if each.kind == NOT_STARTED:  # so it has written nothing
                do = "Check it: that tries it once more, step by step, and says what failed."
        worst: Severity = "critical" if severity == "critical" else "warning"
        yield Problem(kind, worst, ("backend", name), words, do, ("failures", name), tenant, since)


def _who(failed: BackendFailure) -> str:
    if failed.kind != DENIED:
        return "A process of"
    return "A call of" if failed.tool is None else f"The tool {failed.tool} of"


def of_processes(processes: Collection[BackendProcess]) -> Iterator[Problem]:
    """Those that have nearly used up their memory: the largest of each backend."""
    largest = dict[Key, BackendProcess]()
    for process in processes:
        known, most = largest.get(process.spec.key), process.spec.limits.memory_mb
        if most is None or process.resident_bytes < NEAR * most * MIB or not process.id:
            continue
        if known is None or process.resident_bytes > known.resident_bytes:
            largest[process.spec.key] = process
    for (tenant, name), process in largest.items():
        used, most = process.resident_bytes / MIB, process.spec.limits.memory_mb
        words = f"A process of the backend {name} uses {used:,.0f} of its {most:,} MiB (pid {process.pid})."
        do = "It is killed at the limit. See how it grows and whom it serves; end that, or raise limits.memory_mb."
        about = ("backend", name.removesuffix(SUFFIX))
        yield Problem("memory_near", "warning", about, words, do, ("process", process.id), tenant)


def of_tenants(gates: Iterable[tuple[str, TenantGate]], budgets: TenantBudgets) -> Iterator[Problem]:
    """Limits of tenants that are used up."""
    for tenant, gate in gates:
        uses = {
            "sessions": (gate.sessions + gate.remote_sessions, gate.limits.sessions),
            "in_flight": (gate.in_flight + gate.remote_in_flight, gate.limits.in_flight),
        }
        for name, (used, most) in uses.items():
            if most and used >= most:
                words = f"The tenant {tenant} has used up its limit {name}: {used} of {most}. More are refused."
                do = f"End some, or have a platform administrator raise limits.{name}."
                see = ("sessions", "")
                yield Problem("limit_reached", "warning", ("limit", name), words, do, see, tenant)
    for tenant in budgets.memory():
        most_bytes, total = budgets.memory_limit(tenant), budgets.memory_of(tenant).total
        if most_bytes and total >= NEAR * most_bytes:
            words = f"The processes of the tenant {tenant} use {total / MIB:,.0f} of its {most_bytes / MIB:,.0f} MiB."
            do = "Above the limit its largest process is killed. See what grows; end it, or raise limits.memory_mb."
            yield Problem("tenant_memory", "warning", ("limit", "memory_mb"), words, do, ("processes", ""), tenant)


def of_refusals(refusals: Iterable[tuple[RefusedTo, Happened]]) -> Iterator[Problem]:
    """Limits that have refused somebody lately."""
    for who, happened in refusals:
        often = f"{happened.times:,} requests" if happened.times > 1 else "A request"
        whose = f" of {who.principal}" if who.principal else ""
        words = (
            f"{often}{whose} {'were' if happened.times > 1 else 'was'} refused by the limit {who.limit} of the {who.of}"
        )
        reached = happened.reached
        if reached is not None:
            words += f" ({reached.allowed:g})"
        do = "See what it does, and whether it should." if reached is None else f"See what it does. {reached.hint()}"
        about = ("limit", f"{who.limit} {who.principal}".strip())
        see = ("keys", who.principal.removeprefix("key ")) if who.principal.startswith("key ") else ("sessions", "")
        tenant = who.tenant or None
        yield Problem("limit_refused", "warning", about, words + ".", do, see, tenant, happened.first_at)


def of_bad_credentials(tried: Iterable[tuple[str, Happened]]) -> Iterator[Problem]:
    """Addresses that send many bad credentials."""
    for address, happened in tried:
        if happened.times >= MANY_CREDENTIALS:
            words = (
                f"{happened.times:,} requests with bad credentials came from {address}, the last {_clock(happened.at)}."
            )
            do = "A client with a revoked or expired key, or somebody who guesses: the log has the reasons by address."
            about = ("address", address)
            yield Problem("bad_credentials", "warning", about, words, do, ("nodes", ""), None, happened.first_at)


def of_credentials(met: Iterable[NewAddress], busy: Iterable[Busy]) -> Iterator[Problem]:
    """Credentials that are used from elsewhere, or far more than usual."""
    for new in met:
        is_most = new.requests >= MANY_REQUESTS and new.requests * 2 > new.all_requests
        words = (
            f"The {_name(new.identity)} is used from {new.address}, which is new for it: {new.requests:,} of the "
            f"{new.all_requests:,} requests that are remembered came from there."
        )
        yield _of_credential("new_address", "critical" if is_most else "info", new.identity, words, new.since)
    for each in busy:
        words = (
            f"The {_name(each.identity)} is used far more than usual: {each.requests:,} requests in a minute, "
            f"usually {each.usual:,.0f}."
        )
        yield _of_credential("key_busy", "warning", each.identity, words, each.since)


def _of_credential(kind: str, severity: Severity, identity: tuple[str, str, str], words: str, since: float) -> Problem:
    if identity[1] == KEY_ISSUER:
        about, see = ("key", identity[2]), ("keys", identity[2])
        do = "If that is not its owner, switch the key off, which ends its sessions; make another one, and revoke it."
    else:
        about, see = ("principal", identity[2]), ("sessions", "")
        do = "If that is not its owner, switch the principal off, which ends its sessions."
    return Problem(kind, severity, about, words, do, see, identity[0], since)


def of_sandbox(view: SandboxView) -> Iterator[Problem]:
    """What this node does not enforce."""
    profile = view.networks.get("none")
    missing = [] if profile is None else sorted(_MUST_HOLD.difference(profile.enforced))
    if profile is not None and missing:
        why = "; ".join(sorted({profile.missing[name] for name in missing if name in profile.missing}))
        words = f"The sandbox of backends does not enforce {' and '.join(missing)} on this node" + (
            f": {why}." if why else "."
        )
        do = "`trunkline doctor` on that machine says what it lacks."
        about = ("node", view.node)
        yield Problem("sandbox_weak", "warning", about, words, do, ("node", view.node))


def _name(identity: tuple[str, str, str]) -> str:
    return f"key {identity[2]}" if identity[1] == KEY_ISSUER else f"principal {identity[2]} of {identity[1]}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("at %H:%M:%S UTC")
