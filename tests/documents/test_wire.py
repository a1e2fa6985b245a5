"""docs/wire.md is true: its commands are run, in order, against a real gateway.

Each fenced ```sh block is run (a word behind `sh` is its `kind`; `parsed` is not run), all in one bash that has
GATEWAY_URL (of the backend `time` that `serve --demo` sets up, without the last word) and KEY in its environment.
A ```text block after one holds lines that must all appear in its output; `...` stands for anything.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.gateway import ROOT, running_gateway

WIRE = ROOT / "docs/wire.md"
BLOCK = re.compile(r"^```(\w*) *(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
WITHIN_S = 400
pytestmark = pytest.mark.timeout(WITHIN_S + 30)
SEPARATOR = "---8<--- end of block {} ---8<---"


@dataclass
class Step:
    """One command block and the lines that its output must have."""

    line: int
    script: str
    expected: list[str]
    kind: str = ""


def steps_of(text: str) -> list[Step]:
    steps: list[Step] = []
    end_of_last = -1
    for block in BLOCK.finditer(text):
        language, kind, body = block.groups()
        between = text[end_of_last : block.start()] if end_of_last >= 0 else ""
        if kind == "parsed":  # test_examples.py looks at these
            end_of_last = -1
        elif language == "sh":
            steps.append(Step(text.count("\n", 0, block.start()) + 1, body, [], kind))
            end_of_last = block.end()
        elif language == "text" and end_of_last >= 0 and not re.search(r"^#", between, re.MULTILINE):
            steps[-1].expected += [line.strip() for line in body.splitlines() if line.strip()]
            end_of_last = -1
    return steps


def appears(expected: str, output: str) -> bool:
    """Whether a line of the output has this in it; `...` stands for anything on that line."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.search(pattern, output) is not None


def run(steps: list[Step], environment: dict[str, str], directory: Path, within_s: float = WITHIN_S) -> list[str]:
    """The output of each step, all of them run by one bash."""
    script = "".join(f"{step.script}\necho '{SEPARATOR.format(number)}'\n" for number, step in enumerate(steps))
    with subprocess.Popen(
        ["bash"],
        env={**os.environ, **environment},
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as bash:
        try:
            rest, _ = bash.communicate(script, within_s)
        except subprocess.TimeoutExpired as error:
            rest = (error.stdout or b"").decode()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGKILL)
    outputs = []
    for number, step in enumerate(steps):
        output, found, rest = rest.partition(SEPARATOR.format(number) + "\n")
        assert found, f"the block at line {step.line} did not come to its end within {within_s} s:\n{output}"
        outputs.append(output)
    return outputs


@pytest.mark.skipif(not WIRE.exists(), reason="docs/wire.md is not there yet")
def test_every_command_of_the_wire_document_prints_what_it_says(tmp_path: Path) -> None:
    steps = steps_of(WIRE.read_text())
    assert steps, "no ```sh blocks"
    assert any(step.expected for step in steps), "no ```text block with an expectation"
    with running_gateway(tmp_path / "data") as gateway:
        url = gateway.add_backend("default", "time", sys.executable, ["-m", "mcp_server_time"])
        outputs = run(steps, {"GATEWAY_URL": url, "KEY": gateway.key("default")}, tmp_path)
    for step, output in zip(steps, outputs, strict=True):
        missing = [line for line in step.expected if not appears(line, output)]
        assert not missing, f"docs/wire.md:{step.line}: missing {missing} in\n{output}"


def test_a_document_is_read_as_commands_and_what_they_print(tmp_path: Path) -> None:
    text = "# A\n```sh\necho one\n```\nprints\n```text\no...e\n```\n```json\n{}\n```\n```sh\nfalse\n```\n"
    steps = steps_of(text)
    assert [(step.line, step.script, step.expected) for step in steps] == [
        (2, "echo one\n", ["o...e"]),
        (12, "false\n", []),
    ]
    assert [appears("o...e", output) for output in run(steps, {}, tmp_path)] == [True, False]


def test_every_command_of_the_page_about_the_command_line_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    steps = steps_of((ROOT / "docs/cli.md").read_text())
    assert sum(bool(step.expected) for step in steps) >= 4
    with running_gateway(tmp_path / "data") as gateway:
        environment = {"TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": gateway.admin_key}
        outputs = run(steps, environment, tmp_path)
    for step, output in zip(steps, outputs, strict=True):
        missing = [line for line in step.expected if not appears(line, output)]
        assert not missing, f"docs/cli.md:{step.line}: missing {missing} in\n{output}"
