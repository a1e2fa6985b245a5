"""Records: what is sealed for one place opens there only, and with the same words beside it."""

import pytest

from app.auth.sealing import Sealer
from app.cluster.routing.records import Records, principal_count_name
from tests.cluster.routing.rig import ALICE, BOB, record, route

records = Records(Sealer(b"k" * 32))


def test_a_route_comes_back_as_it_was():
    made = route("k", token=2**40, identity=("acme", "https://issuer", "älïce \u2028"))
    assert records.open_route("k", b"node-a", str(2**40).encode(), records.seal_route(made)) == made


@pytest.mark.parametrize(
    ("key", "node", "token"), [("k2", b"node-a", b"1"), ("k", b"node-b", b"1"), ("k", b"node-a", b"2")]
)
def test_a_route_opens_only_in_its_place_and_with_its_words(key: str, node: bytes, token: bytes):
    with pytest.raises(ValueError, match=r"was changed|does not open"):
        records.open_route(key, node, token, records.seal_route(route("k")))


def test_junk_and_other_keys_records_do_not_open():
    other = Records(Sealer(b"x" * 32)).seal_route(route("k"))
    for sealed in (b"", b"\x01", b"x" * 200, other, Sealer(b"k" * 32).seal(b"{}", "trunkline:route:k")):
        with pytest.raises(ValueError, match=r"unknown form|does not open|missing required field"):
            records.open_route("k", b"node-a", b"1", sealed)


def test_a_node_comes_back_as_it_was_and_nobody_passes_for_it():
    sealed = records.seal_node(record("node-a", sessions=7))
    assert records.open_node("node-a", sealed) == record("node-a", sessions=7)
    with pytest.raises(ValueError, match="does not open"):
        records.open_node("node-b", sealed)


def test_principals_are_counted_under_names_that_tell_nothing():
    names = {
        principal_count_name("acme", identity)
        for identity in (ALICE, BOB, ("acme", "key\0", "bob"), ("a", "\ud800", ""))
    }
    assert len(names) == 4
    assert not any("alice" in name for name in names)
