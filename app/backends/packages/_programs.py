"""The programs of an installed package, as the node has noted them when it was installed."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_PROGRAMS = 200


@dataclass(frozen=True, slots=True)
class Program:
    """`kind`: what runs it (`node`, `python`), or `file`: nothing. `entry`: its file in the folder. `is_own`: of the
    package that was asked for, not of one that it needs."""

    kind: str
    entry: str
    is_own: bool = True


def is_inside(folder: Path, entry: str) -> bool:
    """Whether this is a file in the folder, also behind links."""
    real, root = os.path.realpath(folder / entry), os.path.realpath(folder)
    return real.startswith(root + "/") and os.path.isfile(real)


def chosen(programs: Mapping[str, Program], package: str, wanted: str) -> str:
    """The name of the program that is meant: the wanted one, else the one that is called as its package, else the only
    one of that.

    Raises:
        KeyError: there is none; the message says which there are.
    """
    own = [name for name, each in programs.items() if each.is_own]
    usual = package.rpartition("/")[2]
    for name in (wanted,) if wanted else (usual, usual.replace("_", "-"), usual.replace("-", "_")):
        if name in programs and (wanted or programs[name].is_own):
            return name
    if len(own) == 1 and not wanted:
        return own[0]
    if not own:
        raise KeyError(f"{package} has no program: it is a library, or what starts it is in another package")
    there = ", ".join(f"`{ascii(each)[1:-1]}`" for each in own[:10])
    raise KeyError(f"{package} has no program `{wanted or usual}`; its programs are: {there}")
