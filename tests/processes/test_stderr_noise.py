"""What is no message: how much of it is logged, and when its process is killed for it."""

import logging

import pytest

from app.processes._stderr import (
    LINE_BYTES,
    LOGGED_LINES,
    MINUTE_S,
    STDERR_LINES_PER_S,
    StderrLog,
    StderrRing,
    StdoutNoise,
)

show = StderrRing(lambda: ["hunter22"]).printable


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "app.processes._stderr")
    return caplog


def test_the_first_lines_are_logged_without_secrets_and_control_characters(log: pytest.LogCaptureFixture) -> None:
    noise = StdoutNoise(1000, show, pytest.fail)
    for number in range(50):
        noise.heard(b"\x1b[2Jwelcome %d, the password is hunter22" % number, "p1", 0.0)
    assert len(log.messages) == LOGGED_LINES
    assert log.messages[0].endswith(r"no JSON: \x1b[2Jwelcome 0, the password is ***")


def test_without_debugging_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "app.processes._stderr")
    StdoutNoise(1000, show, pytest.fail).heard(b"welcome", "p1", 0.0)
    StderrLog(show).feed(b"welcome\n", "p1")
    assert caplog.messages == []


def test_one_line_too_many_in_a_minute_kills_once() -> None:
    causes: list[str] = []
    noise = StdoutNoise(1000, show, causes.append)
    for number in range(1000):
        noise.heard(b"x", "p1", number * 0.05)
    assert causes == []
    for _ in range(5):
        noise.heard(b"x", "p1", 59.0)
    assert causes == ["wrote more than 1000 lines in a minute that are no JSON"]


def test_as_many_every_minute_are_no_flood() -> None:
    noise = StdoutNoise(1000, show, pytest.fail)
    for minute in range(1, 5):
        for _ in range(1000):
            noise.heard(b"x", "p1", minute * MINUTE_S)


def test_stderr_is_logged_line_by_line_up_to_a_rate(log: pytest.LogCaptureFixture) -> None:
    stderr = StderrLog(show)
    stderr.feed(b"half a", "p1")
    assert log.messages == []
    stderr.feed(b" line\x07\n" + b"x\n" * 300, "p1")
    assert log.messages[0] == r"A backend's stderr: half a line\x07"
    assert len(log.messages) == STDERR_LINES_PER_S


def test_what_was_left_out_is_told_in_the_next_second(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("app.processes._stderr.time.monotonic", lambda: now)
    stderr = StderrLog(show)
    stderr.feed(b"x\n" * 300, "p1")
    now += 1.0
    stderr.feed(b"later\n", "p1")
    assert log.messages[-2:] == ["A backend's stderr: 200 lines were left out", "A backend's stderr: later"]


def test_a_line_without_end_is_not_kept(log: pytest.LogCaptureFixture) -> None:
    stderr = StderrLog(show)
    for _ in range(100):
        stderr.feed(b"y" * LINE_BYTES, "p1")
    stderr.feed(b"\nnext\n", "p1")
    assert len(log.messages) == 2
    assert len(log.messages[1]) < LINE_BYTES
    assert log.messages[0].endswith("next")
