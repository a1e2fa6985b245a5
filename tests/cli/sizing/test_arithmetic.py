"""The arithmetic of `trunkline size`, by hand."""

import math
from dataclasses import replace

import pytest

from app.cli.sizing.arithmetic import Backend, Demand, Machine, NodeCosts, answer
from app.errors import InvalidRequest

SLOW = Backend("slow", "exec", process_mib=100, start_cpu_s=0.9, start_s=1.8, call_cpu_ms=18)
NODE = NodeCosts(node_mib=124, session_kib=32, call_cpu_ms=0.5)
DEMAND = Demand(users=400, concurrent=0.5, calls_per_hour=36, arrive_min=10)
LARGE = Machine(cores=8, memory_mib=32 * 1024)


def test_processes_sessions_and_what_each_node_has_for_itself_are_added_up():
    found = answer([SLOW], DEMAND, LARGE, NODE)
    (part,) = found.parts
    assert (part.sessions, part.processes, part.memory_mib) == (200, 200, 20_000)
    assert part.starts_cores == pytest.approx(200 / 600 * 0.9)
    assert part.calls_cores == pytest.approx(200 * 36 / 3600 * 0.018)
    assert found.gateway_cores == pytest.approx(2 * 0.0005)
    assert found.cores == pytest.approx(0.3 + 0.036 + 0.001)
    assert part.warm == 2  # a third of a session comes in each second, and a process needs two until it is there
    assert found.node_mib == 124 + 2 * 100
    assert found.usable_mib == pytest.approx(0.8 * 32 * 1024 - 324)
    assert found.loads["memory"] == pytest.approx((20_000 + 200 * 32 / 1024) / found.usable_mib)
    assert (found.binds, found.needed, found.nodes) == ("memory", 1, 2)
    assert found.memory_mib == pytest.approx(20_000 + 6.25 + 324)


def test_a_fraction_of_a_user_is_one_more():
    assert replace(DEMAND, users=401).at_once == 201
    assert Demand(users=10, concurrent=0.3, calls_per_hour=1, arrive_min=1).at_once == 3


def test_twice_the_users_need_twice_the_memory_and_more_nodes():
    one, two = (answer([SLOW], replace(DEMAND, users=users), LARGE, NODE) for users in (800, 1600))
    assert two.processes_mib == 2 * one.processes_mib == 80_000
    assert (one.nodes, two.nodes) == (3, 5)


def test_a_forked_backend_has_its_template_once_on_each_node():
    forked = replace(SLOW, mode="fork", process_mib=14, fixed_mib=50, start_cpu_s=0.03, start_s=0.1)
    found = answer([forked], DEMAND, LARGE, NODE)
    assert found.processes_mib == 200 * 14
    assert found.node_mib == 124 + 50 + 2 * 14
    assert found.parts[0].starts_cores == pytest.approx(200 / 600 * 0.03)


def test_a_shared_backend_has_one_process_on_each_node_one_for_each_hundred_sessions_and_no_starts():
    shared = replace(SLOW, mode="shared", process_mib=0, fixed_mib=51)
    found = answer([shared], DEMAND, LARGE, NODE)
    (part,) = found.parts
    assert (part.processes, part.warm, part.starts_cores, found.node_mib) == (2, 0, 0, 175)
    assert part.memory_mib == 2 * 51
    assert part.calls_cores > 0


def test_parked_sessions_have_a_process_for_the_share_of_the_time_in_which_they_call():
    found = answer([replace(SLOW, park_s=60)], DEMAND, LARGE, NODE)
    (part,) = found.parts
    away = math.exp(-36 / 3600 * 60)
    assert part.processes == math.ceil(20 + 180 * (1 - away)) == 102  # a tenth has come within the last minute
    assert part.wakes_cores == pytest.approx(200 * 36 / 3600 * away * 0.9)


def test_calls_that_are_spread_over_two_backends_park_each_of_them_longer():
    other = replace(SLOW, name="other", park_s=60)
    found = answer([replace(SLOW, park_s=60), other], DEMAND, LARGE, NODE)
    assert [part.processes for part in found.parts] == [math.ceil(20 + 180 * (1 - math.exp(-0.3)))] * 2


def test_nobody_calls_and_all_but_those_who_have_just_come_are_parked():
    found = answer([replace(SLOW, park_s=60)], replace(DEMAND, calls_per_hour=0), LARGE, NODE)
    assert (found.parts[0].processes, found.needed) == (20, 1)


def test_small_machines_with_much_memory_are_bound_by_their_cores():
    found = answer([SLOW], replace(DEMAND, arrive_min=1), Machine(2, 512 * 1024), NODE)
    assert found.binds == "cores"
    assert found.loads["cores"] == pytest.approx(found.cores / 1.4)
    assert found.needed == math.ceil(found.loads["cores"]) == 3


def test_calls_without_end_are_bound_by_the_one_core_of_an_event_loop():
    light = replace(SLOW, mode="shared", process_mib=0, fixed_mib=10, call_cpu_ms=0)
    found = answer([light], replace(DEMAND, calls_per_hour=100_000), Machine(64, 64 * 1024), NODE)
    assert found.binds == "event loop"
    assert found.needed == math.ceil(200 * 100_000 / 3600 * 0.0005 / 0.7) == 4


def test_a_node_that_does_not_even_hold_what_is_its_own_is_refused_with_the_numbers():
    with pytest.raises(InvalidRequest, match=r"a node of 0\.25 GiB is too small: 324 MiB .* 205"):
        answer([SLOW], DEMAND, Machine(1, 256), NODE)
