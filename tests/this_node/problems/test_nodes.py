"""What is wrong with other nodes."""

from datetime import UTC, datetime

from app.routing.routes import NodeRecord
from app.this_node.problems.nodes import of_others
from app.this_node.views import NodeStatus

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
