"""Texts that a process finds in its namespaces, although no file of the machine has them: its accounts, and variables
that only the program itself may have."""

import re
import shlex
from collections.abc import Mapping

# With these the dynamic loader and the C library run code that somebody else names.
_of_the_loader = re.compile(r"LD_\w*|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|LANGUAGE|NLSPATH|MALLOC_\w*", re.ASCII).fullmatch
_NOBODY = 65534


def split(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that bubblewrap and setpriv may have, which run before all is confined, and the others."""
    late = {name: value for name, value in environment.items() if _of_the_loader(name)}
    return {name: value for name, value in environment.items() if name not in late}, late


def exports(variables: Mapping[str, str]) -> str:
    """A shell's commands that set these."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def passwd(uid: int, gid: int, home: str) -> str:
    """The users: the process's own is `backend`, or root."""
    own = f"{'backend' if uid else 'root'}:x:{uid}:{gid}::{home}:/bin/sh\n"
    root = "root:x:0:0::/root:/bin/sh\n" if uid else ""
    return f"{root}nobody:x:{_NOBODY}:{_NOBODY}::/nonexistent:/bin/false\n{own}"


def group(gid: int) -> str:
    own = f"backend:x:{gid}:\n" if gid else ""
    return f"root:x:0:\nnogroup:x:{_NOBODY}:\n{own}"
