"""Endings: why sessions have ended, for those whose they were, and for so many."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.domain import Principal
from app.errors import BackendExited, CallCutOff, SessionEnded, SessionNotFound
from app.sessions.endings import ENDED_BY_ADMINISTRATOR, WORDS, Endings, call_not_sent, call_under_way, later_request

ALICE = Principal("acme", "key", "k1", frozenset())
ECHO = ("acme", "echo")
OPERATIONS = (Path(__file__).parents[2] / "docs/operations.md").read_text()


def test_who_comes_back_hears_why_its_session_has_ended():
    endings = Endings()
    endings.note("s", ALICE, ECHO, ENDED_BY_ADMINISTRATOR)
    error = endings.of("s", replace(ALICE, scopes=frozenset({"mcp:connect"})), ECHO)  # with another token
    assert isinstance(error, SessionEnded)
    assert (error.reason, error.cause, str(error)) == (
        "session_ended",
        ENDED_BY_ADMINISTRATOR,
        WORDS[ENDED_BY_ADMINISTRATOR],
    )
    assert "`initialize`" in error.hint


@pytest.mark.parametrize(
    ("principal", "backend"), [(replace(ALICE, subject="k2"), ECHO), (ALICE, ("acme", "time")), (ALICE, ("b", "echo"))]
)
def test_nobody_else_hears_that_there_was_one(principal, backend):
    endings = Endings()
    endings.note("s", ALICE, ECHO, ENDED_BY_ADMINISTRATOR)
    assert repr(endings.of("s", principal, backend)) == repr(SessionNotFound())


@pytest.mark.parametrize(
    "cause", ["deleted", "shutdown", "handed_over", "taken_over", "key_revoked", "not_initialized"]
)
def test_what_a_client_did_itself_or_is_told_otherwise_is_not_kept(cause):
    endings = Endings()
    endings.note("s", ALICE, ECHO, cause)
    assert not endings._endings
    assert type(endings.of("s", ALICE, ECHO)) is type(later_request(cause)) is SessionNotFound
    assert repr(call_under_way(cause)) == repr(CallCutOff())


def test_above_its_number_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr("app.sessions.endings.MAX_ENDINGS", 3)
    endings = Endings()
    for number in range(5):
        endings.note(str(number), ALICE, ECHO, "idle")
    assert len(endings._endings) == 3
    assert [type(endings.of(str(number), ALICE, ECHO)) is SessionEnded for number in range(5)] == [False] * 2 + [
        True
    ] * 3


@pytest.mark.parametrize("cause", WORDS)
def test_every_cause_is_told_to_calls_and_explained_to_operators(cause):
    under_way, waiting = call_under_way(cause), call_not_sent(cause)
    assert (type(under_way), under_way.outcome, under_way.cause) == (CallCutOff, "unknown", cause)
    assert (type(waiting), waiting.outcome, waiting.cause) == (BackendExited, None, cause)
    assert str(under_way).startswith(WORDS[cause])
    assert str(waiting).endswith("the call was not sent")
    row = re.search(r"^\| `session_ended` \|.*$", OPERATIONS, re.MULTILINE)
    assert row is not None
    assert f"`{cause}`" in row[0]
