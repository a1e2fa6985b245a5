"""LineBuffer: the same lines however the bytes were cut, and nothing that grows."""

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from app.protocol.framing import END_BYTES, LineBuffer

LIMIT = 20
streams = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b" ", b"x" * 15, b"y" * 25])).map(b"".join)


def feed_in_pieces(buffer: LineBuffer, data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [line for start, end in itertools.pairwise(places) for line in buffer.feed(data[start:end])]


@given(streams, st.lists(st.integers(min_value=0), max_size=30))
def test_any_chunking_gives_the_same_lines(data, cuts):
    whole, pieces = LineBuffer(LIMIT), LineBuffer(LIMIT)
    assert feed_in_pieces(pieces, data, cuts) == whole.feed(data)
    # A limit below END_BYTES, as here: how much of the beginning was seen depends on the pieces.
    assert [(first[:LIMIT], last) for first, last in pieces.overlong] == [
        (first[:LIMIT], last) for first, last in whole.overlong
    ]
    assert pieces.discarded_bytes == whole.discarded_bytes


@given(streams, st.lists(st.integers(min_value=0), max_size=30))
def test_lines_are_what_a_plain_split_says(data, cuts):
    raw = data.split(b"\n")[:-1]
    expected = [line.removesuffix(b"\r") for line in raw if len(line) <= LIMIT and line.strip()]
    assert feed_in_pieces(LineBuffer(LIMIT), data, cuts) == expected


def test_whole_lines_come_out_at_once():
    assert LineBuffer().feed(b'{"id":1}\n{"id":2}\r\n\n  \n') == [b'{"id":1}', b'{"id":2}']


def test_half_a_line_waits_for_its_end():
    buffer = LineBuffer()
    assert buffer.feed(b'{"id"') == []
    assert buffer.feed(b":1}\nrest") == [b'{"id":1}']
    assert buffer.feed(b"\n") == [b"rest"]


def test_an_overlong_line_is_told_by_its_beginning_as_soon_as_it_is_too_long_and_by_both_ends_when_it_has_ended():
    buffer = LineBuffer(10_000)
    for _ in range(10):
        assert buffer.feed(b"z" * 1_000) == []
    assert buffer.overlong == []
    buffer.feed(b"z")
    beginning = b"z" * END_BYTES
    assert buffer.overlong == [(beginning, b"")]
    assert buffer.discarded_bytes == 10_001
    buffer.feed(b"z" * 50_000)
    assert len(buffer.overlong) == 1
    assert buffer.discarded_bytes == 60_001
    assert buffer.feed(b"end\nnext\n") == [b"next"]
    assert buffer.overlong[1:] == [(beginning, b"z" * (END_BYTES - 3) + b"end")]
    assert buffer.discarded_bytes == 0


def test_an_overlong_line_inside_one_chunk_leaves_its_neighbours_alone():
    buffer = LineBuffer(5)
    assert buffer.feed(b"one\nfar too long\ntwo\n") == [b"one", b"two"]
    assert buffer.overlong == [(b"far too long", b""), (b"far too long", b"far too long")]


def test_what_is_discarded_is_not_kept():
    buffer = LineBuffer(1_000)
    for _ in range(1_000):
        buffer.feed(b"z" * 65_536)
    assert (len(buffer._partial), buffer.discarded_bytes) == (0, 65_536_000)


def test_a_line_of_16_mib_in_pieces_takes_linear_time():
    buffer, piece = LineBuffer(32 << 20), b"z" * 65_536
    started = time.thread_time()
    for _ in range(256):
        buffer.feed(piece)
    (line,) = buffer.feed(b"\n")
    assert len(line) == 16 << 20
    assert time.thread_time() - started < 1.0  # quadratic: over ten seconds


def test_the_beginning_of_an_unfinished_line_is_known_and_of_no_other():
    buffer = LineBuffer(100_000)
    buffer.feed(b"whole\n")
    assert buffer.beginning == b""
    buffer.feed(b"first\nbegin")
    assert buffer.beginning == b"begin"
    buffer.feed(b"x" * END_BYTES)
    assert buffer.beginning == b"begin" + b"x" * (END_BYTES - 5)
    buffer.feed(b"x" * 100_000)  # too long by now
    assert buffer.beginning == b"begin" + b"x" * (END_BYTES - 5)
    buffer.feed(b"\n")
    assert buffer.beginning == b""


def test_a_byte_order_mark_before_a_line_is_no_part_of_it():
    mark = b"\xef\xbb\xbf"
    buffer = LineBuffer()
    assert buffer.feed(mark + b'{"id":1}\n' + mark + b'{"id":2}\r\n') == [b'{"id":1}', b'{"id":2}']
    assert [line for piece in (mark[:1], mark[1:] + b'{"id"', b":3}\n") for line in buffer.feed(piece)] == [b'{"id":3}']
