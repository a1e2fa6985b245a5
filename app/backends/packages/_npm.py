"""Packages of npm: what is run for a lock and for an installation, and which programs an installed one has."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.backends.packages._lock import Lock
from app.backends.packages._programs import MAX_PROGRAMS, Program, is_inside
from app.backends.packages.recognition import PackageRequest
from app.backends.packages.registries import Source, npm_program
from app.backends.packages.store import Building
from app.backends.packages.workshop import InstallFailed, Run

MODULES = "node_modules"
_LOCK, _PACKAGE = "package-lock.json", "package.json"
_MAX_BYTES = 1 << 20  # of a package.json
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
# No dependency is fetched by git, which would run what a repository says.
_version = re.compile(r"[0-9][\w.+-]{0,99}", re.ASCII)
_ENV = {"npm_config_git": "/bin/false", "npm_config_cache": "{folder}/cache", "npm_config_logs_max": "0"}


def resolving(request: PackageRequest, building: Building, source: Source, seconds: float) -> Run:
    """Afterwards `resolved` finds the lock."""
    words = ("install", "--package-lock-only", "--save-exact", "--omit-lockfile-registry-resolved", *_QUIET)
    return Run((npm_program(), *words, "--", *request.wanted), building.place, seconds, source, _ENV)


def resolved(request: PackageRequest, folder: Path) -> Lock:
    """Raises InstallFailed."""
    package, lock = (_json(folder / name) for name in (_PACKAGE, _LOCK))
    others = {place: each for place, each in (lock.get("packages") or {}).items() if place}
    content = {"dependencies": package.get("dependencies") or {}, "packages": others}
    return Lock("npm", request.name, json.dumps(content, sort_keys=True, indent=0))


def installing(lock: Lock, building: Building, source: Source, seconds: float) -> Run:
    """Afterwards the folder has what is in the lock, or it fails."""
    content = json.loads(lock.content)
    named = {"name": "trunkline-package", "version": "1.0.0", "private": True, "dependencies": content["dependencies"]}
    packages = {**content["packages"], "": named}
    told = {"name": named["name"], "version": "1.0.0", "lockfileVersion": 3, "requires": True, "packages": packages}
    building.put(_PACKAGE, json.dumps(named))
    building.put(_LOCK, json.dumps(told))
    return Run((npm_program(), "ci", "--omit=dev", *_QUIET), building.place, seconds, source, _ENV)


def furnish(lock: Lock, building: Building) -> Mapping[str, str]:
    """Nothing is left to do after the installation, and no link leads out of the folder."""
    return {}


def finishing(lock: Lock, building: Building) -> tuple[Run, ...]:
    return ()


def asking(request: PackageRequest, building: Building, source: Source, seconds: float) -> Run:
    """`answered` reads what it has said."""
    words = ("view", "--json", "--no-update-notifier", "--loglevel=error", "--", request.name, "version")
    return Run((npm_program(), *words), building.place, seconds, source, _ENV)


def answered(request: PackageRequest, folder: Path, said: str) -> str:
    """The newest version. Raises InstallFailed."""
    version = said.strip().rpartition("\n")[2].strip('"')
    if _version.fullmatch(version) is None:
        raise InstallFailed("npm does not say which version is the newest")
    return version


def programs(lock: Lock, folder: Path) -> dict[str, Program]:
    """By name: those of the lock's package, then those of the others that were asked for."""
    found = dict[str, Program]()
    content = json.loads(lock.content)
    for name in (lock.name, *(each for each in content["dependencies"] if each != lock.name)):
        for program, entry in _bins(name, folder / MODULES / name).items():
            place = os.path.normpath(f"{MODULES}/{name}/{entry}")
            if len(found) < MAX_PROGRAMS and is_inside(folder, place):
                made = Program(_kind(folder / place), place, is_own=name == lock.name)
                found.setdefault(program, made)
    return found


def _bins(name: str, place: Path) -> dict[str, str]:
    told = _json(place / _PACKAGE)
    bins = told.get("bin")
    if isinstance(bins, str):
        return {name.rpartition("/")[2]: bins}
    return {str(each): str(entry) for each, entry in bins.items()} if isinstance(bins, dict) else {}


def _kind(entry: Path) -> str:
    with open(entry, "rb") as file:
        first = file.readline(200)
    return "node" if not first.startswith(b"#!") or b"node" in first else "file"


def _json(path: Path) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            told = json.loads(file.read(_MAX_BYTES if path.name == _PACKAGE else 64 << 20))
    except (OSError, ValueError, RecursionError):
        raise InstallFailed(f"{path.name} of the package cannot be read") from None
    return told if isinstance(told, dict) else {}
