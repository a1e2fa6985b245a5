"""What is built is what a user needs, and works where there is nothing else of the repository."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import app
from tests.integration.gateway import ROOT
from tests.packaging.conftest import BUILD, attempt, run


def test_wheel_and_sdist_are_as_an_index_and_a_user_want_them(dist: Path) -> None:
    said = run(sys.executable, ROOT / "scripts/check-dist", *sorted(dist.glob("trunkline-*"))).stdout
    assert said.count("is as it should be") == 2


def test_the_wheel_has_every_module_and_migration_and_nothing_else(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "app", "migrations", "docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if tracked.returncode:
        pytest.skip("this is no git checkout: which files belong to the repository is not known")
    data = f"trunkline-{app.__version__}.data/data/share/doc/trunkline/"
    wanted = {
        each.replace("migrations/", "app/migrations/", 1)
        if each.startswith("migrations/")
        else each.replace("docs/", data, 1)
        for each in tracked.stdout.splitlines()
        if (ROOT / each).exists()
    }
    with zipfile.ZipFile(wheel) as files:
        assert {each for each in files.namelist() if ".dist-info/" not in each} == wanted


def test_sources_and_sdist_make_the_same_wheel(uv: str, wheel: Path, tmp_path: Path) -> None:
    run(uv, *BUILD, "--wheel", "--out-dir", tmp_path, ROOT)
    (direct,) = tmp_path.glob("*.whl")
    assert hashlib.sha256(direct.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()


def test_an_installed_wheel_takes_one_name_and_brings_its_license_and_documents(installed: Path) -> None:
    files = run(
        installed / "python", "-c", "import importlib.metadata as m; print(*m.files('trunkline'), sep='\\n')"
    ).stdout.splitlines()
    version = f"trunkline-{app.__version__}.dist-info"
    top = {each.split("/")[0] for each in files if not each.startswith("..")}
    assert top == {"app", version}
    assert f"{version}/licenses/LICENSE" in files
    assert (installed.parent / "share/doc/trunkline/settings.md").is_file()
    for name in ("migrations", "tests", "bench", "scripts"):
        assert attempt(installed / "python", "-c", f"import {name}").returncode != 0


def test_the_version_is_that_of_the_one_file(installed: Path) -> None:
    assert run(installed / "trunkline", "version").stdout == f"trunkline {app.__version__}\n"
    assert run(installed / "python", "-m", "app", "version").stdout == f"trunkline {app.__version__}\n"


def test_the_demo_runs_from_the_wheel_in_an_empty_folder(installed: Path) -> None:
    said = run(ROOT / "scripts/smoke", installed / "trunkline").stdout
    assert "== mcp-time says" in said
    assert "== /api/docs is there" in said


def test_migrations_and_keys_work_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    assert "up to date" in run(installed / "trunkline", "migrate", "--data-dir", data, cwd=tmp_path).stdout
    assert "up to date" in run(installed / "trunkline", "migrate", "--check", "--data-dir", data, cwd=tmp_path).stdout
    words = ["keys", "create", "--tenant", "default", "--scope", "platform:admin", "--data-dir", data]
    assert run(installed / "trunkline", *words, cwd=tmp_path).stdout.startswith("tlk_")


def test_uvx_runs_the_wheel_without_an_extra(uv: str, wheel: Path, tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"  # as locked, so that uv has everything
    pins.write_text("\n".join(line.split(" ")[0] for line in lock().splitlines() if line and line[0].isalnum()))
    uvx: list[str | Path] = [
        uv,
        "tool",
        "run",
        "--offline",
        "--python",
        sys.executable,
        "--constraints",
        pins,
        "--from",
        wheel,
    ]
    if attempt(*uvx, "trunkline", "version").returncode:
        uvx.remove("--offline")
        run(*uvx, "trunkline", "version")
    said = run(ROOT / "scripts/smoke", *uvx, "trunkline").stdout
    assert "== trunkline-clock says" in said


def lock() -> str:
    return (ROOT / "requirements.lock").read_text()


@pytest.mark.long
def test_pip_installs_the_wheel_with_the_extra(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(tmp_path / "venv/bin/python", "-m", "pip", "install", "--quiet", f"trunkline[demo] @ {wheel.as_uri()}")
    assert "== mcp-time says" in run(ROOT / "scripts/smoke", tmp_path / "venv/bin/trunkline").stdout
