"""NodeOverview: the live objects as values, of one tenant at a time."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from app.backends.checks.backend_check import CheckResult
from app.backends.checks.steps import Steps
from app.cluster.node_status.listing import Listing, Use, Window
from app.cluster.node_status.overview import NodeOverview
from app.domain import BackendSpec, Limits, Principal, public_id
from app.jail.sandbox.report import SandboxView
from app.limits.tenant_budgets import TenantBudgets
from app.protocol.commands import Listen
from app.protocol.jsonrpc import parse_backend
from app.telemetry.metrics import Metrics
from tests.sessions.fakes import FakePool

NO_SANDBOX = SandboxView("n1", {})


@pytest.fixture
def overview(registry: Any, pool: FakePool) -> NodeOverview:
    nothing: Any = SimpleNamespace(processes=[], watch=lambda: None)
    typed_pool: Any = pool
    return NodeOverview("n1", "test", registry, typed_pool, nothing, TenantBudgets(Metrics("test")), NO_SANDBOX)


@pytest.mark.parametrize(
    ("is_removed", "why"), [(False, "a template was made"), (True, "it was changed or removed meanwhile")]
)
async def test_a_backend_that_is_removed_while_it_is_checked_gets_no_template(registry, monkeypatch, is_removed, why):
    """It was kept for half an hour, with the environment of the backend."""
    spec = BackendSpec("acme", "echo", "python", start="fork")
    known: list[BackendSpec | None] = [spec]

    async def settled(asked: BackendSpec) -> str:
        return "a template was made"

    async def check_backend(*parts: object) -> CheckResult:
        if is_removed:
            known[0] = None
        return CheckResult()

    monkeypatch.setattr("app.cluster.node_status.overview.check_backend", check_backend)
    pool: Any = SimpleNamespace(spec_of=lambda key: known[0])
    supervisor: Any = SimpleNamespace(processes=[], forking=SimpleNamespace(settled=settled))
    overview = NodeOverview("n1", "test", registry, pool, supervisor, TenantBudgets(Metrics("test")), NO_SANDBOX)
    assert (await overview.check(spec, Limits(), Steps())).start_reason == why


async def test_a_session_is_shown_to_its_tenant_under_a_public_id_and_ended_by_it(overview, registry, principal):
    session = await registry.open(principal, "acme", "echo", "streamable")
    session.address = "192.0.2.1"
    ((shown,), total) = (listing := overview.sessions("acme", Window())).rows, listing.total
    assert shown.id == public_id(session.id)
    assert len(shown.id) == 12
    assert shown.id not in session.id
    assert (shown.tenant, shown.backend, shown.subject, shown.process) == ("acme", "echo", "k1", None)
    assert (shown.address, shown.client_name, shown.use, total) == ("192.0.2.1", None, Use(), 1)
    assert overview.sessions("zenith", Window()) == Listing([], 0)
    for tenant, window in ((None, Window()), ("acme", Window(only=shown.id)), (None, Window(backend="echo"))):
        assert [
            replace(each, age_s=shown.age_s, idle_s=shown.idle_s) for each in overview.sessions(tenant, window).rows
        ] == [shown]
    assert overview.sessions("acme", Window(only="other")).rows == []
    assert overview.sessions("acme", Window(backend="other")) == Listing([], 0)
    for tenant, name in (("zenith", shown.id), ("acme", session.id), ("acme", "")):
        assert not overview.end_session(tenant, name)
    assert overview.status().sessions == 1
    assert overview.end_session("acme", shown.id)
    assert not overview.end_session("acme", shown.id)
    assert overview.status().sessions == 0
    assert overview.processes("acme", Window()) == Listing([], 0)
    assert overview.stderr("acme", "p", 1) is None


async def test_what_a_tenant_has_taken_of_its_limits_is_counted_as_they_are(overview, registry, pool, principal):
    bob = Principal("acme", "key", "bob", frozenset())
    for each in (principal, principal, bob):
        session = await registry.open(each, "acme", "echo", "streamable")
    session.gate.begin_call(time.monotonic())
    pool.counts["acme"] = 2
    use = overview.limits_use("acme")
    assert (use.sessions, use.processes, use.in_flight, use.sessions_of_one) == (3, 2, 1, 2)
    assert "bob" not in str(use)
    assert overview.limits_use("zenith").sessions == 0
    session.gate.end_call()


async def test_a_node_that_drains_says_so(overview, registry):
    assert not overview.status().draining
    await registry.drain(0)
    assert overview.status().draining


async def test_sessions_of_several_principals_are_in_order_of_their_ids(overview, registry):
    for number in range(4):
        await registry.open(Principal("acme", "key", f"k{number}", frozenset()), "acme", "echo", "sse")
    ids = [each.id for each in overview.sessions("acme", Window()).rows]
    assert ids == sorted(ids)
    assert len(set(ids)) == 4


async def test_what_runs_is_measured_more_often_while_somebody_looks(registry, pool):
    looks: list[int] = []
    supervisor: Any = SimpleNamespace(processes=[], watch=lambda: looks.append(1))
    overview = NodeOverview(
        "n1", "test", registry, pool, supervisor, TenantBudgets(Metrics("test")), NO_SANDBOX, lambda: 12
    )
    overview.processes(None, Window())
    overview.sessions("acme", Window())
    overview.use(None, Window())
    load = overview.load()
    assert len(looks) == 4
    assert (load.node, load.connections, load.calls, load.refuses) == ("n1", 12, 0, None)


@pytest.mark.parametrize(
    ("info", "shown"),
    [
        (b'{"name":"cursor","version":"1.2"}', ("cursor", "1.2")),
        (b'{"name":"a\\u001b[2Jb","version":3}', ("a?[2Jb", None)),
        (b'{"name":"' + b"x" * 100 + b'"}', ("x" * 80, None)),
        (b"[]", (None, None)),
    ],
)
async def test_the_program_of_a_client_is_what_it_calls_itself(overview, registry, principal, info, shown):
    session = await registry.open(principal, "acme", "echo", "modern")
    session.client_info = msgspec.Raw(info)
    (row,) = overview.sessions(None, Window()).rows
    assert (row.client_name, row.client_version) == shown


async def test_the_use_of_a_tenant_is_that_of_its_open_sessions(overview, registry, pool, principal):
    sessions = [await registry.open(principal, "acme", "echo", "streamable") for _ in range(3)]
    for session in sessions[:2]:
        await registry.connect(session)
    for session, times in zip(sessions[:2], (2, 3), strict=True):
        session.connection.handshake_succeeded()
        for number in range(times):
            message = parse_backend(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % number)
            session.calls.begin(message, Listen.STREAM, time.monotonic(), is_own=False)
    (row,) = overview.use(None, Window()).rows
    assert (row.tenant, row.sessions, row.use.calls, row.use.calls_total) == ("acme", 3, 5, 5)
    sessions[0].close("deleted")
    (row,) = overview.use(None, Window()).rows
    assert (row.sessions, row.use.calls, row.use.calls_total) == (2, 3, 3)
