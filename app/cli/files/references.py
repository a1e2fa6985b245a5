"""`${env:NAME}` and `${file:PATH}`: secrets that a file names instead of having them. They are read where the command
runs; what was read is sent to the gateway and nowhere else. `$${` is `${` itself."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.cli.files.text import read_text
from app.domain import HOME_WORD
from app.errors import InvalidRequest

MAX_SECRET_BYTES = 64 * 1024
_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_LIKE_ONE = re.compile(r"(?=\$\{(?:env|file):)")
_ESCAPED = re.compile(r"\$(?=\$\{(?:env|file):)")
_PART = re.compile(r"\$?\$\{(?:env|file):[^{}]*\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def filled(text: str, folder: Path, environ: Mapping[str, str], *, may_be_empty: bool = False) -> str:
    """The text with what its references name. Paths are relative to `folder`, where the file is. A variable
    `may_be_empty` where that is a value like another.

    Raises:
        InvalidRequest: a reference is malformed, or there is nothing under that name.
    """
    return _REFERENCE.sub(lambda found: _one(found, folder, environ, may_be_empty=may_be_empty), text)


def parts_filled(text: str, fill: Callable[[str], str]) -> str:
    """The text with its references filled, and those that are escaped as they are meant. Any other `${` is its own."""
    return _PART.sub(lambda found: found[0][1:] if found[0].startswith("$$") else fill(found[0]), text)


def escaped(text: str) -> str:
    """The text as a file has it where references are refused, so that nothing in it looks like one."""
    return _LIKE_ONE.sub("$", text)


def unescaped(text: str) -> str:
    """What `escaped` was given."""
    return _ESCAPED.sub("", text)


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """The value, with each text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): changed(each, change) for name, each in value.items()}
    return [changed(each, change) for each in value] if isinstance(value, list) else value


def has_reference(text: str) -> bool:
    """Whether something in the text looks like a reference."""
    return any(found[1] is not None and found[1].startswith(("env:", "file:")) for found in _REFERENCE.finditer(text))


def variable_name(*words: str) -> str:
    """The name of an environment variable made of these words."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(words)).strip("_").upper()
    return name if _NAME.fullmatch(name) else f"_{name}"


def _one(found: re.Match[str], folder: Path, environ: Mapping[str, str], *, may_be_empty: bool) -> str:
    if found[0] == "$${":
        return "${"
    if found[0] == HOME_WORD:  # the gateway's own word
        return HOME_WORD
    kind, _, name = (found[1] or "").partition(":")
    if kind == "env" and _NAME.fullmatch(name):
        value = environ.get(name)
        if value is None or not (value or may_be_empty):
            raise InvalidRequest(f"the environment variable {name} is not set{'' if may_be_empty else ', or is empty'}")
        return value
    if kind == "file" and name:
        path = folder / os.path.expanduser(name)
        text = read_text(str(path), MAX_SECRET_BYTES).removesuffix("\n").removesuffix("\r")
        if not text:
            raise InvalidRequest(f"{str(path)!r} is empty")
        return text
    raise InvalidRequest("a reference is `${env:NAME}` or `${file:PATH}`; write `$${` for `${` itself")
