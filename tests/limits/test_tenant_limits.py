"""TenantGate: exact caps, and places that come back."""

import time

import pytest

from app.domain import Limits
from app.errors import QuotaExceeded, RateLimited
from app.limits.tenant_limits import MAX_LINGERING, TenantGate, TenantGates
from app.telemetry.metrics import Metrics

ALICE, BOB = ("acme", "key", "alice"), ("acme", "key", "bob")


def gate(**limits: float | None) -> TenantGate:
    nothing = dict.fromkeys(("sessions", "processes", "requests_per_second", "burst", "memory_mb"))
    return TenantGate(Limits(**{**nothing, **limits}), Metrics("test"), tenant="acme")  # type: ignore[arg-type]


def test_sessions_are_counted_exactly() -> None:
    one = gate(sessions=2)
    one.open_session(ALICE)
    one.open_session(BOB)
    with pytest.raises(QuotaExceeded) as caught:
        one.open_session(ALICE)
    assert caught.value.limit == "sessions"
    assert str(caught.value) == "the tenant acme has 2 sessions open; its limit is 2"
    assert caught.value.facts == {"limit": "sessions", "limit_of": "tenant", "allowed": 2, "used": 2}
    assert "PATCH /api/v1/tenants/acme" in (caught.value.hint or "")
    one.close_session(BOB)
    one.open_session(ALICE)


def test_one_principal_cannot_take_them_all() -> None:
    one = gate(sessions_per_principal=1)
    one.open_session(ALICE)
    with pytest.raises(QuotaExceeded) as caught:
        one.open_session(ALICE)
    assert caught.value.limit == "sessions_per_principal"
    assert caught.value.reached is not None
    assert (caught.value.reached.of, caught.value.reached.allowed, caught.value.reached.used) == ("principal", 1, 1)
    one.open_session(BOB)


def test_calls_in_flight_are_counted_exactly() -> None:
    one = gate(in_flight=1)
    one.begin_call(0.0)
    with pytest.raises(QuotaExceeded) as caught:
        one.begin_call(0.0)
    assert caught.value.facts == {"limit": "in_flight", "limit_of": "tenant", "allowed": 1, "used": 1}
    one.end_call()
    one.begin_call(0.0)


def test_steps_of_recipes_take_places_and_are_no_calls_of_clients() -> None:
    one = gate(in_flight=2)
    one.begin_call(0.0)
    one.begin_step(0.0)
    with pytest.raises(QuotaExceeded):
        one.begin_step(0.0)
    assert (one.calls, one.in_flight) == (1, 2)
    one.end_step()
    one.end_call()
    assert (one.calls, one.in_flight) == (0, 0)


def test_calls_are_those_of_the_sessions_that_are_open() -> None:
    one = gate()
    for identity in (ALICE, BOB):
        one.open_session(identity)
    for _ in range(3):
        one.call_sent()
    one.close_session(ALICE, begun=2)
    assert one.begun == 1


def test_a_call_that_comes_too_fast_takes_no_place() -> None:
    one = gate(requests_per_second=1.0, burst=1, in_flight=5)
    start = time.monotonic()
    one.begin_call(start)
    with pytest.raises(RateLimited) as caught:
        one.begin_call(start)
    assert 0 < (caught.value.retry_after_s or 0) <= 1
    assert one.in_flight == 1


def test_no_limit_is_no_limit() -> None:
    one = gate()
    for _ in range(1000):
        one.open_session(ALICE)
        one.begin_call(0.0)


def test_a_changed_limit_acts_on_what_comes_next() -> None:
    gates = TenantGates(Metrics("test"))
    one = gates.of("acme", Limits(sessions=1))
    one.open_session(ALICE)
    gates.configure("acme", Limits(sessions=2))
    one.open_session(ALICE)
    assert gates.of("acme", Limits(sessions=2)) is one


def test_a_gate_without_sessions_is_forgotten() -> None:
    gates = TenantGates(Metrics("test"))
    one = gates.of("acme", Limits())
    one.open_session(ALICE)
    gates.drop_unused("acme")
    assert gates.of("acme", Limits()) is one
    one.close_session(ALICE)
    gates.drop_unused("acme")
    assert gates.of("acme", Limits()) is not one


def test_nobody_gets_a_new_burst_by_closing_his_sessions() -> None:
    gates = TenantGates(Metrics("test"))
    slow = Limits(requests_per_second=0.01, burst=1)  # the next may come when no machine stands still any more
    one = gates.of("acme", slow)
    one.open_session(ALICE)
    one.check_rate(time.monotonic())
    one.close_session(ALICE)
    gates.drop_unused("acme")
    with pytest.raises(RateLimited):
        gates.of("acme", slow).check_rate(time.monotonic())


def test_tenant_limits_without_sessions_do_not_pile_up() -> None:
    gates = TenantGates(Metrics("test"))
    for number in range(1000):
        one = gates.of(f"t{number}", Limits(requests_per_second=1e9, burst=100))
        one.open_session(ALICE)
        one.check_rate(time.monotonic())
        one.close_session(ALICE)
        gates.drop_unused(f"t{number}")
    assert len(list(gates)) <= MAX_LINGERING + 1


def test_calls_on_other_nodes_count() -> None:
    gates = TenantGates(Metrics("test"))
    one = gates.of("acme", Limits(in_flight=2))
    gates.note_remote_use({"acme": 1}, {"acme": 4})
    one.begin_call(time.monotonic())
    with pytest.raises(QuotaExceeded):
        one.begin_call(time.monotonic())
    gates.note_remote_use({}, {})
    one.begin_call(time.monotonic())
