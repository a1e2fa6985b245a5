"""Headers in several lines, and credentials in two places."""

import pytest

from app.http.errors import HttpRefusal
from app.http.header_fields import refuse_repeated, trimmed, with_lists_joined, with_one_credential

KEY = (b"x-api-key", b"k")


def test_lines_of_a_list_are_one_list_in_their_order():
    fields = [(b"accept", b"text/event-stream"), (b"host", b"h"), (b"accept", b"application/json;q=0.5, */*;q=0")]
    assert with_lists_joined(fields) == [
        (b"host", b"h"), (b"accept", b"text/event-stream, application/json;q=0.5, */*;q=0"),
    ]  # fmt: skip
    others = [(b"mcp-param-x", b"1"), (b"mcp-param-x", b"2"), (b"x-forwarded-for", b"a"), (b"x-forwarded-for", b"b")]
    assert with_lists_joined(others) == others


@pytest.mark.parametrize("name", [b"authorization", b"mcp-session-id", b"origin", b"host", b"idempotency-key"])
def test_what_can_mean_one_thing_stands_once(name):
    refuse_repeated([(name, b"a"), (b"accept", b"a")])
    with pytest.raises(HttpRefusal, match="is repeated"):
        refuse_repeated([(name, b"a"), (name, b"b")])


@pytest.mark.parametrize(
    "fields",
    [[KEY], [KEY, KEY], [(b"x-api-key", b" k ")], [KEY, (b"authorization", b"Bearer k")],
     [(b"authorization", b"Bearer k"), KEY], [KEY, (b"x-api-key", b"")], [(b"authorization", b""), KEY],
     [(b"authorization", b"Bearer "), KEY], [KEY, (b"authorization", b"bearer")], [(b"authorization", b"Basic a"), KEY],
     [KEY, (b"authorization", b"k")]],
)  # fmt: skip
def test_a_key_is_one_credential_wherever_it_stands(fields):
    assert with_one_credential(fields) == [(b"authorization", b"Bearer k")]


def test_an_empty_key_is_none():
    assert with_one_credential([(b"x-api-key", b" ")]) == []


@pytest.mark.parametrize(
    "other",
    [(b"authorization", b"Bearer other"), (b"authorization", b"bearer  other "), (b"x-api-key", b"other")],
)  # fmt: skip
def test_two_credentials_that_differ_are_refused(other):
    with pytest.raises(HttpRefusal, match="send one of them") as refusal:
        with_one_credential([other, KEY])
    assert (refusal.value.status, refusal.value.reason) == (400, "two_credentials")


@pytest.mark.parametrize("name", [b"authorization", b"mcp-session-id"])
def test_spaces_behind_a_value_are_no_part_of_it_and_an_empty_one_is_none(name):
    host = (b"host", b"h ")
    for value, kept in ((b"a b \t ", [(name, b"a b")]), (b"", []), (b" \t", [])):
        assert trimmed([host, (name, value)]) == [host, *kept]
