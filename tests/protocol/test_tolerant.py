"""tolerant: agrees with the standard library about what is JSON, whatever was done to it; and never takes long."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ParseError
from app.protocol import tolerant
from app.protocol.commands import Dropped, Several
from app.protocol.exchange import Exchange
from app.protocol.tolerant import MAX_BYTES, MAX_MESSAGES, MAX_STEPS, Broken, answered, broken, members, messages

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
documents = st.dictionaries(st.text(max_size=3), values, max_size=3)
splinters = st.sampled_from([b"", *(bytes([each]) for each in b',]}{[":0-.e\\ tn\t\n'), b"\\u12", b"\\ud83d", b"NaN"])
wounds = st.lists(st.tuples(st.integers(min_value=0), st.integers(0, 2), splinters), max_size=3)


def refuse(name: str) -> Any:
    raise ValueError(name)


def plain(text: str) -> Any:
    """Strictly, and without what Python reads besides."""
    return json.loads(text, parse_constant=refuse)


def as_python(data: bytes) -> Any:
    """What the standard library makes of it; None where it is no object."""
    try:
        found = plain(data.decode())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def as_we_do(data: bytes) -> Any:
    try:
        return {key: plain(bytes(value).decode()) for key, value in members(data)}
    except ParseError:
        return None


@given(documents, st.booleans(), st.none() | st.just(1), wounds)
def test_it_agrees_with_the_standard_library(document, ascii_only, indent, wounds) -> None:
    data = bytearray(json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass"))
    for place, length, splinter in wounds:
        at = place % (len(data) + 1)
        data[at : at + length] = splinter
    try:
        data.decode()
    except UnicodeDecodeError:
        return  # which others look at
    assert as_we_do(bytes(data)) == as_python(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"a":' + b"[" * MAX_STEPS, id="depth without end"),
        pytest.param(b'{"a":[' + b"[[]]," * MAX_STEPS + b"1]}", id="many"),
        pytest.param(b'{"a":"' + b"x" * MAX_BYTES + b'"}', id="long"),
    ],
)
def test_what_takes_long_is_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        members(data)
    assert broken(data) == Broken()


def test_equal_keys_are_told_both() -> None:
    assert [(key, bytes(value)) for key, value in members(b' {"a" : 1 ,"\\u0061":[ ] }\n')] == [
        ("a", b"1"),
        ("a", b"[ ]"),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"id":1}', []),
        (b'{"id":1}{"id":2}', [b'{"id":1}', b'{"id":2}']),
        (b'{"id":1} {"id":', [b'{"id":1} ', b'{"id":']),
        (b'{"id":1} and a word', [b'{"id":1} ', b"and a word"]),
        (b'[{"id":1}]', []),
        (b"{}" * (MAX_MESSAGES + 1), []),
        (b"a word", []),
        (b"", []),
    ],
)
def test_the_messages_of_a_line(line: bytes, expected: list[bytes]) -> None:
    assert messages(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":NaN}', Broken(answers=b"7")),
        (b' {"result":{"id":8},"id" : "7"}', Broken(answers=b'"7"')),
        (b'{"id":7,"error":{"message":"it broke o', Broken(answers=b"7")),
        (b'{"id":7', Broken()),
        (b'{"result":{},"id":7', Broken()),
        (b'{"id":7,"method":"x","params":NaN}', Broken(asks=b"7")),
        (b'{"result":"caf\xe9 \\"id\\":7"}', Broken()),
        (b'{"result":{"id":7},NaN', Broken()),
        (b'{"id":7,"result":[}}', Broken(answers=b"7")),
        (b"7", Broken()),
        (b'{"id":7,"result":NaN,"\\u0069d":8}', Broken()),
        (b'{"\\u0069d":7,"result":NaN}', Broken(answers=b"7")),
        (b'{"id":7,"m\\u0065thod":"x","params":NaN}', Broken(asks=b"7")),
    ],
)
def test_whose_a_broken_line_is(line: bytes, expected: Broken) -> None:
    assert broken(line) == expected


def test_a_long_line_that_broke_off_behind_an_inner_id_is_no_answer_to_it() -> None:
    """Of one over MAX_BYTES only the ends are read."""
    inner = b'{"result":{"content":"' + b"x" * MAX_BYTES + b'","of":{"kind":"\xff","id":7}'
    assert broken(inner) == Broken()
    assert broken(inner + b',"id":8') == Broken()
    assert broken(inner + b'},"id":8}') == Broken(answers=b"8")


@given(documents, st.integers(0, 99), st.sampled_from(["id first", "id last", "version last"]), st.text(max_size=30))
def test_the_ends_of_an_answer_name_its_id_or_none(document, number, order, text) -> None:
    """Whatever the payload holds, and pretends to be."""
    payload = {"result": {**document, "text": f'{text},"id":100}}'}}
    about = {"jsonrpc": "2.0", "id": number}
    message = about | payload if order == "id first" else payload | about
    if order == "version last":
        message = payload | {"id": number, "jsonrpc": "2.0"}
    line = json.dumps(message).encode()
    for size in range(1, 40):
        assert answered(line[:size], line[-size:]) in (None, str(number).encode())
    assert answered(line[:40], line[-40:]) == str(number).encode()


@pytest.mark.parametrize(
    "ends", [(b'{"method":"x","params":{', b'},"id":7}'), (b'{"id":7,"method":"x"', b"}"), (b"", b',"id":7}')]
)
def test_the_ends_of_what_is_no_answer_name_nothing(ends: tuple[bytes, bytes]) -> None:
    assert answered(*ends) is None
    assert not tolerant.is_answer(ends[0])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"{}" * 500_000, id="messages"),
        pytest.param((b'{"a":[' + b"[[]]," * 10_000 + b"1]}") * 30, id="large messages"),
        pytest.param(b"[" + b"{}," * 300_000 + b"{}]", id="a batch"),
        pytest.param(b'{"a":[' + b"[[]]," * 200_000 + b'"\\ud83d"]}', id="arrays"),
    ],
)
def test_a_line_takes_few_steps_in_whatever_it_is_cut(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: a step takes about a microsecond."""
    steps = 0
    skip_value = tolerant._Children._skip_value

    def counted(self: Any) -> None:
        nonlocal steps
        before = self.steps
        try:
            skip_value(self)
        finally:
            steps += self.steps - before

    monkeypatch.setattr(tolerant._Children, "_skip_value", counted)
    exchange = Exchange(60.0)
    assert isinstance(exchange.receive(line, 0.0), Dropped | Several)
    assert steps <= 4 * (MAX_STEPS + 1)


@pytest.mark.parametrize(
    ("beginning", "named"),
    [
        (b'{"jsonrpc":"2.0","id":"a","result":{"te', b'"a"'),
        (b'{"result":{"te', b""),  # its id comes last
        (b'{"jsonrpc":"2.0","id":7,', None),  # it may be a question
        (b'{"jsonrpc":"2.0","id":7,"method":"x"', None),
        (b"Downloading 50 %", None),
        (b"", None),
    ],
)
def test_whose_an_answer_is_that_has_begun(beginning: bytes, named: bytes | None) -> None:
    assert tolerant.begins_answer(beginning) == named
