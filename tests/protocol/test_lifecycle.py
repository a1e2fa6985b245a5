"""The state table of sessions."""

import pytest

from app.protocol.lifecycle import TRANSITIONS, Lifecycle, SessionState, Trigger


def test_the_usual_life() -> None:
    life = Lifecycle()
    for trigger in (Trigger.CONNECT, Trigger.PROCESS, Trigger.INITIALIZE, Trigger.ANSWERED, Trigger.CLOSE):
        assert life.allows(trigger)
        life.follow(trigger)
    assert life.state is SessionState.CLOSED


def test_every_state_but_the_last_can_be_closed_and_nothing_leads_out_of_that() -> None:
    for state, row in TRANSITIONS.items():
        assert (Trigger.CLOSE in row) == (state is not SessionState.CLOSED)
    assert TRANSITIONS[SessionState.CLOSED] == {}


def test_a_transition_that_is_not_in_the_table_is_an_error() -> None:
    with pytest.raises(KeyError):
        Lifecycle().follow(Trigger.ANSWERED)


def test_a_refused_initialize_may_be_tried_again() -> None:
    life = Lifecycle()
    for trigger in (Trigger.CONNECT, Trigger.PROCESS, Trigger.INITIALIZE, Trigger.REFUSED, Trigger.INITIALIZE):
        life.follow(trigger)
    assert life.state is SessionState.INITIALIZING
