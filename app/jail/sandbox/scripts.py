"""What a script loads from beside it, as its interpreter looks for it. Reads the disk: to be called in a thread."""

import os
import re
from collections.abc import Iterator, Sequence

PACKAGE_SCRIPTS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
MODULES = "node_modules"
_SCRIPTS = (".py", ".pyw", ".rb", ".pl", ".php", ".lua", ".jar")
_runs_scripts = re.compile(r"python[0-9.]*t?|ruby[0-9.]*|perl[0-9.]*|php[0-9.]*|lua[0-9.]*").fullmatch
_PROGRAMS = ("bin", "sbin", "shims")  # directories of programs that have nothing to do with each other


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
