"""What a node believes of another."""

import pytest

from app.domain import Principal
from app.errors import ForwardRefused
from app.routing import forward_credentials
from app.routing.forward_credentials import GENERATION_S, MAX_SKEW_S, ForwardCredentials

KEY = b"k" * 32
ALICE = Principal("acme", "https://issuer.example.com", "ali.ce\nü\ud800", frozenset({"mcp:connect", "tenant:read"}))
TARGET, BODY = b"/t/acme/echo/mcp?a=b", b'{"jsonrpc":"2.0"}'


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def a(clock: Clock) -> ForwardCredentials:
    return ForwardCredentials(KEY, "node-a", clock)


@pytest.fixture
def b(clock: Clock) -> ForwardCredentials:
    return ForwardCredentials(KEY, "node-b", clock)


def signed(a: ForwardCredentials) -> bytes:
    return a.sign("POST", TARGET, BODY, ALICE, "node-b")


def is_refused(b: ForwardCredentials, value: bytes, method: str = "POST", target: bytes = TARGET, body=BODY) -> bool:
    try:
        b.verify(value, method, target, body)
    except ForwardRefused:
        return True
    return False


def test_a_signed_request_brings_its_principal(a: ForwardCredentials, b: ForwardCredentials) -> None:
    assert b.verify(signed(a), "POST", TARGET, BODY) == ALICE


def test_the_value_may_stand_in_a_header(a: ForwardCredentials) -> None:
    assert all(0x21 <= byte <= 0x7E for byte in signed(a))


def test_it_counts_for_one_request_only(a: ForwardCredentials, b: ForwardCredentials) -> None:
    assert is_refused(b, signed(a), method="DELETE")
    assert is_refused(b, signed(a), target=TARGET + b"c")
    assert is_refused(b, signed(a), body=BODY + b" ")
    assert not is_refused(b, signed(a))


def test_it_counts_for_one_node_only(a: ForwardCredentials, clock: Clock) -> None:
    assert is_refused(ForwardCredentials(KEY, "node-c", clock), signed(a))


def test_it_counts_once(a: ForwardCredentials, b: ForwardCredentials) -> None:
    value = signed(a)
    assert not is_refused(b, value)
    assert is_refused(b, value)


def test_another_secret_key_is_another_cluster(b: ForwardCredentials, clock: Clock) -> None:
    assert is_refused(b, signed(ForwardCredentials(b"x" * 32, "node-a", clock)))


def test_every_byte_of_it_counts(a: ForwardCredentials, b: ForwardCredentials) -> None:
    value = signed(a)
    for place in range(len(value)):
        changed = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        assert is_refused(b, changed), place
    assert not is_refused(b, value)


@pytest.mark.parametrize("value", [b"", b".", b"1.2.3.4.5.6.7", b"\xff" * 20, b"1" * 100_000])
def test_anything_else_is_refused(b: ForwardCredentials, value: bytes) -> None:
    assert is_refused(b, value)


@pytest.mark.parametrize(("skew", "refused"), [(-16, True), (-14, False), (0, False), (14, False), (16, True)])
def test_clocks_may_differ_by_fifteen_seconds(
    a: ForwardCredentials, b: ForwardCredentials, clock: Clock, skew: float, refused: bool
) -> None:
    value = signed(a)
    clock.now += skew
    assert is_refused(b, value) == refused


def test_a_replay_is_refused_for_as_long_as_its_stamp_is_good(
    a: ForwardCredentials, b: ForwardCredentials, clock: Clock
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
    a: ForwardCredentials, b: ForwardCredentials, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_credentials, "MAX_NONCES", 3)
    first = signed(a)
    assert [is_refused(b, value) for value in (first, signed(a), signed(a), signed(a))] == [False, False, False, True]
    assert is_refused(b, first)
    clock.now += GENERATION_S
    assert not is_refused(b, signed(a))


def test_a_clock_that_is_set_back_does_not_fill_the_memory(
    a: ForwardCredentials, b: ForwardCredentials, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_credentials, "MAX_NONCES", 2)
    assert not is_refused(b, signed(a))
    clock.now -= 3600
    assert not is_refused(b, signed(a))
    assert not is_refused(b, signed(a))
    clock.now += GENERATION_S
    assert not is_refused(b, signed(a))


def test_principals_are_remembered_but_not_without_end(
    a: ForwardCredentials, b: ForwardCredentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_credentials, "MAX_PRINCIPALS", 2)
    everybody = [Principal("acme", "key", f"k{number}", frozenset({"mcp:connect"})) for number in range(5)]
    for principal in [*everybody, *everybody]:
        assert b.verify(a.sign("POST", TARGET, BODY, principal, "node-b"), "POST", TARGET, BODY) == principal
        assert len(a._vouched) <= 2
        assert len(b._principals) <= 2


def test_scopes_that_change_are_not_those_remembered(a: ForwardCredentials, b: ForwardCredentials) -> None:
    for scopes in (frozenset({"mcp:connect"}), frozenset({"mcp:connect:echo"})):
        principal = Principal("acme", "key", "k", scopes)
        assert b.verify(a.sign("POST", TARGET, BODY, principal, "node-b"), "POST", TARGET, BODY) == principal


def test_a_body_is_only_needed_for_what_a_node_has_signed(a: ForwardCredentials, b: ForwardCredentials) -> None:
    with pytest.raises(ForwardRefused):
        b.open(b"made up", "POST", TARGET)
    forwarded = b.open(signed(a), "POST", TARGET)
    forwarded.require_body(BODY)
    with pytest.raises(ForwardRefused):
        forwarded.require_body(b"another")


# --- who is there


def test_a_node_says_which_it_is(a: ForwardCredentials, b: ForwardCredentials) -> None:
    challenge = a.challenge()
    proof = b.prove(challenge)
    assert proof is not None
    assert a.node_of(challenge, proof) == "node-b"


def test_an_answer_belongs_to_its_question(a: ForwardCredentials, b: ForwardCredentials) -> None:
    proof = b.prove(a.challenge())
    assert proof is not None
    assert a.node_of(a.challenge(), proof) is None


def test_who_is_no_node_gets_no_answer_and_gives_none(a: ForwardCredentials, clock: Clock) -> None:
    stranger = ForwardCredentials(b"x" * 32, "node-x", clock)
    assert a.prove(stranger.challenge()) is None
    assert a.prove(b"") is None
    challenge = a.challenge()
    own = stranger.challenge()
    for proof in (stranger.prove(own), b"", b".", b"zz.zz", b"\xff.\xff"):
        assert a.node_of(challenge, proof or b"") is None
