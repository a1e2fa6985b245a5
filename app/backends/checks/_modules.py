"""Modules that a program could not import because its sandbox does not show them, although this node has them.

An interpreter lists the directories where it looks, and asks for no file that is not in them: nothing notices what it
misses, but its last words. Reads the disk: to be called in a thread.
"""

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from app.backends.checks._missed import Missed
from app.domain import BackendSpec

_missing = re.compile(r"No module named '?([A-Za-z_][A-Za-z0-9_]*)'?(?![\w.'])").search  # of Python: a whole package
_MOST_DIRECTORIES = 64
_OF_USER = (
    "A process has another home, so Python does not look here: set `PYTHONPATH` in the backend's `env` to this "
    "directory as well, or install the packages into a virtual environment and run its Python."
)
_TOO_BROAD = "Its directory is not opened by itself: other files there are nobody's business."


def missed_modules(spec: BackendSpec, stderr: Iterable[str], home: str | None = None) -> list[Missed]:
    """Of Python. `home`: by default that of the gateway's user."""
    found = next((match for line in reversed([*stderr]) if (match := _missing(line))), None)
    if found is None:
        return []
    for directory in _directories(spec):
        path = _module_in(directory, found[1])
        if path is not None and not _is_shown(path, spec):
            return [Missed("file", path, "read", 1, {"read": [path]}, note=_TOO_BROAD)]
    for packages in _of_user(home or os.path.expanduser("~")):
        if _module_in(packages, found[1]) is not None:
            return [Missed("file", packages, "read", 1, {"read": [packages]}, note=_OF_USER)]
    return []


def _directories(spec: BackendSpec) -> Iterator[str]:
    """Of scripts, and those above them, which scripts often add to where they look."""
    words = [spec.cwd or "", spec.command, *spec.args]
    absolute = (os.path.realpath(each) for each in words if os.path.isabs(each) and "\0" not in each)
    below = [each if os.path.isdir(each) else os.path.dirname(each) for each in absolute if os.path.exists(each)]
    every = (place for each in below for place in (each, os.path.dirname(each)))
    return islice((each for each in dict.fromkeys(every) if each != "/"), _MOST_DIRECTORIES)


def _of_user(home: str) -> Iterator[str]:
    library = os.path.join(home, ".local/lib")
    for version in sorted(os.listdir(library)) if os.path.isdir(library) else ():
        yield f"{library}/{version}/site-packages"


def _module_in(directory: str, name: str) -> str | None:
    if os.path.isfile(f"{directory}/{name}.py"):
        return f"{directory}/{name}.py"
    return f"{directory}/{name}" if os.path.isdir(f"{directory}/{name}") else None


def _is_shown(path: str, spec: BackendSpec) -> bool:
    shown = (*spec.sandbox.read, *spec.sandbox.write)
    return any((path + "/").startswith(each.rstrip("/") + "/") for each in shown)
