"""The state table of a process."""

import pytest

from app.processes.states import TRANSITIONS, ImpossibleTransition, ProcessState, ProcessStateMachine, Trigger


def walk(*triggers: Trigger) -> ProcessStateMachine:
    machine = ProcessStateMachine()
    for trigger in triggers:
        machine.apply(trigger)
    return machine


def test_an_ordinary_life():
    machine = ProcessStateMachine()
    lived = [machine.apply(trigger) for trigger in (Trigger.STARTED, Trigger.LEASE, Trigger.STOP, Trigger.EXIT)]
    assert lived == [ProcessState.WARM, ProcessState.LEASED, ProcessState.STOPPING, ProcessState.GONE]


def test_it_may_die_in_every_state_but_only_once():
    for state, row in TRANSITIONS.items():
        assert (Trigger.EXIT in row) is (state is not ProcessState.GONE)


def test_a_process_that_served_a_session_is_never_warm_again():
    reachable, todo = set(), [ProcessState.LEASED]
    while todo:
        for state in TRANSITIONS[todo.pop()].values():
            if state not in reachable:
                reachable.add(state)
                todo.append(state)
    assert reachable == {ProcessState.STOPPING, ProcessState.GONE}


def test_what_the_table_does_not_have_is_an_error_and_changes_nothing():
    machine = walk(Trigger.STARTED, Trigger.LEASE)
    with pytest.raises(ImpossibleTransition, match="lease in state leased"):
        machine.apply(Trigger.LEASE)
    assert machine.state is ProcessState.LEASED
