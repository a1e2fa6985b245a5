"""The order in which waiting callers are served."""

from dataclasses import dataclass
from typing import Any

from app.backends._waiting_callers import WaitingCallers


@dataclass(eq=False)
class Caller:
    tenant: str
    name: str


def queue_of(*names: str) -> tuple[Any, dict[str, Caller]]:
    callers = {name: Caller(name[0], name) for name in names}
    queue: Any = WaitingCallers()
    for caller in callers.values():
        queue.append(caller)
    return queue, callers


def test_tenants_take_turns_and_each_is_served_in_order():
    queue, _ = queue_of("a1", "a2", "a3", "b1", "c1", "b2")
    assert [caller.name for caller in queue] == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_tenant_that_was_served_goes_to_the_end_of_the_round():
    queue, callers = queue_of("a1", "a2", "b1")
    queue.serve(callers["a1"])
    assert [caller.name for caller in queue] == ["b1", "a2"]


def test_leaving_the_queue_twice_counts_once():
    queue, callers = queue_of("a1", "a2")
    queue.remove(callers["a1"])
    queue.remove(callers["a1"])
    queue.remove(callers["a2"])
    assert (len(queue), list(queue)) == (0, [])
