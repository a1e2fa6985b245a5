"""What is wrong with other nodes."""

from dataclasses import replace
from datetime import UTC, datetime

from app.cluster.node_status.problems.nodes import LOST_S, Lost, of_others
from app.cluster.node_status.views import NodeStatus
from app.sessions.routes import NodeRecord

AT = datetime(2026, 1, 1, tzinfo=UTC)
OWN = NodeStatus("n1", "1.0", AT, 0, 0, draining=False)


def other(version: str = "1.0", *, draining: bool = False) -> NodeRecord:
    return NodeRecord("n2", "http://10.0.0.2:8080", version, AT, draining=draining)


def test_a_node_that_does_not_answer_is_named_with_its_address():
    (found,) = of_others(OWN, [other()], ["n2"])
    assert (found.kind, found.severity, found.about) == ("node_silent", "critical", ("node", "n2"))
    assert "10.0.0.2" in found.words


def test_a_node_that_drains_and_is_silent_says_both():
    assert [each.kind for each in of_others(OWN, [other(draining=True)], ["n2"])] == ["node_silent", "node_draining"]
    assert list(of_others(OWN, [other(draining=True)], [])) == []  # it says so itself


def test_different_releases_are_one_problem():
    (found,) = of_others(OWN, [other("1.1"), other("1.1")], [])
    assert found.kind == "node_releases"
    assert "1.0 and 1.1" in found.words


def test_a_node_that_left_without_draining_is_lost_for_ten_minutes():
    now, departed = [0.0], [other(), replace(other(draining=True), id="n3")]
    lost = Lost(lambda: departed, lambda: now[0])
    (silent,) = lost.problems(["n2"])
    (answers,) = lost.problems([])
    assert (silent.kind, silent.about) == ("node_lost", ("node", "n2"))
    assert "does not answer" in silent.words
    assert "it cannot use Redis" in answers.words
    now[0] = LOST_S
    assert lost.lately() == []
    departed.clear()
    assert lost.lately() == []
