"""The checker itself: a history in which all is well, and for each rule one that breaks it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.check import violations
from tests.chaos.faults import plan
from tests.chaos.history import (
    Asked,
    Beat,
    Call,
    Closed,
    Ended,
    Executed,
    Fault,
    Finding,
    Healed,
    Heard,
    History,
    Initialised,
    Listened,
    Node,
    Opened,
    Revoked,
    Sent,
    Writer,
)

CALLS = 20


def call(number: int, **fields: Any) -> Call:
    """One that was answered at this time."""
    name = f"call-{number}"
    told = {"process": "p1", "whose": "s1", "answers": name}
    answered = {"outcome": "answered", "status": 200, "began": float(number), "ended": number + 0.1, **told}
    return Call(**{"call": name, "session": "s1", "principal": "k1", "node": 0, **answered, **fields})


def unanswered(number: int, outcome: str, status: int) -> Call:
    reason = "some_reason" if outcome == "refused" else ""
    return call(number, outcome=outcome, status=status, reason=reason, process="", whose="", answers="")


def executed(number: int, at: float | None = None) -> Executed:
    return Executed("p1", f"call-{number}", number + 0.05 if at is None else at)


def heard(number: int, **fields: Any) -> Heard:
    at = 10.0 + number
    known = {"session": "s1", "process": "p1", "number": number, "whose": "s1", "sent_at": at, "at": at + 0.1}
    return Heard(**{**known, "stream": "listen", "event_id": f"x-{number}", **fields})


def sent(number: int) -> Sent:
    return Sent("p1", number, 10.0 + number)


def well(*more: Any, without: Callable[[Any], bool] = lambda record: False) -> History:
    """One session on node 0 that is called and heard for twenty seconds, and what is added or left out."""
    records = [
        *(Node(place, 100 + place, 0.0) for place in range(3)),
        Opened("s1", "k1", "north", "respawn", 0.5),
        Initialised("p1", 0, "s1", 0.4),
        Listened("s1", "k1", 1, 0.6, 0.7, 200),
        *(record for number in range(1, CALLS + 1) for record in (call(number), executed(number))),
        *(record for number in range(1, 6) for record in (sent(number), heard(number))),
        Healed(25.0),
        Ended(40.0),
    ]
    return History([record for record in records if not without(record)] + list(more))


def fault(part: str, what: str, began: float, ended: float, place: int = 0) -> Fault:
    return Fault(part, place, what, began, ended)


def test_a_history_in_which_all_is_well() -> None:
    assert violations(well()) == []
    unknown = [unanswered(50, "unknown", 0), unanswered(51, "error", 200), executed(51), unanswered(52, "refused", 503)]
    assert violations(well(*unknown)) == []


def is_call(number: int) -> Callable[[Any], bool]:
    return lambda record: isinstance(record, Call) and record.call == f"call-{number}"


def is_number(*numbers: int) -> Callable[[Any], bool]:
    return lambda record: isinstance(record, Heard) and record.number in numbers


BROKEN: dict[str, tuple[str, History]] = {
    "twice": ("executed_once", well(executed(3, 9.0))),
    "twice, and nobody knows the outcome": (
        "executed_once",
        well(unanswered(50, "unknown", 0), executed(50), executed(50)),
    ),
    "answered and never executed": ("executed_once", well(call(50))),
    "refused and executed": ("executed_once", well(unanswered(50, "refused", 503), executed(50))),
    "executed and never sent": ("executed_once", well(executed(50))),
    "the answer to another call": ("to_nobody_else", well(call(50, answers="call-4"), executed(50))),
    "the answer of another session": ("to_nobody_else", well(call(50, whose="s2"), executed(50))),
    "in the process of another": (
        "to_nobody_else",
        well(call(50, session="s2", whose="s2"), executed(50), Opened("s2", "k2", "north", "respawn", 1.0)),
    ),
    "the message of another": ("to_nobody_else", well(heard(6, whose="s2"))),
    "the id of another's session": ("to_nobody_else", well(Asked("s1", "k2", 5.0, 200))),
    "executed with the id of another's session": ("to_nobody_else", well(Executed("p1", "stolen-1", 5.0))),
    "a message twice": ("heard_in_order", well(heard(4))),
    "out of order": ("heard_in_order", well(heard(3), heard(2), without=is_number(2, 3))),
    "a hole": ("heard_in_order", well(without=is_number(3))),
    "the last one is missing": ("nothing_lost", well(sent(6))),
    "lost with a node that had written it": (
        "nothing_lost",
        well(sent(6), fault("node", "kill", 20.0, 22.0)),
    ),
    "lost between two processes": (
        "nothing_lost",
        well(
            *(sent(6), Closed("s1", 30.0), fault("node", "kill", 20.0, 22.0)),
            *(Initialised("p2", 1, "s1", 23.0), Sent("p2", 1, 24.0), heard(1, process="p2", sent_at=24.0, at=24.1)),
        ),
    ),
    "executed after a revocation": ("nothing_after_a_revocation", well(Revoked("k1", 1, 5.0, 5.1))),
    "executed elsewhere after a revocation that a fault excuses for a while": (
        "nothing_after_a_revocation",
        well(Revoked("k1", 1, 5.0, 5.1), fault("redis", "freeze", 4.0, 7.0, -1)),
    ),
    "heard after a revocation": (
        "nothing_after_a_revocation",
        well(Revoked("k1", 1, 12.0, 12.5), without=lambda record: isinstance(record, Call | Executed)),
    ),
    "404 for a living session": ("living_sessions_are_found", well(unanswered(21, "refused", 404))),
    "a stream of a living session is not found": (
        "living_sessions_are_found",
        well(Listened("s1", "k1", 2, 12.0, 12.1, 404)),
    ),
    "404 after its node died": (
        "living_sessions_are_found",
        well(unanswered(21, "refused", 404), fault("node", "kill", 20.5, 23.0)),
    ),
    "404 after its node died, which could not write for a while": (
        "living_sessions_are_found",
        well(
            *(unanswered(21, "refused", 404), fault("redis-line", "stall", 0.2, 3.0)),
            fault("node", "kill", 20.5, 23.0),
        ),
    ),
    "an accident": ("every_refusal_has_a_reason", well(unanswered(50, "refused", 500))),
    "a node that does not answer": ("nodes_are_alive", well(Beat(0, 5.0, 10.0, 0, 0.0))),
    "a node that answers late": ("nodes_are_alive", well(Beat(0, 5.0, 4.0, 200, 0.5))),
    "not well in the end": ("well_in_the_end", well(Finding("counts", "17 of 20"))),
    "no storm": ("well_in_the_end", well(without=is_call(5))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_promise_is_found(name: str) -> None:
    rule, history = BROKEN[name]
    assert rule in {each.partition(":")[0] for each in violations(history)}


EXCUSED: dict[str, History] = {
    "a message on the stream of a call that broke": well(unanswered(13, "unknown", 0), without=is_number(3, 13)),
    "a stream that broke before its reader had an id": well(
        Listened("s1", "k1", 1, 12.0, 13.5, 0),
        without=lambda record: isinstance(record, Heard) and record.number < 4,
    ),
    "a stream that broke between two nodes before its reader had an id": well(
        Listened("s1", "k1", 1, 12.0, 13.5, 503),
        without=lambda record: isinstance(record, Heard) and record.number < 4,
    ),
    "the last words of a node": well(sent(6), fault("node", "kill", 16.5, 18.0)),
    "a node without Redis died": well(
        sent(6), fault("redis-line", "stall", 10.0, 19.0), fault("node", "kill", 19.0, 20.0)
    ),
    "a node that could never write its session down stood still": well(
        *(unanswered(21, "refused", 404), fault("redis-line", "stall", 0.2, 23.0)),
        fault("node", "pause", 20.5, 26.0),
    ),
    "closed by its client": well(Closed("s1", 30.0), unanswered(31, "refused", 404)),
    "Redis forgot what its node had": well(
        unanswered(21, "refused", 404),
        fault("redis", "flush", 19.0, 19.0, -1),
        fault("node", "kill", 20.5, 23.0),
    ),
    "an owner died with what it had told, and Redis forgot it": well(
        heard(2, at=20.5), fault("redis", "restart", 19.0, 19.5, -1), fault("node", "kill", 19.2, 22.0)
    ),
    "a node that stood still answers late": well(
        Beat(0, 5.0, 4.0, 200, 0.0), fault("node", "pause", 4.0, 9.0)
    ),
    "the asking program was late itself": well(Beat(0, 5.0, 4.0, 200, 3.5)),
    "a revocation of which its node was told, and could not look what it is": well(
        Revoked("k1", 1, 12.0, 12.5), fault("database-line", "refuse", 12.0, 16.0)
    ),
    "a revocation that no node could hear of": well(
        Revoked("k1", 1, 12.0, 12.5),
        *(fault(part, "refuse", 11.0, 40.0, place) for part in ("redis-line", "database-line") for place in range(3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCUSED)
def test_what_no_promise_covers_is_excused(name: str) -> None:
    assert violations(EXCUSED[name]) == []


def test_a_history_is_kept_on_disk(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "history")
    for record in well().records:
        writer.add(record)
    (writer.journals / "p1.journal").write_text('{"record": "Sent", "process": "p1", "number": 6, "at": 16.0}\n{"rec')
    writer.close()
    assert History.load(tmp_path / "history").records == [*well().records, replace(sent(6), at=16.0)]


def test_a_seed_is_always_the_same_plan() -> None:
    assert plan(7, 60.0) == plan(7, 60.0) != plan(8, 60.0)
    assert len(plan(7, 60.0)) > 20
    assert max(strike.at + strike.seconds for strike in plan(7, 60.0)) <= 60.0
