"""NodeList: small clusters are read with each beat, large ones in turn and when something has changed. Pure."""

import pytest

from app.cluster.routing._node_list import READ_A_BEAT, NodeList, beats_between
from tests.cluster.routing.rig import record


def a_list(nodes: int, phase: int = 0) -> NodeList:
    made = NodeList(phase)
    made.read([record(f"node-{number}") for number in range(nodes)], b"e:1")
    return made


@pytest.mark.parametrize(("nodes", "beats"), [(0, 1), (1, 1), (READ_A_BEAT, 1), (READ_A_BEAT + 1, 2), (5_000, 50)])
def test_what_all_nodes_read_grows_with_their_number_and_no_faster(nodes: int, beats: int) -> None:
    assert beats_between(nodes) == beats
    made = a_list(nodes)
    assert sum(made.is_due(b"e:1") for _ in range(2 * beats)) == 2


def test_a_list_that_was_never_read_is_due() -> None:
    assert NodeList(phase=1).is_due(b"")


@pytest.mark.parametrize("version", [b"e:2", b"other:1", b"false:false"])
def test_a_change_is_read_at_once_and_until_it_was_read(version: bytes) -> None:
    made = a_list(10 * READ_A_BEAT)
    assert [made.is_due(each) for each in (b"e:1", version, version)] == [False, True, True]
    made.read(made.nodes, version)
    assert not made.is_due(version)


def test_what_is_in_doubt_is_read_whatever_the_version() -> None:
    made = a_list(10 * READ_A_BEAT)
    made.doubt()
    assert made.is_due(b"e:1")


def test_nodes_of_different_phases_read_at_different_times() -> None:
    lists = [a_list(10 * READ_A_BEAT, phase) for phase in range(10)]
    assert [sum(each.is_due(b"e:1") for each in lists) for _ in range(10)] == [1] * 10
