"""Reads the variables `TRUNKLINE_<NAME>`, secrets also from `TRUNKLINE_<NAME>_FILE`."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from app.errors import SettingsError

PREFIX = "TRUNKLINE_"
COMMAND_LINE = ("URL", "KEY", "KEY_FILE")  # for commands that call a gateway; a node ignores them

_T = TypeVar("_T")


def wrong(name: str, problem: str) -> SettingsError:
    """The error that names the variable."""
    return SettingsError(f"{PREFIX}{name.upper()}: {problem}")


def parsed(name: str, parse: Callable[[str], _T], text: str) -> _T:
    """Calls the parser; its ValueError becomes a SettingsError that names the variable."""
    try:
        return parse(text)
    except ValueError as error:
        raise wrong(name, str(error)) from None


def read(environ: Mapping[str, str], name: str, *, secret: bool) -> str:
    """The value of the variable, or the content of its file; empty if neither is set."""
    variable = PREFIX + name.upper()
    text, path = environ.get(variable, "").strip(), environ.get(variable + "_FILE", "") if secret else ""
    if text and path:
        raise wrong(name, f"set it or {variable}_FILE, not both")
    if not path:
        return text
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "it is not text"
        raise wrong(name + "_file", f"cannot read {_shown_path(path)}: {problem}") from None
    if not text:
        raise wrong(name + "_file", f"{path!r} is empty")
    return text


def _shown_path(path: str) -> str:
    """Does not show what could be the secret itself, set in the wrong variable."""
    return repr(path) if path.startswith(("/", ".", "~")) else "the file"


def refuse_unknown(environ: Mapping[str, str], names: Iterable[str], secrets: Iterable[str]) -> None:
    """Refuses misspelt settings, which would have no effect. `…_BIN` and `TEST…` belong to scripts and tests."""
    known = {*names, *(name + "_FILE" for name in secrets)}
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or name in known or name in COMMAND_LINE:
            continue
        if variable.endswith("_BIN") or name.startswith("TEST"):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        suggestion = f"did you mean {PREFIX}{near[0]}?" if near else f"allowed are {', '.join(sorted(known))}"
        raise wrong(ascii(name)[1:-1], f"there is no such setting; {suggestion}")
