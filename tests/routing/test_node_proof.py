"""How two nodes know each other, and the keys of their link."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.node_proof import MAX_BYTES, NodeProof

KEY = b"k" * 32
A, B = NodeProof(KEY, "node-a"), NodeProof(KEY, "node-b")
STRANGER = NodeProof(b"x" * 32, "node-x")

anything = st.binary(max_size=2 * MAX_BYTES) | st.lists(
    st.sampled_from([b".", b"\n", b"6e6f64652d62", b"zz", b"\xff", b"0" * 64, b"6e"]), max_size=8
).map(b"".join)


def proved(challenge: bytes, by: NodeProof = B) -> bytes:
    result = by.prove(challenge)
    assert result is not None
    return result[0]


def changed(value: bytes, place: int) -> bytes:
    return value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]


def test_nodes_know_each_other_and_agree_on_keys() -> None:
    challenge = A.challenge()
    answered = B.prove(challenge)
    assert answered is not None
    proof, keys = answered
    assert A.check(challenge, proof) == ("node-b", keys)


@pytest.mark.parametrize("node", ["", "a.b", "n" * 400, "with blank\nand more"])
def test_whatever_a_node_is_called_is_what_it_says(node: str) -> None:
    challenge = A.challenge()
    checked = A.check(challenge, proved(challenge, NodeProof(KEY, node)))
    assert checked is not None
    assert checked[0] == node


def test_what_is_said_may_stand_in_a_header_and_is_short() -> None:
    challenge = A.challenge()
    for value in (challenge, proved(challenge)):
        assert all(0x21 <= byte <= 0x7E for byte in value)
        assert len(value) < MAX_BYTES / 4


def test_only_who_has_the_key_is_answered() -> None:
    assert B.prove(STRANGER.challenge()) is None
    assert STRANGER.prove(A.challenge()) is None


def test_only_who_has_the_key_is_believed() -> None:
    challenge = A.challenge()
    assert A.check(challenge, proved(STRANGER.challenge(), STRANGER)) is None
    for proof in (b"", b".", b"zz.zz", b"\xff.\xff", b"6e6f64652d62.00.00", proved(challenge)[:-1]):
        assert A.check(challenge, proof) is None


def test_every_byte_of_a_challenge_counts() -> None:
    challenge = A.challenge()
    for place in range(len(challenge)):
        assert B.prove(changed(challenge, place)) is None, place
    assert B.prove(challenge + b"0") is None


def test_every_byte_of_a_proof_counts() -> None:
    challenge = A.challenge()
    proof = proved(challenge)
    for place in range(len(proof)):
        assert A.check(challenge, changed(proof, place)) is None, place
    assert A.check(challenge, proof + b"0") is None


def test_a_proof_answers_one_challenge_only() -> None:
    proof = proved(A.challenge())
    assert A.check(A.challenge(), proof) is None


def test_a_challenge_is_no_proof_and_a_proof_no_challenge() -> None:
    challenge = A.challenge()
    assert A.check(challenge, challenge) is None
    assert B.prove(proved(challenge)) is None


def test_no_two_links_and_no_two_directions_have_the_same_keys() -> None:
    """Also where somebody repeats what a node has once asked."""
    repeated = A.challenge()
    found: list[bytes] = []
    for challenge in [repeated] * 10 + [A.challenge() for _ in range(10)]:
        answered = B.prove(challenge)
        assert answered is not None
        found += answered[1]
    assert len(set(found)) == len(found) == 40


def test_what_is_too_long_is_not_looked_at() -> None:
    assert B.prove(b"0" * (MAX_BYTES + 1)) is None
    assert A.check(A.challenge(), b"0" * (MAX_BYTES + 1)) is None


@settings(deadline=None)
@given(anything, anything)
def test_anything_else_is_refused_without_an_error(challenge: bytes, proof: bytes) -> None:
    assert B.prove(challenge) is None
    assert A.check(challenge, proof) is None
    assert A.check(A.challenge(), proof) is None
