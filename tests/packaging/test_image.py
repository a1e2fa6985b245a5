"""What the Dockerfile does, as far as it goes without Docker: its own command, and the steps of its first stage."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.test_deploy import stages
from tests.integration.gateway import ROOT
from tests.packaging.conftest import attempt, run

COMMAND = ROOT / "deploy/image/trunkline"
OURS = {"TRUNKLINE_HOST": "0.0.0.0"}  # as in the image


@pytest.fixture
def command(installed: Path) -> Path:
    """The image's command, beside a Python that has the gateway."""
    found = installed / "image-trunkline"
    if not found.exists():  # another worker's test may be running it
        shutil.copy(COMMAND, aside := found.with_name(f"image-{os.getpid()}"))
        aside.rename(found)
    return found


def ask(command: Path, data: Path, *words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """As `docker run` with this volume."""
    return attempt(command, *words, cwd=data, **OURS | {"TRUNKLINE_DATA_DIR": str(data)} | settings)


def test_a_volume_keeps_the_key_that_its_first_start_makes(command: Path, tmp_path: Path) -> None:
    made = ask(command, tmp_path, "migrate")
    assert made.returncode == 0, made.stderr
    key = (tmp_path / "secret_key").read_text()
    assert re.fullmatch(r"[0-9a-f]{64}\n", key)
    assert (tmp_path / "secret_key").stat().st_mode & 0o777 == 0o600
    created = ask(command, tmp_path, "keys", "create", "--tenant", "default", "--scope", "platform:admin")
    assert created.stdout.startswith("tlk_"), created.stderr
    assert (tmp_path / "secret_key").read_text() == key
    assert not list(tmp_path.glob("secret_key.*"))


@pytest.mark.parametrize(
    "shared", [{"TRUNKLINE_REDIS_URL": "redis://r"}, {"TRUNKLINE_DATABASE_URL": "postgresql://u:p@db/x"}]
)
def test_with_a_database_or_a_redis_of_others_the_key_must_be_given(command: Path, tmp_path: Path, shared) -> None:
    refused = ask(command, tmp_path, "migrate", **shared)
    assert refused.returncode == 2
    assert "TRUNKLINE_SECRET_KEY: must be set" in refused.stderr
    assert not (tmp_path / "secret_key").exists()


def test_a_key_that_is_given_is_used_and_none_is_made(command: Path, tmp_path: Path) -> None:
    done = ask(command, tmp_path, "migrate", TRUNKLINE_SECRET_KEY="6b" * 32)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "secret_key").exists()


def test_what_lies_in_the_volume_is_no_module_of_the_gateway(command: Path, tmp_path: Path) -> None:
    for name in ("app", "alembic"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the volume')")
    assert ask(command, tmp_path, "version").stdout.startswith("trunkline ")


def test_the_one_line_of_the_dockerfile_starts_the_demo(command: Path) -> None:
    line = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if "docker run" in line)
    assert line.split(" trunkline ")[-1] == "serve --demo"
    said = run(
        ROOT / "scripts/smoke", "env", "TRUNKLINE_HOST=0.0.0.0", command
    ).stdout  # on the volume of the smoke test
    assert "== stopped, exit status 0" in said


def test_the_command_is_executable_and_reads_as_shell() -> None:
    assert os.access(COMMAND, os.X_OK)
    subprocess.run(["sh", "-n", COMMAND], check=True, timeout=10)


@pytest.mark.long
def test_the_steps_of_the_first_stage_make_a_gateway_that_starts(tmp_path: Path) -> None:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image has Python 3.11")
    environment = dict(each.split("=", 1) for word, rest in stages()["build"] if word == "ENV" for each in rest.split())

    def aside(text: str) -> str:
        return re.sub("(/opt/trunkline|/tmp)(?=/| |$)", rf"{tmp_path}\1", text)

    for word, rest in stages()["build"]:
        if word == "COPY":
            source, target = ROOT / rest.split()[0], Path(aside(rest.split()[1]))
            target = target / source.name if rest.endswith("/") else target
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        elif word == "RUN":
            run("sh", "-ec", aside(rest), **environment)
    said = run(ROOT / "scripts/smoke", tmp_path / "opt/trunkline/bin/trunkline").stdout
    assert "== mcp-time says" in said
