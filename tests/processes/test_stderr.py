"""The ring of last lines."""

import pytest

from app.domain import BackendSpec, Sandbox
from app.processes._stderr import LINE_BYTES, RING_BYTES, StderrRing, secrets_of


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


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("/srv/notes", False),
        ("/srv/notes/2026/data.db", False),
        ("/srv/shown/a.conf", False),
        ("/srv/work/x", False),
        ("/srv/one.json", False),
        ("/srv/one.json/below", True),  # an argument can be `/`
        ("/srv/notes2/data.db", True),
        ("/srv/notes/../other", True),
        ("/srv/notes/data.db?key=hunter22", True),
        ("hunter22", True),
        ("--token=hunter22", True),
        ("/", True),
        ("/bin/a", True),
    ],
)
def test_a_path_that_the_registration_shows_is_no_secret(value, is_secret):
    sandbox = Sandbox(read=("/srv/shown/",), write=("/srv/notes",))
    args = ("/srv/one.json", "--token=hunter22", "/")
    spec = BackendSpec("acme", "notes", "server", args, {"VALUE": value}, "/srv/work", sandbox=sandbox)
    assert secrets_of(spec) == ["hunter22", *([value] if is_secret else [])]


def test_what_is_secret_is_masked_wherever_it_stands():
    ring = StderrRing(lambda: ["hunter22", "hunter22-and-more", "first line\nsecond line", "1", ""])
    ring.feed(b"hunter22-and-more hunter22 xhunter22x 1\n")
    ring.feed(b"x" * LINE_BYTES + b"hunter22\n")
    ring.feed(b"key: first line\nsecond line\nAuthorization: Bearer abc.def tlk_abcdefgh_0123456789\n")
    first, cut, key, header = ring.last_lines()
    assert first == "*** *** x***x 1"
    assert "hunter" not in cut
    assert key == "key: ***"
    assert header == "Authorization: Bearer *** tlk_abcdefgh_***"


@pytest.mark.parametrize("pieces", [1, 3, 7], ids="{} pieces".format)
@pytest.mark.parametrize("end", [b"", b"\n", b"\nmore\n"])
@pytest.mark.parametrize("gone", [0, 1, 5, 17, 18, 19])
def test_of_a_secret_that_is_half_forgotten_the_other_half_is_masked_too(gone, end, pieces):
    secret = b"0123456789-abcdefgh"
    ring = StderrRing(lambda: [secret.decode()])
    written = b"x" * 1000 + b" " + secret
    written += b"." * (RING_BYTES - len(secret) + gone - len(end)) + end
    size = len(written) // pieces + 1
    for at in range(0, len(written), size):
        ring.feed(written[at : at + size])
    shown = "".join(ring.last_lines(1000))
    assert shown
    assert not [at for at in range(len(secret) - 1) if secret[at:].decode() in shown]


def test_a_key_whose_beginning_is_forgotten_goes_with_its_line():
    ring = StderrRing()
    ring.feed(b"tlk_abcdefgh_" + b"k" * 40 + b"\n" + b"line\n" * (RING_BYTES // 5 - 6) + b"." * 3)
    assert "k" not in "".join(ring.last_lines(100_000))
