"""Problem: which of them a tenant may know, and those of several nodes as one list."""

from dataclasses import replace

import msgspec

from app.cluster.node_status.problems.problem import Problem, for_tenant, merged

MINE = Problem("breaker_open", "critical", ("backend", "a"), "It.", "Do.", ("backend", "a"), "acme", 10.0, ("n1",))
REDIS = Problem(
    "redis", "critical", ("redis", "redis"), "10.0.0.7 is away", "Look.", ("node", "n1"), None, 5.0, ("n1",)
)
SANDBOX = Problem("sandbox_weak", "warning", ("node", "n1"), "Weak.", "Doctor.", ("node", "n1"))


def test_a_tenant_sees_its_own_and_of_the_gateway_only_that_it_is_so():
    theirs = replace(MINE, tenant="zenith")
    mine, redis = for_tenant([MINE, theirs, REDIS, SANDBOX], "acme")
    assert mine == MINE
    assert redis.kind == "redis"
    assert "10.0.0.7" not in redis.words
    assert (redis.nodes, redis.see, redis.about) == ((), ("", ""), ("gateway", "gateway"))
    assert for_tenant([MINE, theirs, REDIS, SANDBOX], None) == [MINE, theirs, REDIS, SANDBOX]


def test_the_same_problem_of_two_nodes_is_one_since_the_first_of_them():
    (found,) = merged([replace(REDIS, since=7.0, nodes=("n2",)), REDIS])
    assert found == replace(REDIS, since=5.0, nodes=("n1", "n2"))


def test_the_worst_stands_first_then_the_newest():
    newer = replace(MINE, about=("backend", "b"), since=20.0)
    assert merged([SANDBOX, REDIS, MINE, newer]) == [newer, MINE, REDIS, SANDBOX]


def test_it_goes_from_node_to_node():
    assert msgspec.json.decode(msgspec.json.encode([MINE, REDIS]), type=list[Problem]) == [MINE, REDIS]
