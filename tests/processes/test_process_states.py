"""The state table of a process."""

from itertools import pairwise

import pytest

from app.processes.process import NEXT, ImpossibleTransition, ProcessState, check_transition


def test_an_ordinary_life():
    lived = [ProcessState.STARTING, ProcessState.WARM, ProcessState.LEASED, ProcessState.STOPPING, ProcessState.GONE]
    for old, new in pairwise(lived):
        check_transition(old, new)


def test_it_may_die_in_every_state_but_only_once():
    for state, following in NEXT.items():
        assert (ProcessState.GONE in following) is (state is not ProcessState.GONE)


def test_a_process_that_served_a_session_is_never_warm_again():
    reachable, todo = set(), [ProcessState.LEASED]
    while todo:
        for state in NEXT[todo.pop()]:
            if state not in reachable:
                reachable.add(state)
                todo.append(state)
    assert reachable == {ProcessState.STOPPING, ProcessState.GONE}


def test_what_the_table_does_not_have_is_an_error():
    with pytest.raises(ImpossibleTransition, match="from leased to leased"):
        check_transition(ProcessState.LEASED, ProcessState.LEASED)
