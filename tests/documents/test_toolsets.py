"""docs/toolsets.md is true: its walk from five servers to one address is run as it stands, with the real servers."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.documents.test_wire import appears, run, steps_of
from tests.integration.gateway import ROOT, running_gateway

PAGE = ROOT / "docs/toolsets.md"
WALK = re.compile(r"^## From five servers to one address$.*?(?=^## )", re.MULTILINE | re.DOTALL)
WITHIN_S = 400


def the_walk() -> str:
    found = WALK.search(PAGE.read_text())
    assert found
    return found[0]


def test_the_walk_has_ten_commands() -> None:
    commands = [line for step in steps_of(the_walk()) for line in step.script.splitlines() if line.startswith("trunk")]
    assert len(commands) == 10


@pytest.mark.real
@pytest.mark.node
@pytest.mark.timeout(WITHIN_S + 30)
def test_the_walk_from_five_servers_to_one_address_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = f"{Path(sys.executable).parent}:{ROOT / 'tests/npm/node_modules/.bin'}"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    steps = [step for step in steps_of(the_walk()) if not step.kind]
    with running_gateway(tmp_path / "data") as gateway:
        home = tmp_path / "home"
        home.mkdir()
        environment = {"HOME": str(home), "TRUNKLINE_URL": gateway.url, "TRUNKLINE_KEY": gateway.admin_key}
        outputs = run(steps, environment, home, WITHIN_S)
    for step, output in zip(steps, outputs, strict=True):
        missing = [line for line in step.expected if not appears(line, output)]
        assert not missing, f"{PAGE.name}: missing {missing} in\n{output}"
