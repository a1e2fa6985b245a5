"""How many tenants have used a limit up, or are about to; and the node."""

import pytest

from app.domain import Limits
from app.limits.tenant_limits import TenantGates
from app.limits.use_metrics import show_use
from app.telemetry.metrics import Metrics

ALICE = ("acme", "key", "alice")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("test")


@pytest.fixture
def gates(metrics: Metrics) -> TenantGates:
    gates = TenantGates(metrics)
    show_use(metrics, gates, {"acme": 4, "idle": 1}.__getitem__, {"node_sessions": lambda: (7, 10)})
    gates.of("idle", Limits(sessions=5, processes=5, requests_per_second=None))
    return gates


def tenants(metrics: Metrics, limit: str) -> tuple[float | None, float | None]:
    """Near it, at it."""
    near, at = "trunkline_tenants_near_limit", "trunkline_tenants_at_limit"
    value = metrics.registry.get_sample_value
    return value(near, {"limit": limit}), value(at, {"limit": limit})


def test_a_tenant_is_near_its_limit_before_it_is_at_it(metrics: Metrics, gates: TenantGates) -> None:
    gate = gates.of("acme", Limits(sessions=5, processes=None, requests_per_second=None))
    for _ in range(3):
        gate.open_session(ALICE)
    assert tenants(metrics, "sessions") == (0, 0)
    gates.note_remote_use({}, {"acme": 1})
    assert tenants(metrics, "sessions") == (1, 0)
    gates.note_remote_use({}, {"acme": 2})
    assert tenants(metrics, "sessions") == (1, 1)


def test_processes_and_calls_count_as_well(metrics: Metrics, gates: TenantGates) -> None:
    gate = gates.of("acme", Limits(sessions=None, processes=4, in_flight=2, requests_per_second=None))
    gate.begin_call(0.0)
    assert tenants(metrics, "processes") == (1, 1)
    assert tenants(metrics, "in_flight") == (0, 0)
    gates.note_remote_use({"acme": 1}, {})
    assert tenants(metrics, "in_flight") == (1, 1)


@pytest.mark.parametrize("allowed", [None, 0])
def test_what_has_no_limit_or_may_have_nothing_is_not_full(
    metrics: Metrics, gates: TenantGates, allowed: int | None
) -> None:
    gates.of("acme", Limits(sessions=allowed, processes=allowed, in_flight=allowed))
    assert {tenants(metrics, limit) for limit in ("sessions", "processes", "in_flight")} == {(0, 0)}


def test_the_nodes_own_limits_stand_beside_their_use(metrics: Metrics, gates: TenantGates) -> None:
    assert metrics.registry.get_sample_value("trunkline_node_used", {"limit": "node_sessions"}) == 7
    assert metrics.registry.get_sample_value("trunkline_node_limit", {"limit": "node_sessions"}) == 10
