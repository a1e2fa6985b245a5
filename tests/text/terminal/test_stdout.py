"""Stdout that takes nothing."""

import os
import subprocess
import sys

import pytest

from tests.integration.gateway import ROOT

ANNOUNCE = """
import sys
from app.text.terminal.stdout import announce, opened_streams
opened_streams()
announce("one")
announce("two", end="")
print("three")
sys.stdout.flush()
"""
OPENED = """
import os
from app.text.terminal.stdout import opened_streams
opened_streams()
print(os.open(os.devnull, os.O_RDONLY))
"""


def python(program: str, redirection: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PROGRAM": program, "PYTHON": sys.executable}
    line = f'"$PYTHON" -c "$PROGRAM" {redirection}'
    return subprocess.run(
        ["bash", "-c", line], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("redirection", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")])
def test_what_nobody_may_be_there_to_read_is_given_up_with_a_line_in_the_log(redirection: str, why: str) -> None:
    done = python(ANNOUNCE, redirection)
    assert (done.returncode, done.stderr) == (0, f"Cannot write to stdout: {why}\n")


def test_where_it_works_it_is_as_before() -> None:
    done = python(ANNOUNCE, "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwothree\n", "")


def test_numbers_of_standard_streams_are_given_to_nothing_else() -> None:
    assert int(python(OPENED, "<&- 2>&-").stdout) > 2
