"""The line that says what takes so long: where it appears, when, and that nothing of it stays."""

import io
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from app.text.terminal import progress as module
from app.text.terminal.progress import Line, Progress
from app.text.terminal.text import columns_of
from tests.terminals import Terminal, rows_of


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    with Terminal() as terminal:
        yield terminal


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.0)


# --- the line


def test_a_line_is_replaced_and_removed(terminal):
    line = Line(terminal.text)
    line.show("checking 1 of 2: redis")
    terminal.shows("^checking 1 of 2: redis$")
    line.show("short")
    terminal.shows("^short$")
    line.clear()
    line.clear()
    terminal.text.write("the result\nthe next line")
    terminal.text.flush()
    terminal.shows("^the next line$")
    assert terminal.rows == ["the result", "the next line"]
    assert terminal.written.count("\n") == 1


def test_what_others_write_replaces_it(terminal):
    Line(terminal.text).show("stopping")
    print('{"message": "drained"}', file=terminal.text, flush=True)
    terminal.shows("drained")
    assert terminal.rows == ['{"message": "drained"}']


def test_it_fits_the_terminal_and_nothing_in_it_steers_that(terminal):
    line, name = Line(terminal.text), "日本\x1b[2J\n" * 40
    for columns in (20, 41, 10, 2, 1):
        terminal.resize(columns)
        before = len(terminal.written)
        line.show(name)
        print(f"at {columns};", file=terminal.text, flush=True)
        terminal.shows(f"^at {columns};")
        shown = terminal.written[before:].partition("\r\x1b[K")[2].partition("\r")[0]
        assert shown.isprintable()
        assert columns_of(shown) in (columns - 1, columns - 2)


def test_a_terminal_that_does_not_know_its_width_has_eighty_columns(terminal):
    terminal.resize(0)
    Line(terminal.text).show("x" * 200)
    terminal.shows("x")
    assert len(terminal.rows[0]) == module.WIDTH - 1


def test_accents_without_end_have_one(terminal):
    Line(terminal.text).show("e" + "\u0301" * 100_000)
    terminal.shows("e")
    assert len(terminal.written) < 1000


@pytest.mark.parametrize("name", ["dumb", ""])
def test_a_terminal_that_cannot_erase_gets_nothing(terminal, monkeypatch, name):
    monkeypatch.setenv("TERM", name)
    assert not Line(terminal.text).is_possible


def test_without_colour_it_is_the_same(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    line = Line(terminal.text)
    line.show("checking")
    terminal.shows("checking")
    assert terminal.written == "\r\x1b[Kchecking\r"


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", ["pipe", "file", "text", "none"])
def test_what_is_no_terminal_gets_nothing(monkeypatch, tmp_path, kind):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.pipe()
    with open(ours, "rb") as pipe, open(theirs, "w") as into_pipe, open(tmp_path / "log", "w") as file:
        streams = {"pipe": into_pipe, "file": file, "text": io.StringIO(), "none": None}
        monkeypatch.setattr(sys, "stderr", streams[kind])
        with Progress() as progress:
            progress.begin("checking")
            assert "progress" not in [thread.name for thread in threading.enumerate()]
            Line().show("checking")
            Line().clear()
        into_pipe.close()
        assert (pipe.read(), (tmp_path / "log").read_bytes()) == (b"", b"")


def test_a_closed_stream_is_no_terminal(terminal):
    closed = os.fdopen(os.dup(terminal.text.fileno()), "w")
    closed.close()
    assert not Line(closed).is_possible


def test_in_the_background_nothing_is_shown(terminal):
    """The middle process has the terminal; the first child is a job in its background, the second in the foreground."""
    show = "from app.text.terminal.progress import Line; Line().show('job {}'); print('over', flush=True)"
    session = (
        "import os, sys, fcntl, termios, subprocess; fcntl.ioctl(2, termios.TIOCSCTTY, 0); "
        f"[subprocess.run([sys.executable, '-c', {show!r}.format(group), ], check=True, process_group=group)"
        " for group in (0, None)]"
    )
    command = [sys.executable, "-c", session]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=terminal.stream, start_new_session=True, timeout=60, check=True
    )
    assert done.stdout == b"over\nover\n"
    terminal.shows("job None")
    assert "job 0" not in terminal.written


# --- what a command does


@pytest.mark.usefixtures("at_once")
def test_it_says_what_is_done_now_and_is_gone_at_the_end(terminal):
    with Progress(Line(terminal.text)) as progress:
        progress.begin("checking 1 of 2: redis")
        terminal.shows("^checking 1 of 2: redis")
        progress.begin("checking 2 of 2: port")
        terminal.shows("^checking 2 of 2: port")
    print("all is well", file=terminal.text, flush=True)
    terminal.shows("all is well")
    assert terminal.rows == ["all is well"]


def test_it_appears_after_a_second_and_not_before(terminal):
    started = time.monotonic()
    with Progress(Line(terminal.text)) as progress:
        progress.begin("checking")
        terminal.shows("^checking")
        assert time.monotonic() - started >= 1.0


def test_what_takes_less_shows_nothing(terminal, monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 600.0)
    with Progress(Line(terminal.text)) as progress:
        progress.begin("checking")
    print("over\nend", end="", file=terminal.text, flush=True)
    terminal.shows("^end$")  # an end of line may be read after what stands before it
    assert terminal.written == "over\r\nend"


@pytest.mark.usefixtures("at_once")
def test_it_says_for_how_long(terminal):
    now = [100.0]
    with Progress(Line(terminal.text), clock=lambda: now[0]) as progress:
        progress.begin("checking redis")
        terminal.shows("^checking redis$")
        now[0] = 112.5
        terminal.shows(r"^checking redis \(12 s\)$")
        progress.begin("checking the port")
        terminal.shows("^checking the port$")


@pytest.mark.usefixtures("at_once")
def test_a_line_that_stays_is_above_it(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.text)
    with Progress() as progress:
        for number in (1, 2, 3):
            progress.begin(f"applying {number} of 3")
            terminal.shows(f"^applying {number} of 3")
            progress.say(f"made {number}\x1b")
    print("end", file=terminal.text, flush=True)
    terminal.shows("^end$")
    assert terminal.rows == ["made 1\\x1b", "made 2\\x1b", "made 3\\x1b", "end"]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_removes_it_too_and_leaves_no_thread(terminal, error):
    def command() -> None:
        with Progress(Line(terminal.text)) as progress:
            progress.begin("checking")
            terminal.shows("checking")
            raise error

    with pytest.raises(error):
        command()
    assert "progress" not in [thread.name for thread in threading.enumerate()]
    print("trunkline: interrupted", file=terminal.text, flush=True)
    terminal.shows("interrupted")
    assert terminal.rows == ["trunkline: interrupted"]


def test_a_terminal_that_goes_away_ends_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        line = Line(stream)
        line.show("checking")
        os.close(ours)
        line.show("still checking")
        line.clear()


def test_a_terminal_that_nobody_reads_keeps_nobody(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        line = Line(stream)

        def work() -> None:
            for number in range(1000):
                line.show(f"{number} " * 10)
            line.clear()

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(30)
        keeps = worker.is_alive()
        os.close(ours)  # whoever waits goes on
    assert not keeps


def test_the_screen_of_these_tests_is_one():
    assert rows_of("abc\rx\x1b[K\ny") == ["x", "y"]
    assert rows_of("abcdef\rxy\nz") == ["xycdef", "z"]
