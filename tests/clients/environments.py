"""Environments of the client programs: one directory each, made once, kept for the next run.

A directory's name contains a digest of what is in it, so that a changed version or program makes a new one. Several
test processes may ask for the same one at a time: the first makes it, the others wait.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trunkline-test-clients"
INSTALL_S = 240  # a slow network; the retries of uv and npm end far sooner
NPM_CI = [
    *("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
    *("--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000"),  # without a network: seconds, not a minute
]
_READY = ".installed"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why an environment cannot be made on this machine."""

    reason: str


@functools.cache  # without a network every test would wait for the same refusal
def python(*packages: str) -> Path | Unavailable:
    """A virtual environment that has these packages."""
    directory = CACHE / f"py-{_digest(*(package.encode() for package in packages))}"
    interpreter = directory / "bin/python"
    uv = [sys.executable, "-m", "uv", "--quiet"]
    return _make(
        directory,
        [],
        [*uv, "venv", "--clear", "--python", sys.executable, str(directory)],
        [*uv, "pip", "install", "--python", str(interpreter), *packages],
    )


@functools.cache
def node(name: str) -> Path | Unavailable:
    """A copy of this folder, with what its package-lock.json says."""
    if shutil.which("npm") is None:
        return Unavailable("npm is not there (Debian: apt-get install nodejs npm)")
    files = [path for path in sorted((HERE / name).iterdir()) if path.is_file()]
    directory = CACHE / f"npm-{_digest(*(path.read_bytes() for path in files))}"
    return _make(
        directory,
        files,
        [*NPM_CI, "--prefix", str(directory)],
    )


def _make(directory: Path, files: Sequence[Path], *commands: list[str]) -> Path | Unavailable:
    with _locked(directory):
        if (directory / _READY).exists():
            return directory
        directory.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, directory)
        for command in commands:
            if reason := _failure_of(command):
                return Unavailable(reason)
        (directory / _READY).touch()
    return directory


def _failure_of(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command[:5])} … took longer than {INSTALL_S} s"
    if done.returncode == 0:
        return None
    return f"{' '.join(command[:5])} … failed (no network?): {' '.join(done.stderr.split())[:300]}"


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Only this process. Another one's end, however it comes, gives the lock back."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(*parts: bytes) -> str:
    # The interpreter counts: its virtual environments do not outlive it.
    return hashlib.sha256(b"\0".join([sys.executable.encode(), sys.version.encode(), *parts])).hexdigest()[:16]
