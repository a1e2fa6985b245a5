"""What ends each kind of problem: the thing is made as it is when it is provoked, and then as it is when it has passed.

That what provokes and ends it is noticed is tested where it happens; kinds that the database knows in
tests/admin/resources/now/test_problems.py.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.auth.credential_uses import Busy, CredentialUses
from app.backends.failures import BackendFailure
from app.backends.inventory import BackendSnapshot
from app.cluster.node_status.problems import signs
from app.cluster.node_status.problems.nodes import LOST_S, Lost, of_others
from app.cluster.node_status.problems.problem import Problem
from app.domain import BackendSpec, Limits, Principal, ProcessLimits
from app.domain.resources.backends import Connect
from app.errors import LimitReached
from app.jail.sandbox.report import ProfileView, SandboxView
from app.limits.lately import KEPT_S, Refusals
from app.limits.tenant_budgets import MIB, MemoryUse, TenantBudgets
from app.limits.tenant_limits import TenantGate
from app.node.parts.watching import _of_node
from app.telemetry.metrics import Metrics
from tests.certificates import authority, issued
from tests.cluster.node_status.problems.test_nodes import OWN, other
from tests.cluster.node_status.problems.test_signs import FAILURE, NOW

ON_CALL = Path(__file__).resolve().parents[4] / "docs/on-call.md"
KEY = ("acme", "a")
Look = Callable[[], Iterable[Problem]]
Ends = Iterator[Look]  # yields how to look while it is so, and goes on to end it


def _backend(snapshot: BackendSnapshot) -> Ends:
    now = {KEY: snapshot}
    yield lambda: signs.of_backends(now, {})
    now[KEY] = BackendSnapshot()


def _failure(failure: BackendFailure) -> Ends:
    now = [NOW]
    yield lambda: signs.of_failures([(KEY, failure)], now[0])
    now[0] += signs.LATELY_S + 1


def _memory_near() -> Ends:
    spec = BackendSpec("acme", "a", "cat", limits=ProcessLimits(memory_mb=100))
    process: Any = SimpleNamespace(id="p", pid=7, spec=spec, resident_bytes=90 * MIB)
    yield lambda: signs.of_processes([process])
    process.resident_bytes = 50 * MIB


def _certificate() -> Ends:
    known = [
        BackendSpec("acme", "a", "", url="https://far.example/", connect=Connect(ca=each.pem))
        for each in (issued(authority(), days=5), authority())
    ]
    yield lambda: signs.of_certificates(known[:1], time.time())
    del known[0]


def _tenant(*, memory: bool) -> Ends:
    metrics = Metrics("test")
    budgets, gate = TenantBudgets(metrics), TenantGate(Limits(sessions=1), metrics, tenant="acme")
    if memory:
        budgets.know("acme", Limits(memory_mb=100))
        budgets.note_memory({"acme": MemoryUse(90 * MIB, 90 * MIB)})
    else:
        gate.sessions = 1
    yield lambda: signs.of_tenants([("acme", gate)], budgets)
    gate.sessions = 0
    budgets.note_memory({})


def _refused() -> Ends:
    now = [NOW]
    refusals = Refusals(lambda: now[0])
    refusals.limited("acme", "key K", LimitReached("sessions", "tenant", 1, 1, "a platform administrator"))
    yield lambda: signs.of_refusals(refusals.limits)
    now[0] += KEPT_S + 1


def _bad_credentials() -> Ends:
    now = [NOW]
    refusals = Refusals(lambda: now[0])
    for _ in range(signs.MANY_CREDENTIALS):
        refusals.credentials.note("192.0.2.1")
    yield lambda: signs.of_bad_credentials(refusals.credentials)
    now[0] += KEPT_S + 1


def _credential(*, is_busy: bool) -> Ends:
    uses, who = CredentialUses(clock=lambda: NOW), Principal("acme", "key", "K", frozenset())
    uses.note(who, "192.0.2.1")
    if is_busy:
        uses._busy[who.identity] = Busy(who.identity, 6000, 1.0, NOW), NOW + 1
    else:
        uses.note(who, "198.51.100.7")
    yield lambda: signs.of_credentials(uses.new_addresses(), uses.busy())
    uses.settle(lambda identity: identity == who.identity)  # switched off, or revoked


def _node(**troubles: Any) -> Ends:
    """Of what `/readyz` says too; a name with a dot in it is an attribute of that part."""
    parts = {
        "database": SimpleNamespace(problem=None, refusal=None, slowness=None),
        "redis": SimpleNamespace(problem=None, is_up=True),
        "latency": SimpleNamespace(slow_s=None),
        "overload": SimpleNamespace(sessions=None, calls=None, problem=None),
        "peers": SimpleNamespace(problems={}),
        "registry": SimpleNamespace(is_stopping=False),
    }
    watched: Any = SimpleNamespace(
        node="n1",
        records=SimpleNamespace(watch=parts["database"]),
        routes=SimpleNamespace(routing=SimpleNamespace(redis=parts["redis"], peers=parts["peers"])),
        overload=parts["overload"],
        latency=parts["latency"],
        registry=parts["registry"],
    )
    before = {part: dict(vars(each)) for part, each in parts.items()}
    for name, value in troubles.items():
        part, _, attribute = name.partition("__")
        setattr(parts[part], attribute, value)
    yield lambda: _of_node(watched)
    for part, attributes in before.items():
        vars(parts[part]).update(attributes)


def _silent() -> Ends:
    silent = ["n2"]
    yield lambda: of_others(OWN, [other()], silent)
    silent.clear()


def _releases() -> Ends:
    others = [other("1.1")]
    yield lambda: of_others(OWN, others, [])
    others[0] = other(OWN.version)


def _lost() -> Ends:
    now = [0.0]
    lost = Lost(lambda: [other()], lambda: now[0])
    yield lambda: lost.problems(["n2"])
    now[0] = LOST_S


def _weak() -> Ends:
    views = {"none": ProfileView(1, "kernel", "none", [], {})}
    yield lambda: signs.of_sandbox(SandboxView("n1", views))  # type: ignore[arg-type]
    views["none"] = replace(views["none"], enforced=["files", "network", "processes"])


SHED: Any = SimpleNamespace(mark="memory")
ENDS: dict[str, Callable[[], Ends]] = {
    "breaker_open": lambda: _backend(BackendSnapshot(breaker_open=True)),
    "callers_waiting": lambda: _backend(BackendSnapshot(waiting=1)),
    "killed_at_memory": lambda: _failure(replace(FAILURE, kind="killed", limit="memory")),
    "killed_at_disk": lambda: _failure(replace(FAILURE, kind="killed", limit="disk")),
    "killed_at_tenant_memory": lambda: _failure(replace(FAILURE, kind="killed", limit="tenant_memory")),
    "backend_failed": lambda: _failure(FAILURE),
    "timeouts": lambda: _failure(replace(FAILURE, kind="timeout", tool="a")),
    "memory_near": _memory_near,
    "backend_certificate_expires": _certificate,
    "tenant_memory": lambda: _tenant(memory=True),
    "limit_reached": lambda: _tenant(memory=False),
    "limit_refused": _refused,
    "bad_credentials": _bad_credentials,
    "new_address": lambda: _credential(is_busy=False),
    "key_busy": lambda: _credential(is_busy=True),
    "database": lambda: _node(database__problem="it does not answer"),
    "database_slow": lambda: _node(database__slowness=2.0),
    "redis": lambda: _node(redis__problem="it does not answer", redis__is_up=False),
    "redis_slow": lambda: _node(latency__slow_s=0.2),
    "overload": lambda: _node(overload__sessions=SHED, overload__problem="memory"),
    "node_stranger": lambda: _node(peers__problems={"http://10.0.0.9:8080": "another release"}),
    "node_draining": lambda: _node(registry__is_stopping=True),
    "node_silent": _silent,
    "node_releases": _releases,
    "node_lost": _lost,
    "sandbox_weak": _weak,
}
ELSEWHERE = {  # with the test of their end
    "key_expires": "admin/resources/now/test_problems.py",
    "tools_wait": "admin/resources/now/test_problems.py",
    "inspection_open": "integration/test_inspections.py",
    "certificate_expires": "node/test_certificate_files.py",
    "certificate_refused": "node/test_certificate_files.py",
}


@pytest.mark.parametrize("kind", ENDS)
def test_it_is_a_problem_while_it_is_so_and_no_longer(kind: str) -> None:
    ends = ENDS[kind]()
    look = next(ends)
    assert kind in [each.kind for each in look()]
    next(ends, None)
    assert kind not in [each.kind for each in look()]


def test_the_document_says_of_each_kind_what_ends_it() -> None:
    rows = [
        line.split("|")[1:-1]
        for line in ON_CALL.read_text().splitlines()
        if re.match(r"\| `[a-z_]+`.* (critical|warning|info)", line)
    ]
    told = {kind: row[3].strip() for row in rows for kind in re.findall(r"`([a-z_]+)`", row[0])}
    assert told.keys() == ENDS.keys() | ELSEWHERE.keys()
    assert all(told.values())
