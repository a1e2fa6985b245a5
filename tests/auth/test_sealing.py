"""Sealer: what is sealed opens in its place only, and no key is used for two places."""

import secrets

import pytest

from app.auth.sealing import SealBroken, Sealer

SEALER = Sealer(b"k" * 32)
ROUTE, LEASE = "trunkline:route:k", "trunkline:node:a"


def test_a_secret_opens_in_its_place_with_its_key_and_nowhere_else() -> None:
    sealed = SEALER.seal(b"secret", ROUTE)
    assert Sealer(b"k" * 32).open(sealed, ROUTE) == b"secret"
    for stranger, place in ((SEALER, LEASE), (Sealer(b"x" * 32), ROUTE), (SEALER.within(LEASE), ROUTE)):
        with pytest.raises(SealBroken):
            stranger.open(sealed, place)


@pytest.mark.parametrize("sealed", [b"", b"\x01" * 100, b"\x02", b"\x02" * 100, b"\xff" * 100])
def test_what_was_not_sealed_does_not_open(sealed: bytes) -> None:
    with pytest.raises(SealBroken):
        SEALER.open(sealed, ROUTE)


def test_a_changed_byte_is_noticed() -> None:
    sealed = SEALER.seal(b"secret", ROUTE)
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises(SealBroken):
            SEALER.open(changed, ROUTE)


def test_each_place_and_each_part_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one nonce for all, what one key makes of the same words is the same whatever place it was made for."""
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    places = [ROUTE, LEASE, "trunkline:node:b", "trunkline:use:a", "trunkline:notices"]
    journals = [SEALER.within(f"trunkline:journal:k:{token}") for token in (1, 2)]
    sealed = [SEALER.seal(b"the same words", place) for place in places]
    sealed += [journal.seal(b"the same words", "0") for journal in journals]
    bodies = {each[13 : 13 + len(b"the same words")] for each in sealed}
    assert len(bodies) == len(places) + len(journals)
    a_part = journals[0]
    one, other = (a_part.seal(b"the same words", place)[:-16] for place in ("0", "1"))
    assert one == other  # the places of one part share its key


def test_the_same_words_are_never_sealed_alike() -> None:
    assert len({SEALER.seal(b"the same words", ROUTE) for _ in range(100)}) == 100


def test_keys_that_are_derived_anew_are_the_same() -> None:
    sealed = SEALER.seal(b"secret", ROUTE)
    for number in range(2000):
        SEALER.seal(b"", f"place-{number}")
    assert SEALER.open(sealed, ROUTE) == b"secret"
