"""What the pool decides, as arithmetic."""

import math

from app.backends._plan import (
    BUSY_LOOK_S,
    BackendNumbers,
    EndUnused,
    HandOut,
    NodeNumbers,
    Reclaim,
    Start,
    Stop,
    TenantNumbers,
    View,
    make_plan,
)  # fmt: skip

A, B, C = ("acme", "a"), ("acme", "b"), ("globex", "c")


def decide(backends, waiting=(), *, node=None, tenants=None, now=100.0, unused=()):
    view = View(
        now=now,
        node=node or NodeNumbers(limit=100),
        tenants={"acme": TenantNumbers(None), "globex": TenantNumbers(None)} | (tenants or {}),
        backends=backends,
        waiting=list(waiting),
        unused=unused,
    )
    return make_plan(view)


def test_a_warm_process_is_handed_out():
    backends = {A: BackendNumbers(10, alive=1, warm=1, warm_target=1, refill_at=200.0)}
    assert decide(backends, [A]).actions == [HandOut(0)]


def test_without_a_warm_one_a_process_is_started_once_for_each_caller():
    assert decide({A: BackendNumbers(10)}, [A, A]).actions == [Start(A), Start(A)]
    assert decide({A: BackendNumbers(10, alive=1, starting=1)}, [A, A]).actions == [Start(A)]


def test_a_backend_keeps_its_maximum():
    assert decide({A: BackendNumbers(3, alive=2)}, [A, A]).actions == [Start(A), Reclaim(A, 1)]
    assert decide({A: BackendNumbers(3, alive=3)}, [A]).actions == [Reclaim(A, 1)]


def test_a_tenant_keeps_its_limit_even_before_warm_processes():
    backends = {A: BackendNumbers(10, alive=5, warm=5, warm_target=5), C: BackendNumbers(10)}
    plan = decide(backends, [A, A, C], tenants={"acme": TenantNumbers(3, used=2)})
    assert plan.actions == [HandOut(0), Start(C), Reclaim(A, 1)]


def test_starts_under_way_count_for_their_tenant():
    backends = {A: BackendNumbers(10, alive=1, starting=1)}
    assert decide(backends, [A, A], tenants={"acme": TenantNumbers(1, used=0)}).actions == [Reclaim(A, 1)]


def test_only_a_few_start_at_once():
    plan = decide({A: BackendNumbers(100)}, [A] * 20, node=NodeNumbers(limit=100, alive=3, starting=3, max_starting=8))
    assert plan.actions == [Start(A)] * 5


def test_a_full_node_stops_warm_processes_of_others_one_for_each_caller():
    backends = {A: BackendNumbers(10), B: BackendNumbers(10, alive=4, warm=4, warm_target=4)}
    assert decide(backends, [A, A], node=NodeNumbers(limit=4, alive=4)).actions == [Stop(B), Stop(B)]


def test_a_process_that_is_stopping_already_makes_room():
    backends = {A: BackendNumbers(10), B: BackendNumbers(10, alive=4, warm=4, warm_target=4)}
    assert decide(backends, [A], node=NodeNumbers(limit=5, alive=5, stopping=1)).actions == []


def test_a_warm_process_that_somebody_waits_for_is_not_stopped_for_another():
    backends = {A: BackendNumbers(10), B: BackendNumbers(10, alive=1, warm=1, warm_target=1)}
    assert decide(backends, [A, B], node=NodeNumbers(limit=1, alive=1)).actions == [HandOut(1), Reclaim(A, 1)]


def test_one_backends_full_house_does_not_hold_up_the_next_in_line():
    backends = {A: BackendNumbers(1, alive=1), B: BackendNumbers(10)}
    assert decide(backends, [A, B]).actions == [Start(B), Reclaim(A, 1)]


def test_surplus_is_stopped():
    assert decide({A: BackendNumbers(10, alive=3, warm=3, warm_target=1)}).actions == [Stop(A), Stop(A)]


def test_refilling_goes_one_at_a_time():
    backends = {A: BackendNumbers(10, warm_target=5), B: BackendNumbers(10, warm_target=5)}
    assert decide(backends).actions == [Start(A, is_refill=True)]
    assert decide(backends, node=NodeNumbers(limit=100, alive=1, starting=1)).actions == []


def test_refilling_waits_for_its_time_and_says_when():
    plan = decide(
        {A: BackendNumbers(10, warm_target=5, refill_at=100.2), B: BackendNumbers(9, warm_target=1, refill_at=100.1)}
    )
    assert plan.actions == []
    assert plan.look_again_at == 100.1


def test_refilling_waits_while_the_node_is_busy_but_not_for_longer_than_its_time():
    busy = NodeNumbers(limit=100, is_busy=True)
    stock = BackendNumbers(10, warm_target=5, refill_at=99.0, refill_by=104.0, is_filled=True)
    made = decide({A: stock}, node=busy, now=100.0)
    assert (made.actions, made.look_again_at) == ([], 100.0 + BUSY_LOOK_S)
    made = decide({A: stock}, node=busy, now=103.9)
    assert (made.actions, made.look_again_at) == ([], 104.0)
    assert decide({A: stock}, node=busy, now=104.0).actions == [Start(A, is_refill=True)]
    assert decide({A: stock}, now=100.0).actions == [Start(A, is_refill=True)]


def test_the_first_filling_does_not_wait_for_a_busy_node():
    made = decide({A: BackendNumbers(10, warm_target=5)}, node=NodeNumbers(limit=100, is_busy=True))
    assert made.actions == [Start(A, is_refill=True)]


def test_refilling_waits_for_quiet_but_not_for_longer_than_its_time():
    stock = BackendNumbers(10, warm_target=5, refill_at=100.1, refill_by=100.0, is_filled=True)
    assert decide({A: stock}).actions == [Start(A, is_refill=True)]


def test_refilling_waits_while_somebody_waits_for_a_start():
    backends = {A: BackendNumbers(10), B: BackendNumbers(10, warm_target=5)}
    assert decide(backends, [A]).actions == [Start(A)]


def test_refilling_stays_within_the_limits():
    full = {A: BackendNumbers(3, alive=3, warm=1, warm_target=2)}
    assert decide(full).actions == []
    assert decide({A: BackendNumbers(9, warm_target=2)}, node=NodeNumbers(limit=5, alive=5)).actions == []


def test_the_breaker_holds_starts_back_but_not_what_is_warm():
    backends = {A: BackendNumbers(10, alive=1, warm=1, warm_target=2, start_allowance=0)}
    assert decide(backends, [A, A]).actions == [HandOut(0)]


def test_a_process_handed_out_counts_against_the_allowance():
    backends = {A: BackendNumbers(50, alive=8, warm=8, start_allowance=8)}
    plan = decide(backends, [A] * 20)
    assert plan.actions == [HandOut(place) for place in range(8)]


# --- room that idle sessions can make


def test_who_waits_for_a_process_of_a_full_backend_asks_for_an_idle_session_of_it():
    made = decide({A: BackendNumbers(max_processes=2, alive=2)}, [A, A])
    assert made.actions == [Reclaim(A, 2)]


def test_a_process_that_stops_already_makes_room_for_one():
    made = decide({A: BackendNumbers(max_processes=2, alive=2, stopping=1)}, [A, A])
    assert made.actions == [Reclaim(A, 1)]


def test_a_full_tenant_asks_for_sessions_of_the_backend_that_is_waited_for():
    backends = {A: BackendNumbers(10, alive=1), B: BackendNumbers(10, alive=1)}
    made = decide(backends, [A, B], tenants={"acme": TenantNumbers(2, used=2, stopping=1)})
    assert made.actions == [Reclaim(B, 1)]


def test_a_full_node_stops_warm_processes_first_and_asks_for_sessions_then():
    node = NodeNumbers(limit=3, alive=3)
    backends = {A: BackendNumbers(10, alive=2), C: BackendNumbers(10, alive=1, warm=1, warm_target=1)}
    assert decide(backends, [A], node=node).actions == [Stop(C)]
    assert decide(backends, [A, A], node=node).actions == [Stop(C), Reclaim(A, 1)]


def test_nobody_is_ended_for_who_waits_for_a_start_or_for_a_broken_command():
    assert decide({A: BackendNumbers(10, alive=1, starting=1)}, [A]).actions == []
    assert decide({A: BackendNumbers(10, alive=1, start_allowance=0)}, [A]).actions == []


# --- what a tenant may start: by its rate, and by its memory


def starts(left, next_at=101.0):
    return {"acme": TenantNumbers(None, starts_left=left, next_start_at=next_at)}


def test_no_more_is_started_than_the_tenant_may_start_and_the_plan_says_when_the_next_is():
    backends = {A: BackendNumbers(10), B: BackendNumbers(10), C: BackendNumbers(10)}
    made = decide(backends, [A, B, C, A], tenants=starts(1))
    assert (made.actions, made.look_again_at) == ([Start(A), Start(C)], 101.0)


def test_who_waits_for_the_tenants_rate_gets_what_is_warm_and_ends_nobodys_session():
    backends = {A: BackendNumbers(10, alive=1, warm=1, warm_target=1), B: BackendNumbers(10, alive=1)}
    assert decide(backends, [A, B], tenants=starts(0)).actions == [HandOut(0)]
    assert decide({B: BackendNumbers(10, alive=1, starting=1)}, [B], tenants=starts(0)).actions == []


def test_who_waits_for_the_tenants_rate_stops_no_warm_process_of_a_full_node():
    backends = {A: BackendNumbers(10), C: BackendNumbers(10, alive=1, warm=1, warm_target=1)}
    assert decide(backends, [A], node=NodeNumbers(limit=1, alive=1), tenants=starts(0)).actions == []


def test_refilling_waits_for_the_tenants_rate_and_not_for_that_of_others():
    backends = {A: BackendNumbers(10, warm_target=1), C: BackendNumbers(10, warm_target=1)}
    made = decide(backends, tenants=starts(0))
    assert (made.actions, made.look_again_at) == ([Start(C, is_refill=True)], 101.0)
    made = decide({A: BackendNumbers(10), C: BackendNumbers(10, warm_target=1)}, [A], tenants=starts(0))
    assert made.actions == [Start(C, is_refill=True)]


def test_what_no_time_brings_back_is_not_waited_for():
    made = decide({A: BackendNumbers(10)}, [A], tenants=starts(0, math.inf))
    assert (made.actions, made.look_again_at) == ([], None)


def test_what_the_node_is_short_of_is_looked_at_again() -> None:
    short = NodeNumbers(limit=3, alive=3, is_short=True)
    assert decide({A: BackendNumbers(9)}, [A], node=short).look_again_at is not None
    assert decide({A: BackendNumbers(9, warm_target=1)}, node=short).look_again_at is not None
    assert decide({A: BackendNumbers(9)}, [A], node=NodeNumbers(limit=3, alive=3)).look_again_at is None


# --- room that shared processes without sessions make


def test_a_full_node_ends_shared_processes_that_nobody_uses_after_the_warm_ones():
    backends = {A: BackendNumbers(10), B: BackendNumbers(10, alive=1, warm=1, warm_target=1)}
    plan = decide(backends, [A] * 4, node=NodeNumbers(limit=4, alive=4), unused=["globex", "acme"])
    assert plan.actions == [Stop(B), EndUnused("globex"), EndUnused("acme"), Reclaim(A, 1)]


def test_a_tenant_at_its_limit_ends_one_of_its_own_that_nobody_uses():
    full = {"acme": TenantNumbers(2, used=2)}
    plan = decide({A: BackendNumbers(10)}, [A, A], tenants=full, unused=["globex", "acme"])
    assert plan.actions == [EndUnused("acme"), Reclaim(A, 1)]
    stopping = {"acme": TenantNumbers(2, used=2, stopping=1)}
    assert decide({A: BackendNumbers(10)}, [A], tenants=stopping, unused=["acme"]).actions == []


def test_nobody_ends_a_shared_process_to_have_more_of_a_backend():
    assert decide({A: BackendNumbers(1, alive=1)}, [A], unused=["acme"]).actions == [Reclaim(A, 1)]
    assert decide({A: BackendNumbers(9, warm_target=1)}, node=NodeNumbers(5, alive=5), unused=["acme"]).actions == []
