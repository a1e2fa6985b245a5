"""What runs a script, and what it loads from beside it. Reads the disk: to be called in a thread."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence

PACKAGE_SCRIPTS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
MODULES = "node_modules"
_SCRIPTS = (".py", ".pyw", ".rb", ".pl", ".php", ".lua", ".jar")
_runs_scripts = re.compile(r"python[0-9.]*t?|ruby[0-9.]*|perl[0-9.]*|php[0-9.]*|lua[0-9.]*").fullmatch
_PROGRAMS = ("bin", "sbin", "shims")  # directories of programs that have nothing to do with each other
_MAX_LINKS = 40  # as in the kernel
_HEAD_BYTES = 4096
# What pip and uv write where the path of the interpreter is too long for `#!` or has a space in it.
_shell_header = re.compile(rb"#!/bin/sh\n'''exec' +([^\n]+)").match


def chain(path: str) -> Iterator[str]:
    """A program's path, and every path that it links to."""
    for _ in range(_MAX_LINKS):
        yield path
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return


def interpreter_of(script: str) -> tuple[str | None, bool]:
    """The program that runs it, as its `#!` line names it, and whether `env` has to look for that; None if it is no
    script or cannot be read."""
    try:
        with open(script, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:  # a program may be executable and not readable
        return None, False
    if not head.startswith(b"#!"):
        return None, False
    wrapped = _shell_header(head)
    words = _words(wrapped[1] if wrapped else head[2:].partition(b"\n")[0])
    is_env = bool(words) and os.path.basename(words[0]) == "env"
    if is_env:
        words = [each for each in words[1:] if not each.startswith("-") and "=" not in each]
    return (words[0] if words else None), is_env


def interpreter_beside(program: str) -> str | None:
    """The directory of a program, if its interpreter is there too and `env` is to find it: of nvm, where every version
    has its own programs, only a user's shell knows which directory that is."""
    name, is_env = interpreter_of(program)
    if name is None or not is_env or "/" in name:
        return None
    directories = (os.path.dirname(each) for each in chain(program))
    return next((each for each in directories if os.access(f"{each}/{name}", os.X_OK)), None)


def beside(script: str) -> Iterator[str]:
    """Directories from which this file loads modules, if its name is that of a script."""
    if script.endswith(PACKAGE_SCRIPTS):
        yield _package_of(script)
        yield from _node_modules_above(script)
    elif script.endswith(_SCRIPTS):
        yield os.path.dirname(script)


def beside_program(script: str, interpreter: str) -> Iterator[str]:
    """The same, of a program whose `#!` line has this interpreter, whatever its name."""
    folder = os.path.dirname(script)
    if _runs_scripts(os.path.basename(interpreter)) and os.path.basename(folder) not in _PROGRAMS:
        yield folder
    yield from beside(script)


def is_script_of(argv: Sequence[str], argument: str) -> bool:
    """Whether this argument is what an interpreter is to run, whatever its name: the first that is no option."""
    first = next((each for each in argv[1:] if not each.startswith("-")), None)
    is_code = any(each in ("-c", "-m", "-e") for each in argv[1:])
    return argument == first and not is_code and _runs_scripts(os.path.basename(argv[0])) is not None


def _package_of(script: str) -> str:
    """The directory of the package of a script: Node looks for its modules there."""
    folder = os.path.dirname(script)
    while folder != "/":
        if os.path.exists(f"{folder}/package.json"):
            return folder
        folder = os.path.dirname(folder)
    return os.path.dirname(script)


def _node_modules_above(script: str) -> Iterator[str]:
    """Node looks in all of them, and packages of one repository often share the outermost."""
    folder = os.path.dirname(script)
    while folder != "/":
        modules = f"{folder}/{MODULES}"
        if os.path.isdir(modules) and not os.path.islink(modules):
            yield modules
        folder = os.path.dirname(folder)


def _words(line: bytes) -> list[str]:
    try:
        return shlex.split(line.decode(errors="surrogateescape"))
    except ValueError:
        return []
