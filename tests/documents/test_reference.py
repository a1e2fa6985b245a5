"""The reference is made from the code: every error, command, metric and route is in it, once."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from app.cli.parser import make_parser
from app.console.backend_form import groups
from app.domain import ProcessLimits
from app.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (ROOT / "docs/settings.md").read_text()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("reference") / "pages"
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/reference", out], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return {page.name: page.read_text() for page in out.iterdir()}


def rows(page: str) -> dict[str, list[str]]:
    """The cells behind the first, by the first."""
    found = re.findall(r"^\| `([^`]+)` \| (.*) \|$", page, re.MULTILINE)
    assert len(found) == len(dict(found))
    return {name: [each.strip() for each in cells.split(" | ")] for name, cells in found}


def test_every_reason_has_its_status_its_code_and_what_to_do(reference: dict[str, str]):
    explained = set(re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE))
    table = rows(reference["errors.md"])
    assert {name for name in table if name in explained} == set(table)
    assert len(table) > 50
    assert table["quota_exceeded"][:2] == ["429", "-32016"]
    assert table["unauthenticated"][:2] == ["401", "-32600"]
    assert table["uri_too_long"][:2] == ["414", "-32600"]
    assert table["settings"][:2] == ["-", "-"]
    assert all(cells[0] == "-" or re.fullmatch(r"\d{3}(, \d{3})*", cells[0]) for cells in table.values())
    assert all(len(cells) >= 4 and all(cells) for cells in table.values())


def commands() -> Iterator[str]:
    """As somebody types them, from the parser's own tables."""

    def below(parser: object, words: str) -> Iterator[str]:
        yield words
        for action in parser._subparsers._group_actions if parser._subparsers else ():  # type: ignore[attr-defined]
            for name, each in action.choices.items():
                yield from below(each, f"{words} {name}")

    yield from below(make_parser(), "trunkline")


def test_every_command_has_its_help(reference: dict[str, str]):
    assert re.findall(r"^#{2,3} (.*)$", reference["commands.md"], re.MULTILINE) == list(commands())
    assert "--expires-days DAYS" in reference["commands.md"] or "--expires-days" in reference["commands.md"]


def test_every_metric_has_its_labels_and_settings_says_the_same(reference: dict[str, str]):
    table = rows(reference["metrics.md"])
    registry = Metrics("1").registry
    families = {each.name + ("_total" if each.type == "counter" else ""): each.type for each in registry.collect()}
    assert {name: cells[0] for name, cells in table.items()} == families
    explained = {
        name: labels.split()
        for name, labels in re.findall(r"^\| `((?:trunkline|mcp)_\w+)` \|((?: `\w+`)*) \|", SETTINGS, re.MULTILINE)
    }
    assert explained == {name: cells[1].split() for name, cells in table.items()}


def test_every_route_is_there_once(reference: dict[str, str]):
    document = json.loads((ROOT / "docs/openapi.json").read_text())
    paths = {path.removeprefix("/api/v1"): methods for path, methods in document["paths"].items()}
    of_default = {path for path in paths if f"/tenants/{{tenant}}{path}" in paths}
    there = {
        f"{method.upper()} {path}" for path, methods in paths.items() if path not in of_default for method in methods
    }
    shown = re.findall(r"^## (.*)$", reference["rest.md"], re.MULTILINE)
    assert sorted(shown) == sorted(there)


def test_every_member_of_a_backend_is_there_with_its_default(reference: dict[str, str]):
    _, _, backends = reference["rest.md"].partition("## POST /tenants/{tenant}/backends\n")
    table = rows(backends.partition("\n## ")[0])
    declared = {field.name for part in groups().values() for field in part}
    assert declared | {"name", "enabled", "reason"} == {name for name, cells in table.items() if cells[0] == "body"}
    assert "optional, by default `128`" in table["calls_per_session"][2]
    assert f"optional, by default `{ProcessLimits().memory_mb}`" in table["limits.memory_mb"][2]


def test_who_gives_no_folder_is_told_how():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/reference"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "scripts/reference DIR" in done.stderr


def test_the_guide_has_the_limits_that_a_backend_has_by_default():
    guide = rows(
        (ROOT / "docs/admin-api.md").read_text().partition("| `limits` | default | |\n")[2].partition("\n\n")[0]
    )
    assert {name: float(cells[0]) for name, cells in guide.items()} == asdict(ProcessLimits())
