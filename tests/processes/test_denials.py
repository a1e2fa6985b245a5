"""What a process was denied: counted, bounded, and read from what programs say."""

from datetime import UTC, datetime

import pytest

from app.processes.denials import KEPT, KINDS, MAX_WHAT, SAID_BYTES, Denials, denied_by
from app.telemetry.metrics import DENIALS

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def new() -> Denials:
    return Denials(lambda data: data.decode("ascii", "backslashreplace").replace("hunter22", "***"), lambda: NOW)


def whats(denials: Denials) -> list[tuple[str, str]]:
    return [(each.kind, each.what) for each in denials.last]


@pytest.mark.parametrize(
    ("words", "kind", "what"),
    [
        (rb"[Errno 30] Read-only file system: '/srv/notes/a.md'", "file", b"/srv/notes/a.md"),
        (rb"EROFS: read-only file system, open '/srv/notes/a.md'", "file", b"/srv/notes/a.md"),
        (rb"{\"text\":\"EACCES: permission denied, mkdir '/srv/b'\"}", "file", b"/srv/b"),
        (rb"open /srv/a: permission denied", "file", b"/srv/a"),
        (rb"java.io.FileNotFoundException: /srv/a (Read-only file system)", "file", b"/srv/a"),
        (rb"cannot touch '/srv/a': Read-only file system", "file", b"/srv/a"),
        (rb"Read-only file system (os error 30)", "file", b"Read-only file system"),
        (rb"see /etc/help\nPermission denied: 'x'", "file", b"Permission denied"),
        (rb"connect ECONNREFUSED 127.0.0.1:5432", "address", b"127.0.0.1:5432"),
        (rb"Error 111 connecting to 127.0.0.1:6379. Connection refused.", "address", b"127.0.0.1:6379"),
        (rb"connect EACCES 10.0.0.7:5432", "address", b"10.0.0.7:5432"),
        (rb"connect to 127.0.0.1:9: [Errno 13] Permission denied", "address", b"127.0.0.1:9"),
        (rb'connection to server at "127.0.0.1", port 5432 failed: Connection refused', "address", b"127.0.0.1:5432"),
        (rb"TypeError: fetch failed", "address", b"fetch failed"),
        (rb"getaddrinfo EAI_AGAIN api.example.com", "address", b"api.example.com"),
        (rb"dial tcp [2001:db8::1]:443: connect: network is unreachable", "address", b"[2001:db8::1]:443"),
        (rb"[Errno 28] No space left on device: '/tmp/x'", "disk", b"/tmp/x"),
        (rb"EMFILE: too many open files, open '/srv/a'", "files", b"/srv/a"),
    ],
)
def test_what_programs_say_names_what_they_were_denied(words, kind, what):
    assert next(denied_by(words)) == (kind, what)


def test_the_metric_knows_every_kind():
    assert KINDS == DENIALS


def test_other_words_are_no_denial():
    assert list(denied_by(b"no such file: '/srv/a'; too many open files in system; all permissions are granted")) == []
    assert (
        list(denied_by(b"ERROR: permission denied for table users\n403: permission denied to bob, by 10.0.0.7")) == []
    )


def test_the_same_said_in_two_ways_is_one():
    denials = new()
    denials.said(b"EROFS: read-only file system, open '/srv/a'")
    assert (whats(denials), denials.count) == ([("file", "/srv/a")], 1)


def test_addresses_count_only_where_a_sandbox_keeps_them():
    denials = new()
    for reached in (None, ["10.0.0.1:1"]):
        denials.said(b"connect ECONNREFUSED 10.0.0.1:1", reached)
    assert denials.count == 0
    denials.said(b"connect ECONNREFUSED 10.0.0.1:1", ["10.0.0.1:2"])
    assert whats(denials) == [("address", "10.0.0.1:1")]


def test_what_is_kept_is_bounded_masked_and_printable():
    denials = new()
    for number in range(3 * KEPT):
        denials.note("file", b"/srv/hunter22/\xff" + str(number).encode() + b"x" * 1000)
    assert (denials.count, len(denials.last)) == (3 * KEPT, KEPT)
    assert denials.last[-1].what.startswith("/srv/***/\\xff59")
    assert len(denials.last[-1].what) == MAX_WHAT
    assert all(each.at == NOW for each in denials.last)


def test_of_a_text_only_the_beginning_and_the_first_few_count():
    denials = new()
    denials.said(b"".join(b"EROFS: '/srv/%d' " % number for number in range(5000)))
    denials.said(b" " * SAID_BYTES + b"EROFS: '/srv/late'")
    assert denials.count == 5


def test_what_the_kernel_counts_is_noted_when_it_grows():
    denials = new()
    for total in (0, 3, 3, 10, 2):
        denials.counted("pids", "64 processes", total)
    assert (denials.count, whats(denials)) == (10, [("pids", "64 processes")] * 2)
    assert denials.take_new() == {"pids": 10}
    assert denials.take_new() == {}


def test_what_came_after_a_moment_is_told_apart():
    denials = new()
    denials.note("file", "/a")
    assert [each.what for each in denials.take_last()] == ["/a"]
    assert denials.take_last() == ()
    denials.note("file", "/b", times=100)
    assert [each.what for each in denials.take_last()] == ["/b"]
    for _ in range(2 * KEPT):
        denials.note("file", "/c")
    assert len(denials.take_last()) == KEPT
