"""What is built and installed once for all tests here (a second or two): the wheel, and a fresh environment with it."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.gateway import ROOT

WITHIN_S = 300  # where uv's cache is empty, it fetches everything that the gateway needs


BUILD = ["build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable]
NOT_PASSED_ON = ("TRUNKLINE_", "GIT_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


def run(*words: str | Path, cwd: str | Path = "/", **environment: str) -> "subprocess.CompletedProcess[str]":
    """A command that must succeed, away from the sources and without the settings of whoever runs the tests."""
    done = attempt(*words, cwd=cwd, **environment)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def attempt(*words: str | Path, cwd: str | Path = "/", **environment: str) -> "subprocess.CompletedProcess[str]":
    """The same, whatever comes of it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
    return subprocess.run(
        words, cwd=cwd, env=own | environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )


@pytest.fixture(scope="session")
def uv() -> str:
    """The uv that scripts/_venv.sh has installed with."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed (scripts/test installs it)")
    return found


@pytest.fixture(scope="session")
def built(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dist/ and venv/, made by the first of the workers that asks."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "packaging"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            build(uv, folder / "dist")
            install(uv, folder / "dist", folder / "venv")
            (folder / "done").touch()
    return folder


def build(uv: str, folder: Path) -> None:
    run(uv, *BUILD, "--out-dir", folder, ROOT)


def install(uv: str, dist: Path, venv: Path) -> None:
    """What the lock file says, from uv's cache if it has all of it, and the wheel."""
    run(uv, "venv", "--quiet", "--offline", "--clear", "--python", sys.executable, venv)
    words: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", venv / "bin/python"]
    from_lock: list[str | Path] = [*words, "--require-hashes", "-r", ROOT / "requirements.lock"]
    if attempt(*from_lock, "--offline").returncode:
        run(*from_lock)
    run(*words, "--offline", "--no-deps", next(dist.glob("*.whl")))
    run(venv / "bin/trunkline", "version")  # compiles much of it, once


@pytest.fixture(scope="session")
def dist(built: Path) -> Path:
    """A folder with the sdist, and the wheel that is made of it."""
    return built / "dist"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The wheel."""
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installed(built: Path) -> Path:
    """bin/ of a fresh environment with the wheel, and what the lock file says that it needs."""
    return built / "venv/bin"
