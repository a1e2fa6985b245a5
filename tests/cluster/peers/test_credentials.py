"""What a node believes of another."""

import pytest

from app.cluster.peers import credentials as node_credentials
from app.cluster.peers.credentials import (
    GENERATION_S,
    HOP_VERSION,
    MAX_SKEW_S,
    MAX_WORD_BYTES,
    ForwardRefused,
    NodeCredentials,
    Sent,
    Word,
)
from app.domain import Principal

KEY = b"k" * 32
ALICE = Principal("acme", "https://issuer.example.com", "ali.ce\nü", frozenset({"mcp:connect", "tenant:read"}))
TARGET, BODY = b"/t/acme/echo/mcp?a=b", b'{"jsonrpc":"2.0"}'
SENT = Sent("POST", TARGET, b"tag.session")
WORD = Word(ALICE, "https://mcp.example.com")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def a(clock: Clock) -> NodeCredentials:
    return NodeCredentials(KEY, "node-a", clock)


@pytest.fixture
def b(clock: Clock) -> NodeCredentials:
    return NodeCredentials(KEY, "node-b", clock)


def signed(a: NodeCredentials, word: Word = WORD) -> bytes:
    return a.sign(SENT, BODY, word, "node-b")


def opened(b: NodeCredentials, value: bytes, sent: Sent = SENT, body: bytes = BODY) -> Word:
    forwarded = b.open(value, sent)
    forwarded.require_body(body)
    return forwarded.word


def is_refused(b: NodeCredentials, value: bytes, sent: Sent = SENT, body: bytes = BODY) -> bool:
    try:
        opened(b, value, sent, body)
    except ForwardRefused:
        return True
    return False


def test_a_signed_request_brings_its_principal(a: NodeCredentials, b: NodeCredentials) -> None:
    """All of it, whatever fields it has."""
    assert opened(b, signed(a)) == WORD


def test_the_value_may_stand_in_a_header(a: NodeCredentials) -> None:
    assert all(0x21 <= byte <= 0x7E for byte in signed(a))


def test_it_counts_for_one_request_only(a: NodeCredentials, b: NodeCredentials) -> None:
    assert is_refused(b, signed(a), SENT._replace(method="DELETE"))
    assert is_refused(b, signed(a), SENT._replace(target=TARGET + b"c"))
    assert is_refused(b, signed(a), SENT._replace(session=b"tag.other"))
    assert is_refused(b, signed(a), body=BODY + b" ")
    assert not is_refused(b, signed(a))


def test_it_counts_for_one_node_only(a: NodeCredentials, clock: Clock) -> None:
    assert is_refused(NodeCredentials(KEY, "node-c", clock), signed(a))


def test_it_counts_once(a: NodeCredentials, b: NodeCredentials) -> None:
    value = signed(a)
    assert not is_refused(b, value)
    assert is_refused(b, value)


def test_another_secret_key_is_another_cluster(b: NodeCredentials, clock: Clock) -> None:
    assert is_refused(b, signed(NodeCredentials(b"x" * 32, "node-a", clock)))


def test_every_byte_of_it_counts(a: NodeCredentials, b: NodeCredentials) -> None:
    value = signed(a)
    for place in range(len(value)):
        changed = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        assert is_refused(b, changed), place
    assert not is_refused(b, value)


@pytest.mark.parametrize("value", [b"", b".", b"1.2.3.4.5.6.7", b"\xff" * 20, b"1" * 100_000])
def test_anything_else_is_refused(b: NodeCredentials, value: bytes) -> None:
    assert is_refused(b, value)


@pytest.mark.parametrize(("skew", "refused"), [(-16, True), (-14, False), (0, False), (14, False), (16, True)])
def test_clocks_may_differ_by_fifteen_seconds(
    a: NodeCredentials, b: NodeCredentials, clock: Clock, skew: float, refused: bool
) -> None:
    value = signed(a)
    clock.now += skew
    assert is_refused(b, value) == refused
    if refused:
        with pytest.raises(ForwardRefused) as caught:
            b.open(value, SENT)
        assert caught.value.ahead_s == -skew


def test_a_replay_is_refused_for_as_long_as_its_stamp_is_good(
    a: NodeCredentials, b: NodeCredentials, clock: Clock
) -> None:
    for offset in (0.0, GENERATION_S - 0.1, GENERATION_S / 2):  # wherever in a generation it came
        clock.now += 3 * GENERATION_S
        is_refused(b, signed(a))  # a generation begins
        clock.now += offset + MAX_SKEW_S
        early = signed(a)  # by a node whose clock is ahead
        clock.now -= MAX_SKEW_S
        assert not is_refused(b, early)
        for _ in range(int(2 * MAX_SKEW_S)):
            clock.now += 0.999
            assert is_refused(b, early)


def test_too_many_at_once_are_refused_rather_than_forgotten(
    a: NodeCredentials, b: NodeCredentials, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_credentials, "MAX_NONCES", 3)
    first = signed(a)
    assert [is_refused(b, value) for value in (first, signed(a), signed(a), signed(a))] == [False, False, False, True]
    assert is_refused(b, first)
    clock.now += GENERATION_S
    assert not is_refused(b, signed(a))


def test_a_clock_that_is_set_back_does_not_fill_the_memory(
    a: NodeCredentials, b: NodeCredentials, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_credentials, "MAX_NONCES", 2)
    assert not is_refused(b, signed(a))
    clock.now -= 3600
    assert not is_refused(b, signed(a))
    assert not is_refused(b, signed(a))
    clock.now += GENERATION_S
    assert not is_refused(b, signed(a))


def test_what_is_the_same_in_every_request_is_remembered_but_not_without_end(
    a: NodeCredentials, b: NodeCredentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_credentials, "MAX_WORDS", 2)
    words = [
        Word(Principal("acme", "key", f"k{number}", frozenset({"mcp:connect"})), "http://a") for number in range(5)
    ]
    words.append(words[0]._replace(base_url="http://" + "a" * MAX_WORD_BYTES))
    for word in [*words, *words]:
        assert opened(b, signed(a, word)) == word
        assert len(a._given) <= 2
        assert len(b._taken) <= 2
        assert max(map(len, b._taken), default=0) <= MAX_WORD_BYTES


def test_scopes_that_change_are_not_those_remembered(a: NodeCredentials, b: NodeCredentials) -> None:
    for scopes in (frozenset({"mcp:connect"}), frozenset({"mcp:connect:echo"})):
        word = Word(Principal("acme", "key", "k", scopes), "http://a")
        assert opened(b, signed(a, word)) == word


def test_a_body_is_only_needed_for_what_a_node_has_signed(a: NodeCredentials, b: NodeCredentials) -> None:
    with pytest.raises(ForwardRefused):
        b.open(b"made up", SENT)
    forwarded = b.open(signed(a), SENT)
    forwarded.require_body(BODY)
    with pytest.raises(ForwardRefused):
        forwarded.require_body(b"another")


# --- who is there


def test_a_node_says_which_it_is(a: NodeCredentials, b: NodeCredentials) -> None:
    challenge = a.challenge()
    proof = b.prove(challenge)
    assert proof is not None
    assert a.check(challenge, proof) == ("node-b", HOP_VERSION)


def test_an_answer_belongs_to_its_question(a: NodeCredentials, b: NodeCredentials) -> None:
    proof = b.prove(a.challenge())
    assert proof is not None
    assert a.check(a.challenge(), proof) is None


def test_who_is_no_node_gets_no_answer_and_gives_none(a: NodeCredentials, clock: Clock) -> None:
    stranger = NodeCredentials(b"x" * 32, "node-x", clock)
    assert a.prove(stranger.challenge()) is None
    assert a.prove(b"") is None
    challenge = a.challenge()
    own = stranger.challenge()
    for proof in (stranger.prove(own), b"", b".", b"zz.zz", b"\xff.\xff"):
        assert a.check(challenge, proof or b"") is None


def test_a_node_of_another_release_says_so(
    a: NodeCredentials, b: NodeCredentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    challenge = a.challenge()
    monkeypatch.setattr(node_credentials, "HOP_VERSION", "4")
    proof = b.prove(challenge)
    assert proof is not None
    assert a.check(challenge, proof) == ("node-b", "4")
    assert a.check(challenge, b"3" + proof[1:]) is None
