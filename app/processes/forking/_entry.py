"""Which Python program a command runs, if it is one that a template can have imported."""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_HEAD_BYTES = 4096
_is_python = re.compile(r"python(3(\.\d+)?)?").fullmatch
# What `uv` and `pip` write where a path is too long for `#!` or has a space in it.
_shell_header = re.compile(rb"#!/bin/sh\n'''exec' +([^\n]+)").match
_ALONE = frozenset("BEIOPRSbdqsuv")  # options of Python that take no value and start the program as usual
_WITH_VALUE = ("-W", "-X")


class NotPython(Exception):
    """This command cannot be forked. The message says why, after "it"."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`python`: the interpreter with its options. `name`: the path of a script, or the name of a module."""

    python: tuple[str, ...]
    kind: Literal["script", "module"]
    name: str
    args: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """As the kernel would start it."""
        return [*self.python, *(["-m"] if self.kind == "module" else ()), self.name, *self.args]


def entry_of(command: str, args: Sequence[str], path: str, cwd: str | None) -> Entry:
    """Reads the first bytes of the program: for a thread. `path`: the PATH; `cwd`: an absolute one.

    Raises:
        NotPython: it is no program of Python, or not one that can be found out.
    """
    program = _resolved(command, path, cwd)
    if _is_python(os.path.basename(program)):
        return _of_python((program,), args, cwd)
    words = _interpreter(program)
    if os.path.basename(words[0]) == "env":
        words = [each for each in words[1:] if each != "-S"]
        if not words or words[0].startswith("-") or "=" in words[0]:
            raise NotPython("starts its interpreter by `env` with options")
    if not _is_python(os.path.basename(words[0])):
        raise NotPython(f"is a program of `{os.path.basename(words[0])}`, not of Python")
    python = (_resolved(words[0], path, None), *words[1:])
    options = _options(words[1:])
    if len(options) != len(words) - 1:
        raise NotPython("has a `#!` line with a program in it")
    return Entry(python, "script", program, tuple(args))


def _of_python(python: tuple[str, ...], args: Sequence[str], cwd: str | None) -> Entry:
    options = _options(args)
    rest = args[len(options) :]
    if not rest:
        raise NotPython("runs no program")
    if rest[0] == "-m" and len(rest) > 1:
        return Entry((*python, *options), "module", rest[1], tuple(rest[2:]))
    if rest[0].startswith("-"):
        raise NotPython(f"runs Python with `{rest[0]}`")
    script = os.path.join(cwd, rest[0]) if cwd else rest[0]
    if not os.path.isabs(script) or not os.path.isfile(script) or script.endswith((".pyc", ".pyz", ".zip")):
        raise NotPython("does not run a script of Python with an absolute path")
    return Entry((*python, *options), "script", rest[0], tuple(rest[1:]))


def _options(args: Sequence[str]) -> list[str]:
    """Those before the program."""
    found = list[str]()
    while len(found) < len(args):
        text = args[len(found)]
        if text in _WITH_VALUE and len(found) + 1 < len(args):
            found += args[len(found) : len(found) + 2]
        elif text.startswith(_WITH_VALUE) or (text[:1] == "-" and len(text) > 1 and _ALONE.issuperset(text[1:])):
            found.append(text)
        else:
            break
    return found


def _resolved(command: str, path: str, cwd: str | None) -> str:
    place = os.path.join(cwd, command) if cwd and "/" in command else command
    found = shutil.which(place, path=path)
    if found is None or not os.path.isabs(found):
        raise NotPython(f"runs {command!r}, which is not there")
    return found


def _interpreter(program: str) -> list[str]:
    try:
        with open(program, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise NotPython(f"cannot be read: {error.strerror}") from error
    if not head.startswith(b"#!"):
        raise NotPython("is no script of Python")
    wrapped = _shell_header(head)
    try:
        line = (wrapped[1] if wrapped else head[2:].partition(b"\n")[0]).decode()
        words = shlex.split(line)
    except (UnicodeDecodeError, ValueError):
        words = []
    if wrapped and words[-2:] == ["$0", "$@"]:
        words = words[:-2]
    if not words:
        raise NotPython("has a `#!` line that cannot be read")
    return words
