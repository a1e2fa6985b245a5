"""Activity: series of the last quarter of an hour, on one node and over several."""

from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest

from app.cluster.node_status.activity import STEP_S, STEPS, Activity, Looked, Moment, NodeActivity, quantile, together
from app.limits.tenant_limits import OTHERS, Tallies

START = 1_000_000 * STEP_S


class Node:
    """A node whose clock stands at the end of a step."""

    def __init__(self, most_bytes: int = 1 << 20, tenants: int = 200) -> None:
        self.now, self.has = float(START), dict[str, Looked]()
        self.tallies = Tallies(tenants)
        self.activity = Activity(self.tallies, self.look, lambda: self.now, most_bytes)

    def look(self) -> Mapping[str, Looked]:
        return self.has

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += STEP_S
            self.activity.sample()

    def of(self, tenant: str | None) -> NodeActivity:
        return self.activity.of(tenant, "n1")


def test_a_step_has_what_was_counted_in_it_and_what_there_was_at_its_end():
    node = Node()
    node.tallies.of("acme").done(0.1, "")
    node.tallies.of("acme").done(0.2, "timeout")
    node.has = {"acme": Looked(3, 1, 1000, Counter(leased=2))}
    node.step()
    node.has = {}
    node.step()
    (moment,) = node.of("acme").moments
    assert (moment.step, moment.sessions, moment.waiting, moment.resident_bytes) == (START // STEP_S + 1, 3, 1, 1000)
    assert (moment.processes, moment.errors, sum(moment.buckets.values())) == ({"leased": 2}, {"timeout": 1}, 2)
    assert [each.sessions for each in node.of(None).moments] == [3, 0]


def test_a_node_that_wakes_before_the_end_of_a_step_does_not_end_it_twice():
    node = Node()
    node.has = {"acme": Looked(1)}
    node.now += STEP_S - 0.001
    node.activity.sample()
    node.now += 0.001
    node.activity.sample()
    assert node.of("acme").until == START // STEP_S + 1
    assert [each.step for each in node.of("acme").moments] == [START // STEP_S + 1]


def test_a_clock_that_was_set_back_begins_a_new_series():
    node = Node()
    node.has = {"acme": Looked(1)}
    node.step(4)
    node.now -= 3600
    node.step(2)
    told = node.of("acme")
    assert (told.since, told.until) == (START // STEP_S - 716, START // STEP_S - 714)
    assert [each.step for each in told.moments] == [START // STEP_S - 715, START // STEP_S - 714]


def test_all_tenants_are_summed_and_one_does_not_see_another():
    node = Node()
    node.has = {"acme": Looked(3, 0, 10, Counter(warm=1)), "zenith": Looked(2, 4, 5, Counter(warm=1, leased=1))}
    node.step()
    assert [(each.sessions, each.waiting, each.processes) for each in node.of(None).moments] == [
        (5, 4, {"warm": 2, "leased": 1})
    ]
    assert [each.sessions for each in node.of("zenith").moments] == [2]
    assert node.of("nobody").moments == []


def test_after_a_quarter_of_an_hour_it_is_forgotten_and_an_idle_tenant_costs_nothing():
    node = Node()
    node.tallies.of("acme").done(0.1, "")
    node.step(STEPS)
    assert len(node.of("acme").moments) == 1
    node.step()
    assert node.of("acme").moments == []
    assert not node.tallies.has("acme")
    assert len(node.of(None).moments) == STEPS


def test_a_tenant_with_sessions_keeps_its_tally():
    node = Node()
    kept = node.tallies.of("acme")
    node.has = {"acme": Looked(1)}
    node.step(STEPS * 2)
    assert node.tallies.of("acme") is kept


def test_tenants_beyond_the_limit_are_summed_and_told_so():
    node = Node(tenants=1)
    for name in ("acme", "zenith", "third"):
        node.tallies.of(name).done(0.1, "")
    node.step()
    assert not node.of("acme").is_summed
    assert node.of("zenith").is_summed
    assert sum(sum(each.buckets.values()) for each in node.of(OTHERS).moments) == 2
    assert sum(sum(each.buckets.values()) for each in node.of(None).moments) == 3


def test_it_keeps_no_more_bytes_than_it_may():
    node = Node(most_bytes=25_000)
    node.has = {f"t{number}": Looked(1) for number in range(20)}
    node.step(STEPS)
    assert node.activity.size <= 25_000
    assert len(node.of(None).moments) == STEPS  # the sum of all is not what is given up


def test_steps_follow_each_other_even_if_the_clock_is_set_back():
    node = Node()
    node.step(2)
    node.now -= 60
    node.step()
    steps = [each.step for each in node.of(None).moments]
    assert steps == sorted(set(steps))


def test_series_of_two_nodes_are_added_step_by_step():
    one = NodeActivity("n1", 0, 200, [Moment(199, 1, errors={"timeout": 1}), Moment(200, 1)], 10)
    two = NodeActivity("n2", 198, 200, [Moment(200, 2, buckets={3: 4}, errors={"timeout": 2})], 20)
    shown = together([one, two], ["n3"])
    assert len(shown.moments) == STEPS
    assert [each and each.sessions for each in shown.moments[-3:]] == [0, 1, 3]
    assert shown.moments[-1] == Moment(200, 3, buckets={3: 4}, errors={"timeout": 2})
    assert (shown.until_s, shown.memory_limit_bytes, shown.nodes, shown.silent) == (1000, 30, ["n1", "n2"], ["n3"])


def test_before_the_start_of_a_node_nothing_is_known():
    shown = together([NodeActivity("n1", 197, 200, [])])
    assert [each is None for each in shown.moments[-4:]] == [True, False, False, False]
    assert together([]).moments == [None] * STEPS


def test_a_node_that_is_a_step_behind_ends_the_series_and_one_with_a_wrong_clock_does_not():
    told = [NodeActivity("n1", 0, 200, []), NodeActivity("n2", 0, 199, []), NodeActivity("n3", 0, 100, [])]
    assert together(told).until_s == 199 * STEP_S


@pytest.mark.parametrize("seconds", [0.0002, 0.0123, 0.9, 7.0, 300.0])
def test_percentiles_are_exact_to_nine_percent(seconds: float):
    node = Node()
    for number in range(100):
        node.tallies.of("acme").done(seconds if number < 99 else seconds * 100, "")
    buckets = node.tallies.of("acme").take().buckets
    for share in (0.01, 0.5, 0.99):
        found = quantile(buckets, share)
        assert found is not None
        assert abs(found / seconds - 1) < 0.091
    assert quantile({}, 0.5) is None


def test_it_goes_from_node_to_node():
    told = NodeActivity("n1", 0, 200, [Moment(200, 1, 2, 3, {"warm": 1}, {5: 6}, {"timeout": 7})], 10, True)
    assert msgspec.json.decode(msgspec.json.encode([told]), type=list[NodeActivity]) == [told]


def test_the_last_steps_are_the_end_of_all():
    """Of nodes one of which is a step further."""
    ahead, behind = Node(), Node()
    for number in range(STEPS):
        for node in (ahead, behind):
            node.has = {"acme": Looked(number % 7)}
            node.step()
    ahead.step()
    whole, last = (
        together([node.activity.of("acme", name, 0, steps) for name, node in (("a", ahead), ("b", behind))], (), steps)
        for steps in (STEPS, 6)
    )
    assert last.until_s == whole.until_s
    assert last.moments == whole.moments[-6:]
    assert len(ahead.activity.of("acme", "a", 0, 6).moments) < 10
