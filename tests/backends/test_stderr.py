"""The ring of last lines."""

from app.backends.stderr import LINE_BYTES, RING_BYTES, StderrRing


def ring_of(*pieces: bytes) -> StderrRing:
    ring = StderrRing()
    for piece in pieces:
        ring.feed(piece)
    return ring


def test_last_lines_come_oldest_first_and_without_blank_ones():
    ring = ring_of(b"one\n\ntw", b"o\n  \nthree")
    assert ring.last_lines(2) == ["two", "three"]
    assert ring.last_lines() == ["one", "two", "three"]
    assert ring.last_lines(0) == []


def test_control_characters_are_escaped():
    ring = ring_of("\x1b[31mred\x07 tab\t nul\0 \u202egnp.exe \u2028 ok: äö\n".encode())
    assert ring.last_lines() == ["\\x1b[31mred\\x07 tab\\t nul\\x00 \\u202egnp.exe \\u2028 ok: äö"]


def test_bytes_that_are_not_text_are_escaped():
    assert ring_of(b"caf\xe9\n").last_lines() == ["caf\\xe9"]


def test_it_never_holds_more_than_twice_its_size_and_shows_the_end():
    ring = StderrRing()
    for number in range(20_000):
        ring.feed(b"line %05d\n" % number)
    assert len(ring._bytes) <= 2 * RING_BYTES
    assert ring.last_lines(1) == ["line 19999"]
    assert sum(len(line) + 1 for line in ring.last_lines(100_000)) <= RING_BYTES


def test_one_large_piece_leaves_its_end():
    ring = ring_of(b"old\n" + b"new line\n" * 100_000)
    assert "old" not in ring.last_lines(100_000)
    assert ring.last_lines(1) == ["new line"]


def test_a_long_line_is_shortened():
    (line,) = ring_of(b"x" * 50_000).last_lines()
    assert line == "x" * LINE_BYTES + " [...]"
