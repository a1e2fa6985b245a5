"""The state table of sessions."""

from app.sessions.session import TRANSITIONS, SessionState, Trigger


def after(*triggers: Trigger) -> SessionState:
    state = SessionState.NEW
    for trigger in triggers:
        state = TRANSITIONS[state][trigger]
    return state


def test_the_usual_life() -> None:
    steps = Trigger.CONNECT, Trigger.PROCESS, Trigger.INITIALIZE, Trigger.ANSWERED, Trigger.CLOSE
    assert after(*steps) is SessionState.CLOSED


def test_every_state_but_the_last_can_be_closed_and_nothing_leads_out_of_that() -> None:
    for state, row in TRANSITIONS.items():
        assert (Trigger.CLOSE in row) == (state is not SessionState.CLOSED)
    assert TRANSITIONS[SessionState.CLOSED] == {}


def test_a_refused_initialize_may_be_tried_again() -> None:
    steps = Trigger.CONNECT, Trigger.PROCESS, Trigger.INITIALIZE, Trigger.REFUSED, Trigger.INITIALIZE
    assert after(*steps) is SessionState.INITIALIZING
