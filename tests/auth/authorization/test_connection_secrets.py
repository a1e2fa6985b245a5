"""Codes and refresh tokens: what they are good for follows from their text and the connection."""

from dataclasses import replace

import pytest

from app.auth.authorization.connection_secrets import ConnectionSecrets, Presented
from app.domain import Connection
from tests.auth.tokens import NOW

CONNECTION = Connection(
    "0123456789abcdef", "acme", "cli", "", "key", "k", "", frozenset(), "https://gw", "uri", "c", NOW, NOW, NOW
)
secrets = ConnectionSecrets(b"k" * 32)


def said(text: str) -> Presented:
    found = secrets.read(text)
    assert found is not None
    return found


def test_they_say_what_they_are_and_are_made_again_alike():
    code, refresh = (secrets.of(replace(CONNECTION, turn=turn)) for turn in (0, 12))
    assert code.startswith("tlc_0123456789abcdef.0.")
    assert refresh.startswith("tlr_0123456789abcdef.12.")
    assert refresh == ConnectionSecrets(b"k" * 32).of(replace(CONNECTION, turn=12, challenge="other"))
    for text, turn in ((code, 0), (refresh, 12)):
        presented = said(text)
        assert presented == (text, CONNECTION.id, turn)
        assert secrets.is_of(presented, CONNECTION)


def test_what_was_made_for_something_else_is_none_of_a_connection():
    made = [secrets.of(CONNECTION), secrets.of(replace(CONNECTION, turn=1))]
    for other in (replace(CONNECTION, tenant="zenith"), replace(CONNECTION, id="f" * 16)):
        assert not any(secrets.is_of(said(each), other) for each in made)
    assert not any(ConnectionSecrets(b"o" * 32).is_of(said(each), CONNECTION) for each in made)
    moved = made[1].replace(".1.", ".2.")
    assert not secrets.is_of(said(moved), CONNECTION)


@pytest.mark.parametrize("change", [
    ("tlc_", "tlr_"), ("tlc_", "tlx_"), ("tlc_", ""), (".0.", ".-1."), (".0.", ".0000000000."), (".0.", ".x."),
    (".0.", ".1."), ("abcdef", "ABCDEF"), ("abcdef", "abcde"), ("abcdef", "abcdefa"), (".0.", ".\u0660."), (".", "..")
])  # fmt: skip
def test_what_has_another_form_is_neither(change):
    assert secrets.read(secrets.of(CONNECTION).replace(*change)) is None
    for text in (secrets.of(CONNECTION) + "\n", " " + secrets.of(CONNECTION), secrets.of(CONNECTION)[:-1], "", "\0"):
        assert secrets.read(text) is None
