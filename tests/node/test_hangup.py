"""What SIGHUP asks for: with a certificate, without one, and where the terminal was closed."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.node.hangup import Hangup
from tests.integration.gateway import ROOT

IN_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # whoever runs the tests may ignore it, as `nohup` does
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def test_with_a_certificate_it_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    hangup = Hangup(read_again=lambda: done.append("read"), stop=lambda: done.append("stop"))
    hangup.take()
    hangup.take()
    assert (done, caplog.messages) == (["read", "read"], [])


def test_without_one_it_is_ignored_and_said(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    with caplog.at_level(logging.WARNING):
        Hangup(read_again=None, stop=lambda: done.append("stop")).take()
    assert done == []
    (line,) = caplog.messages
    assert "no TLS certificate" in line


@pytest.mark.parametrize("wrapped", [[], ["nohup"]], ids=["plain", "nohup"])
def test_a_node_whose_terminal_is_closed_stops_unless_it_was_started_for_that(
    tmp_path: Path, wrapped: list[str]
) -> None:
    ours, theirs = os.openpty()
    command = [
        "/usr/bin/env",
        *wrapped,
        sys.executable,
        "-m",
        "app",
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(tmp_path),
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *command],
            cwd=ROOT,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    os.close(theirs)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening on ")
        os.close(ours)
        if wrapped:
            said = "Ignoring SIGHUP"
            while said not in (tmp_path / "log").read_text():
                assert process.poll() is None
        else:
            said = "The terminal was closed"
            assert process.wait(60) == 0
        assert said in (tmp_path / "log").read_text()
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()
