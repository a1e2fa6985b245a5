"""docs/architecture.md follows a real call through all its files: bench/call_cost.py tells which those are."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text()
MOST = {"tools/call": 28, "initialize": 45, "start": 58}  # files that a reader has to open to follow it


@pytest.fixture(scope="module")
def ran() -> dict[str, list[str]]:
    """The files of app/ in which code ran, by method."""
    script = [sys.executable, f"{ROOT}/bench/call_cost.py", "--files"]
    found: dict[str, list[str]] = json.loads(subprocess.run(script, capture_output=True, check=True).stdout)
    return found


def listed(heading: str, block: int = 0) -> set[str]:
    """The files that a block below a heading names."""
    text = TEXT.split(f"## {heading}\n", 1)[1].split("```")[2 * block + 1]
    return set(re.findall(r"(?:\w+/)+\w+\.py", text))


def test_the_files_of_a_call_are_those_in_which_its_code_runs(ran: dict[str, list[str]]) -> None:
    assert listed("One call, file by file") == set(ran["tools/call"])


def test_the_files_of_an_opening_are_those_of_a_call_and_some_that_are_listed(ran: dict[str, list[str]]) -> None:
    of_call = set(ran["tools/call"])
    assert listed("Opening a session, file by file") - of_call == set(ran["initialize"]) - of_call


def test_the_files_of_a_start_are_those_of_an_opening_and_some_that_are_listed(ran: dict[str, list[str]]) -> None:
    of_opening = set(ran["initialize"])
    assert listed("Opening a session, file by file", 1) - of_opening == set(ran["start"]) - of_opening


@pytest.mark.parametrize("method", MOST)
def test_few_files_have_to_be_read_to_follow_it(ran: dict[str, list[str]], method: str) -> None:
    assert len(ran[method]) <= MOST[method], ran[method]
