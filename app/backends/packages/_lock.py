"""Lock: which versions a package is installed from, with hashes of all that is downloaded. Pure."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.backends.packages.recognition import Registry

MAX_LOCK_BYTES = 1 << 20
MAX_PACKAGES = 2000  # in one lock
_strong = re.compile(r"(?:sha512|sha384|sha256)-[A-Za-z0-9+/]{40,100}={0,2}")
_pinned = re.compile(
    r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==([\w.+!-]+)\s*(?:;[^\n]*?)?((?:\s*\\?\s*--hash=sha256:[0-9a-f]{64})+)"
)


class LockRefused(ValueError):
    """A lock that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Lock:
    """`content` is what npm or uv has made; `python` is for which version of Python."""

    registry: Registry
    name: str
    content: str
    python: str = ""

    @property
    def text(self) -> str:
        """As it is stored: the same lock is the same text."""
        members = {"registry": self.registry, "name": self.name, "python": self.python, "content": self.content}
        return json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @property
    def hash(self) -> str:
        """Names it, and the folder that is installed from it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def version(self) -> str:
        """Of the package itself. Raises LockRefused."""
        if self.registry == "npm":
            found = _packages(self.content).get(f"node_modules/{self.name}", {}).get("version")
        else:
            pins = {normalised(name): version for name, version, _ in _pinned.findall(self.content)}
            found = pins.get(normalised(self.name))
        if not isinstance(found, str) or not found:
            raise LockRefused(f"it does not say which version of {self.name} is installed")
        return found

    def check(self) -> None:
        """Raises LockRefused: something in it is no package of a registry with a hash."""
        if len(self.text) > MAX_LOCK_BYTES:
            raise LockRefused(f"it is larger than {MAX_LOCK_BYTES >> 10} KiB: the package needs too many others")
        if self.registry == "npm":
            _check_npm(self.content)
        else:
            _check_pypi(self.content)
        _ = self.version


def read_lock(text: str, expected: str) -> Lock:
    """The lock with this hash. Raises LockRefused: it is another one, or not to be used."""
    if hashlib.sha256(text.encode()).hexdigest() != expected:
        raise LockRefused("it is not the lock that the backend names")
    lock = Lock(**json.loads(text))
    lock.check()
    return lock


def normalised(name: str) -> str:
    """As PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def scripts_in(lock: Lock) -> list[str]:
    """The packages of npm that have scripts for their installation, which are not run."""
    if lock.registry != "npm":
        return []
    return sorted(
        place.rpartition("node_modules/")[2]
        for place, each in _packages(lock.content).items()
        if each.get("hasInstallScript")
    )


def _packages(content: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        told = json.loads(content)
        packages = told["packages"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LockRefused("npm's lock cannot be read") from None
    if not isinstance(packages, dict) or not all(isinstance(each, dict) for each in packages.values()):
        raise LockRefused("npm's lock cannot be read")
    return packages


def _check_npm(content: str) -> None:
    packages = _packages(content)
    if len(packages) > MAX_PACKAGES:
        raise LockRefused(f"it names more than {MAX_PACKAGES} packages")
    for place, each in packages.items():
        if place == "":
            continue
        shown = ascii(place[:200])[1:-1]
        parts = place.split("/")
        if parts[0] != "node_modules" or any(part in ("", ".", "..") for part in parts) or each.get("link"):
            raise LockRefused(f"{shown} is no package of a registry")
        resolved = str(each.get("resolved") or "https:")
        if not resolved.startswith(("http:", "https:")):
            raise LockRefused(f"{shown} comes from a place that is no registry: {ascii(resolved[:200])[1:-1]}")
        if not each.get("inBundle") and _strong.fullmatch(str(each.get("integrity")).split(" ")[0]) is None:
            raise LockRefused(f"{shown} has no hash by which it could be recognised")


def _check_pypi(content: str) -> None:
    rest = re.sub(r"(?m)^\s*#.*$", "", content)
    found = len(_pinned.findall(rest))
    if found > MAX_PACKAGES:
        raise LockRefused(f"it names more than {MAX_PACKAGES} packages")
    if not found or _pinned.sub("", rest).strip():
        raise LockRefused("something in it has no version or no hash by which it could be recognised")
