"""ProblemWatch: since when something is wrong, and that it is never itself what is."""

from collections.abc import Iterable

from app.cluster.node_status.problems.problem import MAX_PROBLEMS, Problem
from app.cluster.node_status.problems.watch import ProblemWatch


def problem(name: str, since: float = 0.0, tenant: str | None = "acme") -> Problem:
    return Problem("callers_waiting", "warning", ("backend", name), "words", "do", tenant=tenant, since=since)


def test_it_knows_since_when_and_begins_anew_after_it_has_passed():
    now, wrong = [100.0], [problem("a")]
    watch = ProblemWatch("n1", [lambda: wrong], lambda: now[0])
    assert [each.since for each in watch.look()] == [100.0]
    now[0] = 200.0
    assert [(each.since, each.nodes) for each in watch.look()] == [(100.0, ("n1",))]
    wrong.clear()
    assert watch.look() == []
    wrong.append(problem("a"))
    assert [each.since for each in watch.look()] == [200.0]


def test_what_has_a_time_of_its_own_keeps_it():
    watch = ProblemWatch("n1", [lambda: [problem("a", since=5.0)]], lambda: 100.0)
    assert [each.since for each in watch.of("acme")] == [5.0]
    assert watch.of("zenith") == []


def test_a_source_that_fails_is_logged_and_left_out(caplog):
    def broken() -> Iterable[Problem]:
        raise ZeroDivisionError

    watch = ProblemWatch("n1", [broken, lambda: [problem("a")]])
    assert len(watch.look()) == 1
    assert "a bug in the gateway" in caplog.text


def test_there_are_never_more_than_can_be_told():
    watch = ProblemWatch("n1", [lambda: (problem(f"b{number}") for number in range(MAX_PROBLEMS * 2))])
    assert len(watch.look()) == MAX_PROBLEMS
