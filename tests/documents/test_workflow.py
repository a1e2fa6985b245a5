"""Whoever else runs the checks runs what a developer runs, and on each Python that the package says it works on."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPTS = ["scripts/check", "scripts/test"]
PREPARES = ("sudo apt-get update && sudo apt-get install ",)


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def versions() -> list[str]:
    """Those that the classifiers name."""
    found = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in PROJECT["project"]["classifiers"]
    ]
    return [each[1] for each in found if each]


def test_the_workflow_runs_the_two_scripts_and_no_third() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    ours = [each.split()[0] for each in commands if not each.startswith(PREPARES)]
    assert ours == SCRIPTS
    assert "scripts/test --cov" in commands
    assert all((ROOT / each).is_file() for each in SCRIPTS)
    assert not any(step.get("continue-on-error") for step in job["steps"])


def test_every_night_and_before_a_release_everything_is_run() -> None:
    nightly = read(".github/workflows/nightly.yml")
    assert nightly[True]["schedule"]  # YAML 1.1 reads `on` so
    commands = [step["run"] for step in nightly["jobs"]["long"]["steps"] if "run" in step]
    (everything,) = [each for each in commands if not each.startswith(PREPARES)]
    assert everything == "scripts/test --long --clients --e2e"
    assert f"    {everything} || fail" in (ROOT / "scripts/release").read_text()


def test_the_other_server_runs_the_same_two() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in lines if line.startswith("scripts/")] == SCRIPTS


def test_the_workflow_tests_every_version_that_the_package_names() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    tested = job["strategy"]["matrix"]["python"]
    assert tested == versions()
    assert job["env"]["PYTHON"] == "python${{ matrix.python }}"
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"
    minors = [int(each.partition(".")[2]) for each in tested]
    assert minors == list(range(minors[0], minors[-1] + 1))


def test_tools_check_for_the_oldest_version() -> None:
    oldest = versions()[0]
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"--python-version {oldest} " in (ROOT / "scripts/lock").read_text()
    tried = re.findall(
        r"python(3\.\d+)", (ROOT / "scripts/_venv.sh").read_text().split("for candidate in", 1)[1].split(";")[0]
    )
    assert sorted(tried) == versions()


def test_coverage_has_a_floor_and_counts_branches() -> None:
    coverage = PROJECT["tool"]["coverage"]
    assert coverage["run"] == {"branch": True, "source": ["app"]}
    assert 50 < coverage["report"]["fail_under"] < 100


def test_hooks_fetch_nothing() -> None:
    repositories = read(".pre-commit-config.yaml")["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")
        assert f"step {hook['entry'].split()[0]}" in (ROOT / "scripts/check").read_text()


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_forms_ask_for_something_and_say_what(name: str) -> None:
    form = read(f".github/ISSUE_TEMPLATE/{name}")
    assert form["name"]
    assert form["description"]
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert any(field.get("validations", {}).get("required") for field in asked)
    assert len({field["id"] for field in asked}) == len(asked)
    assert all(field["attributes"]["label"] for field in asked)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_what_newcomers_are_sent_to_is_there(name: str) -> None:
    text = (ROOT / name).read_text()
    paths = set(re.findall(r"`((?:app|tests|docs|deploy|migrations|scripts)/[\w./-]*)`", text))
    paths |= set(re.findall(r"^(scripts/\w+)", text, re.MULTILINE))
    assert [each for each in sorted(paths) if not (ROOT / each).exists()] == []
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert not anchor or anchor in anchors, target


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("keepalive_s", "app/settings/settings.py"),
        ("keepalive_s", "app/node/application.py"),
        ("keepalive_s", "app/http/transports/streamable_http.py"),
        ("trunkline_takeovers_total", "app/telemetry/metrics.py"),
        ("takeovers", "app/cluster/session_takeover.py"),
        ("class Disabled", "app/errors.py"),
        ("errors.Disabled", "app/http/errors.py"),
        ("principals", "app/admin/router.py"),
        ("PRINCIPAL", "app/cluster/_affected.py"),
        ("PRINCIPAL", "app/cluster/node_status/change_effects.py"),
        ("PRINCIPAL", "app/cluster/reconcile.py"),
        ("PRINCIPALS", "app/cli/usage/nouns.py"),
    ],
)
def test_the_examples_of_contributing_are_in_the_code(word: str, path: str) -> None:
    assert word in (ROOT / path).read_text()
    assert f"`{path}`" in (ROOT / "CONTRIBUTING.md").read_text()
