"""canonical: what is equal, however it is written, and what is not."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sessions.sessionless.suspended_calls import canonical

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def of(text: str) -> str:
    return canonical(msgspec.Raw(text.encode()))


@given(VALUES)
def test_a_value_is_equal_to_itself_in_another_form(value: object) -> None:
    tight = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    assert of(json.dumps(value, sort_keys=True, indent=2)) == of(tight)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "1.0"), ("-0", "0"), ("0.10", "1e-1"), ("1e21", "1000000000000000000000"), ('"/"', '"\\/"'),
     ('{"a":1,"b":2}', '{ "b":2, "a":1 }'), ("1" + "0" * 23, "1e+23")],
)  # fmt: skip
def test_these_are_the_same(one: str, other: str) -> None:
    assert of(one) == of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "true"), ("1", '"1"'), ("1", '["1"]'), ("null", '"null"'), ("[1,2]", "[2,1]"), ("[]", "{}"),
     ("9007199254740993", "9007199254740992"), ("0.1", "0.2"), ("[" * 5000 + "1" + "]" * 5000, "[" * 5000 + "]" * 5000),
     ('"' + b"x".hex() + '"', b"x".hex())],
)  # fmt: skip
def test_these_are_not(one: str, other: str) -> None:
    assert of(one) != of(other)
