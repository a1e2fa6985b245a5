"""What nodes say to each other, and the records that carry it."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain import Principal
from app.routing import frames
from app.routing.frames import (
    DATA,
    END,
    MAX_RECORD_BYTES,
    Frame,
    LinkBroken,
    RecordReader,
    RecordWriter,
    RequestHead,
    chunks,
    decode_number,
    decode_request,
    decode_response,
    encode_frame,
    encode_number,
    encode_request,
    encode_response,
)

KEY = b"k" * 32
ALICE = Principal("acme", "https://issuer.example.com", "ali.ce\nü\ud800", frozenset({"mcp:connect", "tenant:read"}))
HEAD = RequestHead("POST", b"/t/acme/echo/mcp?a=b", "http://127.0.0.1:8080", ALICE, ((b"accept", b"a/b, c: d"),))
LENGTH_BYTES, RECORD_HEAD_BYTES = 4, 20

words = st.binary(max_size=20).map(lambda word: word.translate(None, b"\n"))
names = words.map(lambda word: word.translate(None, b":"))
headers = st.lists(st.tuples(names, words), max_size=5).map(tuple)
texts = st.text(max_size=10)
principals = st.builds(
    Principal, texts, texts, texts, st.frozensets(texts, max_size=3), st.none() | st.floats(0, 2**40)
)
heads = st.builds(
    RequestHead,
    st.sampled_from(["GET", "POST", "DELETE", "OPTIONS"]),
    words.map(lambda word: word.translate(None, b" ")),
    st.sampled_from(["", "http://a", "https://b.example.com:8443/x"]),
    principals,
    headers,
)
said = st.lists(
    st.builds(Frame, st.integers(1, 6), st.integers(0, 2**64 - 1), st.binary(max_size=300), st.booleans()), max_size=6
)


def encoded(frame: Frame) -> bytes:
    return encode_frame(frame.kind | END if frame.is_end else frame.kind, frame.stream, frame.payload)


def recorded(*lots: list[Frame]) -> list[bytes]:
    """A record for each of these."""
    writer = RecordWriter(KEY)
    return [writer.record(b"".join(map(encoded, lot))) for lot in lots]


def read(*data: bytes, reader: RecordReader | None = None) -> list[Frame]:
    reader = reader or RecordReader(KEY)
    return [frame for part in data for frame in reader.feed(part)]


# --- heads


@settings(deadline=None)
@given(heads, st.binary(max_size=100))
def test_a_request_is_read_as_it_was_written(head: RequestHead, body: bytes) -> None:
    assert decode_request(encode_request(head, body)) == (head, body)


@settings(deadline=None)
@given(st.integers(100, 599), headers, st.binary(max_size=100))
def test_an_answer_is_read_as_it_was_written(status: int, given_headers: frames.RawHeaders, body: bytes) -> None:
    assert decode_response(encode_response(status, given_headers) + body) == (status, given_headers, body)


def test_a_body_may_hold_anything_and_be_of_any_length() -> None:
    for body in (b"", b"\n\n", b"\n", b"a\n\nb", bytes(frames.CHUNK_BYTES)):
        assert decode_request(encode_request(HEAD, body)) == (HEAD, body)


def test_long_heads_are_read_like_short_ones() -> None:
    long = HEAD._replace(headers=((b"a", b"x" * 3 * frames.REMEMBERED_BYTES),))
    assert decode_request(encode_request(long, b"")) == (long, b"")
    assert decode_response(encode_response(200, long.headers)) == (200, long.headers, b"")


def test_scopes_that_change_are_not_those_remembered() -> None:
    for scopes in (frozenset({"mcp:connect"}), frozenset({"mcp:connect:echo"}), frozenset[str]()):
        head = HEAD._replace(principal=Principal("acme", "key", "k", scopes))
        assert decode_request(encode_request(head, b""))[0].principal.scopes == scopes


@pytest.mark.parametrize(
    "change",
    [
        {"target": b"/a\nx: y"},
        {"target": b"/a b"},
        {"target": b"/a\n"},
        {"method": "GET /"},
        {"method": "GET\n"},
        {"base_url": "http://a b"},
        {"base_url": "http://a\n"},
        {"headers": ((b"a", b"b\nc:d"),)},
        {"headers": ((b"a\nb", b"c"),)},
        {"headers": ((b"a", b"b"), (b"c", b"d\n\n"))},
    ],
)
def test_a_line_break_never_becomes_another_header(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode_request(HEAD._replace(**change), b"")


def test_a_line_break_in_an_answer_never_becomes_another_header() -> None:
    with pytest.raises(ValueError, match="line break"):
        encode_response(200, [(b"a", b"b\nc:d")])


@pytest.mark.parametrize("number", [0, 1, 2**32, 2**64 - 1])
def test_numbers_are_read_as_they_were_written(number: int) -> None:
    assert decode_number(encode_number(number)) == number


@pytest.mark.parametrize("size", [0, 1, frames.CHUNK_BYTES, frames.CHUNK_BYTES + 1, 5 * frames.CHUNK_BYTES])
def test_a_body_is_cut_into_frames(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    parts = list(chunks(body[:size]))
    assert b"".join(parts) == body[:size]
    assert all(0 < len(part) <= frames.CHUNK_BYTES for part in parts)


# --- records


@settings(deadline=None)
@given(st.lists(said, max_size=5), st.lists(st.integers(0, 10_000), max_size=10))
def test_records_are_read_wherever_they_are_cut(lots: list[list[Frame]], places: list[int]) -> None:
    data = b"".join(recorded(*lots))
    cuts = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    reader = RecordReader(KEY)
    parts = [data[begin:end] for begin, end in pairwise(cuts)]
    assert read(*parts, reader=reader) == [frame for lot in lots for frame in lot]
    assert repr(reader) == f"<RecordReader [{len(lots)} records, 0 bytes of the next]>"


@settings(deadline=None)
@given(said, st.data())
def test_every_bit_of_a_record_counts(lot: list[Frame], drawn: st.DataObject) -> None:
    record = bytearray(recorded(lot)[0])
    place = drawn.draw(st.integers(LENGTH_BYTES, len(record) - 1))
    record[place] ^= 1 << drawn.draw(st.integers(0, 7))
    with pytest.raises(LinkBroken):
        read(bytes(record))


@settings(deadline=None)
@given(said, st.integers(0, 31))
def test_a_changed_length_never_gives_a_frame(lot: list[Frame], bit: int) -> None:
    first, second = recorded(lot, lot)
    length = int.from_bytes(first[:LENGTH_BYTES]) ^ (1 << bit)
    reader, found = RecordReader(KEY), list[Frame]()
    try:
        found = read(length.to_bytes(LENGTH_BYTES) + first[LENGTH_BYTES:], second, reader=reader)
    except LinkBroken:
        return
    assert not found  # it waits for the rest of what is longer than all that has come
    assert "<RecordReader [0 records" in repr(reader)


@pytest.mark.parametrize("order", [[1], [0, 0], [0, 2], [1, 0], [0, 1, 1], [0, 1, 0]])
def test_a_record_that_is_left_out_repeated_or_elsewhere_ends_the_link(order: list[int]) -> None:
    records = recorded(*[[Frame(DATA, number, b"x", False)] for number in range(3)])
    with pytest.raises(LinkBroken):
        read(*[records[number] for number in order])


def test_what_came_before_is_still_given() -> None:
    good, _, bad = recorded(*[[Frame(DATA, number, b"x", False)] for number in range(3)])
    feed = RecordReader(KEY).feed(good + bad)
    assert next(feed).stream == 0
    with pytest.raises(LinkBroken):
        next(feed)


def test_a_record_counts_in_its_direction_only() -> None:
    with pytest.raises(LinkBroken):
        list(RecordReader(b"x" * 32).feed(recorded([Frame(DATA, 1, b"x", False)])[0]))


def test_the_longest_record_is_read_and_a_longer_one_refused_by_its_head() -> None:
    overhead = len(encode_frame(DATA, 1, b""))
    longest = RecordWriter(KEY).record(encode_frame(DATA, 1, bytes(MAX_RECORD_BYTES - overhead)))
    (frame,) = read(longest)
    assert len(frame.payload) == MAX_RECORD_BYTES - overhead
    with pytest.raises(LinkBroken):
        read((MAX_RECORD_BYTES + 1).to_bytes(LENGTH_BYTES) + bytes(RECORD_HEAD_BYTES - LENGTH_BYTES))


def test_no_more_is_kept_than_one_record() -> None:
    """Of what is not known to be a node's: its MAC comes at the end."""
    reader, part = RecordReader(KEY), bytes(65536)
    head = MAX_RECORD_BYTES.to_bytes(LENGTH_BYTES) + bytes(RECORD_HEAD_BYTES - LENGTH_BYTES)
    read(head, reader=reader)
    for _ in range(MAX_RECORD_BYTES // len(part) - 1):
        assert read(part, reader=reader) == []
    assert len(reader._rest) <= RECORD_HEAD_BYTES + MAX_RECORD_BYTES
    with pytest.raises(LinkBroken):
        read(part, reader=reader)


class Counted(bytearray):
    """Counts the bytes that are taken out of it."""

    taken = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        self.taken += len(found) if isinstance(found, bytearray) else 1
        return found


def test_a_record_that_comes_byte_by_byte_is_looked_at_once() -> None:
    (record,) = recorded([Frame(DATA, 1, bytes(50_000), True)])
    reader = RecordReader(KEY)
    reader._rest = rest = Counted()
    found = read(*[record[at : at + 1] for at in range(len(record))], reader=reader)
    assert [len(frame.payload) for frame in found] == [50_000]
    assert reader._rest is rest
    assert rest.taken <= len(record)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=10))
def test_anything_else_is_no_record(parts: list[bytes]) -> None:
    try:
        found = read(*parts)
    except LinkBroken:
        return
    assert not found
