"""Signs of trouble: what is seen in the things of a node, in words that name the thing."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from app.auth.credential_uses import Busy, NewAddress
from app.backends.failures import BackendFailure
from app.backends.inventory import BackendSnapshot
from app.cluster.node_status.problems import signs
from app.domain import BackendSpec, Limits, ProcessLimits
from app.domain.resources.backends import Connect
from app.errors import LimitReached
from app.jail.sandbox.report import ProfileView, SandboxView
from app.limits.lately import Happened, RefusedTo
from app.limits.tenant_budgets import MIB, MemoryUse, TenantBudgets
from app.limits.tenant_limits import TenantGate
from app.telemetry.metrics import Metrics
from tests.certificates import authority, issued

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW = AT.timestamp()
KEY, USER = ("acme", "key", "K1"), ("acme", "https://idp", "zoe")
FAILURE = BackendFailure("exited", "exit status 3", True, 1, AT, AT, "n1")


def test_an_open_breaker_names_the_backend_and_why():
    failures = {("acme", "billing"): FAILURE}
    (found,) = signs.of_backends({("acme", "billing"): BackendSnapshot(breaker_open=True)}, failures)
    assert (found.kind, found.severity, found.tenant) == ("breaker_open", "critical", "acme")
    assert found.see == found.about == ("backend", "billing")
    assert "exit status 3" in found.words


def test_callers_that_wait_are_counted_and_what_works_is_no_problem():
    (found,) = signs.of_backends({("acme", "a"): BackendSnapshot(waiting=3), ("acme", "b"): BackendSnapshot()}, {})
    assert (found.kind, found.about) == ("callers_waiting", ("backend", "a"))
    assert found.words.startswith("3 callers")


def test_a_certificate_that_expires_soon_is_named_once_for_its_backend():
    root, soon = authority(), issued(authority("another"), "ours.example", days=5)
    specs = [
        BackendSpec("acme", name, "", url="https://far.example/", connect=Connect(ca=ca))
        for name, ca in (("a", soon.pem * 2), ("b", root.pem), ("c", None))
    ]
    (found,) = signs.of_certificates(specs, datetime.now(UTC).timestamp())
    assert (found.kind, found.severity, found.tenant) == ("backend_certificate_expires", "warning", "acme")
    assert found.see == found.about == ("backend", "a")
    assert found.words.startswith("The backend a: `connect.ca`: the certificate of CN=ours.example expires at")
    assert list(signs.of_certificates(specs[1:], datetime.now(UTC).timestamp())) == []


@pytest.mark.parametrize(
    ("failure", "kind", "severity", "words"),
    [
        (replace(FAILURE, kind="killed", limit="memory"), "killed_at_memory", "critical", "limits.memory_mb"),
        (replace(FAILURE, kind="killed", limit="disk"), "killed_at_disk", "critical", "limits.disk_mb"),
        (replace(FAILURE, kind="killed", limit="tenant_memory"), "killed_at_tenant_memory", "critical", "tenant's"),
        (replace(FAILURE, kind="timeout", tool="hang", times=4), "timeouts", "warning", "the tool hang"),
        (FAILURE, "backend_failed", "warning", "at its start: exit status 3"),
    ],
)
def test_a_failure_of_the_last_minutes_is_named_by_its_cause(failure, kind, severity, words):
    (found,) = signs.of_failures([(("acme", "a"), failure)], NOW + 60)
    assert (found.kind, found.severity, found.since, found.see) == (kind, severity, NOW, ("failures", "a"))
    assert words in found.words
    assert list(signs.of_failures([(("acme", "a"), failure)], NOW + signs.LATELY_S + 1)) == []


def test_whoever_was_not_started_has_no_stderr_to_be_read():
    for kind, word in (("not_started", "Check it"), ("exited", "stderr")):
        (found,) = signs.of_failures([(("acme", "a"), replace(FAILURE, kind=kind))], NOW + 60)
        assert word in found.do


def process(name: str, mib: int, most: int | None = 100) -> Any:
    spec = BackendSpec("acme", name, "cat", limits=ProcessLimits(memory_mb=most))
    return SimpleNamespace(id=f"{name}-{mib}", pid=7, spec=spec, resident_bytes=mib * MIB)


def test_the_largest_process_near_its_memory_is_named():
    few = [process("a", 84), process("b", 90), process("b", 95), process("c", 900, None)]
    (found,) = signs.of_processes(few)
    assert (found.about, found.see) == (("backend", "b"), ("process", "b-95"))
    assert "95 of its 100 MiB" in found.words


def test_a_tenant_at_its_limits_is_named():
    metrics = Metrics("test")
    gate, budgets = TenantGate(Limits(sessions=1, in_flight=5), metrics, tenant="acme"), TenantBudgets(metrics)
    assert list(signs.of_tenants([("acme", gate)], budgets)) == []
    gate.open_session(KEY)
    budgets.know("acme", Limits(memory_mb=100))
    budgets.note_memory({"acme": MemoryUse(90 * MIB, 90 * MIB)})
    sessions, memory = signs.of_tenants([("acme", gate)], budgets)
    assert (sessions.about, memory.about) == (("limit", "sessions"), ("limit", "memory_mb"))
    assert "1 of 1" in sessions.words
    assert "90 of its 100 MiB" in memory.words


def test_a_refusal_names_who_ran_into_which_limit():
    reached = LimitReached.of_tenant("requests_per_second", "acme", 50, None)
    who = RefusedTo("acme", "requests_per_second", "tenant", "key K1")
    (found,) = signs.of_refusals([(who, Happened(NOW, NOW + 5, 1200, reached))])
    assert found.words == "1,200 requests of key K1 were refused by the limit requests_per_second of the tenant (50)."
    assert (found.see, found.tenant, found.since) == (("keys", "K1"), "acme", NOW)
    assert "PATCH /api/v1/tenants/acme" in found.do


def test_only_many_bad_credentials_from_one_address_are_a_problem():
    tried = [("192.0.2.1", Happened(NOW, NOW, 3)), ("192.0.2.2", Happened(NOW, NOW, signs.MANY_CREDENTIALS))]
    (found,) = signs.of_bad_credentials(tried)
    assert (found.about, found.tenant) == (("address", "192.0.2.2"), None)


def test_a_key_that_is_used_from_elsewhere_is_critical_if_most_of_its_requests_come_from_there():
    few, most = NewAddress(KEY, "192.0.2.9", 5, 1000, NOW), NewAddress(KEY, "192.0.2.9", 900, 1000, NOW)
    user = NewAddress(USER, "192.0.2.9", 900, 1000, NOW)
    little, much, theirs = signs.of_credentials([few, most, user], [])
    assert (little.severity, much.severity) == ("info", "critical")
    assert (much.about, much.see, much.tenant) == (("key", "K1"), ("keys", "K1"), "acme")
    assert "The key K1 is used from 192.0.2.9" in much.words
    assert "900 of the 1,000" in much.words
    assert theirs.about == ("principal", "zoe")


def test_a_key_that_is_used_far_more_than_usual_says_how_much():
    (found,) = signs.of_credentials([], [Busy(KEY, 6000, 12.0, NOW)])
    assert (found.kind, found.about) == ("key_busy", ("key", "K1"))
    assert "6,000 requests in a minute, usually 12" in found.words


def test_a_weak_sandbox_says_what_it_lacks_and_why():
    weak = ProfileView(1, "base", "none", ["files"], {"network": "no namespaces", "processes": "no namespaces"})
    (found,) = signs.of_sandbox(SandboxView("n1", {"none": weak}))
    assert found.words == (
        "The sandbox of backends does not enforce network and processes on this node: no namespaces."
    )
    strong = replace(weak, enforced=["files", "network", "processes"])
    assert list(signs.of_sandbox(SandboxView("n1", {"none": strong}))) == []
