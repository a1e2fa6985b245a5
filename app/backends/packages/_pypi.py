"""Packages of PyPI: what is run for a lock and for an installation, and which programs an installed one has."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path

from app.backends.packages._lock import Lock, normalised
from app.backends.packages._programs import MAX_PROGRAMS, Program, is_inside
from app.backends.packages.recognition import PackageRequest
from app.backends.packages.registries import Source, ToolMissing, uv_program
from app.backends.packages.store import Building
from app.backends.packages.workshop import InstallFailed, Run
from app.jail.sandbox.needs import SYSTEM

_WANTED, _LOCK = "wanted.txt", "lock.txt"
_MAX_LOCK = 4 << 20
_COMPILE_S = 120.0
_ENV = {
    "UV_CACHE_DIR": "{folder}/cache", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "UV_LINK_MODE": "hardlink",
    "UV_HTTP_RETRIES": "2",
}  # fmt: skip
_ONLY_BUILT = ("--only-binary", ":all:")  # to build one is to run it
_OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
_minor = re.compile(r"3\.\d{1,2}").fullmatch


def python_of(version: str) -> tuple[str, str]:
    """The interpreter of this version on this node, and its version: by default the gateway's own.

    Raises:
        ToolMissing: there is none.
    """
    if version in ("", "3", _OWN):
        own = getattr(sys, "_base_executable", "") or sys.executable
        return os.path.realpath(own), _OWN
    if _minor(version) and (found := shutil.which(f"python{version}")) is not None:
        return os.path.realpath(found), version
    raise ToolMissing(f"this node has no Python {version}: install it there, so that `python{version}` is on its PATH")


def resolving(request: PackageRequest, building: Building, source: Source, seconds: float) -> Run:
    """Afterwards `resolved` finds the lock."""
    return _compiling(request, building, source, seconds)


def _compiling(request: PackageRequest, building: Building, source: Source, seconds: float, *more: str) -> Run:
    python, version = python_of(request.python)
    building.put(_WANTED, "\n".join(request.wanted) + "\n")
    words = (
        "pip", "compile", "--quiet", "--universal", "--python-version", version, "--python", python,
        "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate",
        *more, *_ONLY_BUILT, _WANTED, "--output-file", _LOCK,
    )  # fmt: skip
    return Run((uv_program(), *words), building.place, seconds, source, _ENV, _beside(python))


def resolved(request: PackageRequest, folder: Path) -> Lock:
    """Raises InstallFailed."""
    try:
        with open(folder / _LOCK, encoding="utf-8") as file:
            content = file.read(_MAX_LOCK)
    except (OSError, ValueError):
        raise InstallFailed("uv has made no lock") from None
    return Lock("pypi", request.name, content, python_of(request.python)[1])


def asking(request: PackageRequest, building: Building, source: Source, seconds: float) -> Run:
    """`answered` reads what it has made."""
    return _compiling(request, building, source, seconds, "--no-deps")


def answered(request: PackageRequest, folder: Path, said: str) -> str:
    """The newest version that can be installed here. Raises InstallFailed, LockRefused."""
    return resolved(request, folder).version


def installing(lock: Lock, building: Building, source: Source, seconds: float) -> Run:
    """Afterwards the folder has what is in the lock, or it fails."""
    python, version = python_of(lock.python)
    building.put(_LOCK, lock.content)
    (building.place / f"lib/python{version}/site-packages").mkdir(parents=True)
    furnish(lock, building)
    words = ("pip", "install", "--quiet", "--no-deps", "--require-hashes", *_ONLY_BUILT)
    argv = (uv_program(), *words, "--python", str(building.place / "bin/python"), "-r", _LOCK)
    return Run(argv, building.place, seconds, source, _ENV, _beside(python))


def furnish(lock: Lock, building: Building) -> Mapping[str, str]:
    """What makes the folder an environment of its own. Written again after the installation: a wheel may bring files of
    these names, and a `home` of its own choice would be opened to it. Returns the links that lead out of the folder."""
    python, version = python_of(lock.python)
    (building.place / "bin").mkdir(exist_ok=True)
    links = {"bin/python": python, "bin/python3": "python", f"bin/python{version}": "python"}
    for name, target in links.items():
        with suppress(FileNotFoundError):
            os.unlink(building.place / name)
        os.symlink(target, building.place / name)
    settings = ("home = " + os.path.dirname(python), "include-system-site-packages = false", f"version = {version}")
    building.put("pyvenv.cfg", "\n".join((*settings, "relocatable = true\n")))
    return links


def finishing(lock: Lock, building: Building) -> tuple[Run, ...]:
    """Compiles its modules, as nobody can later. `-S`: nothing of the package runs, as its path files would."""
    python, _ = python_of(lock.python)
    words = ("-I", "-S", "-c", "import compileall; compileall.compile_dir('lib', quiet=2)")  # some are no Python
    return (Run((python, *words), building.place, _COMPILE_S),)


def programs(lock: Lock, folder: Path) -> dict[str, Program]:
    """By name: those of the lock's package, then those of the others."""
    places = [str(each) for each in (folder / "lib").glob("python*/site-packages")]
    found = dict[str, Program]()
    of_package = normalised(lock.name)
    for each in sorted(distributions(path=places), key=lambda one: normalised(_name(one)) != of_package):
        for name in _scripts(each):
            entry = f"bin/{name}"
            if len(found) < MAX_PROGRAMS and name not in found and is_inside(folder, entry):
                found[name] = Program(_kind(folder / entry), entry, normalised(_name(each)) == of_package)
    return found


def _name(distribution: Distribution) -> str:
    try:
        return str(distribution.metadata["Name"] or "")
    except (OSError, ValueError, KeyError):
        return ""


def _scripts(distribution: Distribution) -> Sequence[str]:
    """Files of its record in `bin`."""
    try:
        files = distribution.files or ()
    except (OSError, ValueError):
        return ()
    return sorted({each.name for each in files if each.parent.name == "bin" and each.parts[0] == ".."})


def _kind(entry: Path) -> str:
    with open(entry, "rb") as file:
        return "python" if file.read(2) == b"#!" else "file"


def _beside(python: str) -> tuple[str, ...]:
    prefix = os.path.dirname(os.path.dirname(python))
    return () if any(prefix == each or prefix.startswith(each + "/") for each in SYSTEM) else (prefix,)
