"""Notice: what is written down and read again, and what is not believed."""

import msgspec
import pytest

from app.auth.sealing import Sealer
from app.cluster.routing.notice import STREAM, WORDS, Kind, Received, read, write

SEALS = Sealer(b"s" * 32)


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_read_as_it_was_written(kind):
    received = Received("node-a", 7, kind, tuple(f"word {n} \x00é" for n in range(WORDS[kind])))
    assert read(SEALS, write(SEALS, received)) == received


def test_what_is_written_shows_nothing():
    assert b"acme" not in write(SEALS, Received("a", 1, Kind.TENANT_REMOVED, ("acme",)))


@pytest.mark.parametrize(
    "written",
    [
        Sealer(b"t" * 32).seal(msgspec.msgpack.encode(["a", 1, "resync", []]), STREAM),
        SEALS.seal(msgspec.msgpack.encode(["a", 1, "resync", []]), "elsewhere"),
        SEALS.seal(msgspec.msgpack.encode(["a", 1, "of a later version", []]), STREAM),
        SEALS.seal(msgspec.msgpack.encode(["a", 1, "key_revoked", ["too", "few"]]), STREAM),
        SEALS.seal(b"\xff", STREAM),
        b"",
    ],
    ids=["another key", "another place", "unknown kind", "words missing", "no message", "nothing"],
)
def test_what_no_node_of_ours_wrote_is_not_read(written):
    with pytest.raises(
        ValueError,
        match=r"does not open|Invalid enum value|words are missing|malformed|truncated|unknown form|Expected",
    ):
        read(SEALS, written)
