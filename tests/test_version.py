"""The version stands in app/__init__.py, and nowhere else: a release changes one line."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import app
from app.node.application import build_api

ROOT = Path(app.__file__).parents[1]
VERSION = re.compile(rf"(?<![\w.]){re.escape(app.__version__)}(?![\w.])")
# What tells of releases; and what holds versions of other things.
TELL = (
    "CHANGELOG.md",
    "docs/decisions/",
    "bench/",
    "requirements",
    "package-lock.json",
    "tests/conformance/",
    "tests/npm/",
)


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode:
        pytest.skip("this is no git checkout: which files belong to the repository is not known")
    return listed.stdout.splitlines()


def test_the_version_stands_in_one_file():
    held = []
    for name in tracked():
        path = ROOT / name
        if name.startswith(TELL) or name.endswith(TELL) or not path.is_file():
            continue
        if VERSION.search(path.read_bytes().decode("utf-8", "replace")):
            held.append(name)
    assert held == ["app/__init__.py"]


def test_the_package_and_the_api_read_it_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "app/__init__.py"
    assert build_api().version == app.__version__


def test_the_changelog_begins_with_it():
    headings = re.findall(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version, state = headings[0]
    assert version == app.__version__
    assert state == "unreleased" or re.fullmatch(r"\d{4}-\d\d-\d\d", state)
