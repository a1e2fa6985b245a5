"""`${env:NAME}` and `${file:PATH}`: secrets that a file names instead of having them. They are read where the command
runs; what was read is sent to the gateway and nowhere else. `$${` is `${` itself."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from app.cli.files.text import read_text
from app.errors import InvalidRequest

MAX_SECRET_BYTES = 64 * 1024
_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def filled(text: str, folder: Path, environ: Mapping[str, str]) -> str:
    """The text with what its references name. Paths are relative to `folder`, where the file is.

    Raises:
        InvalidRequest: a reference is malformed, or there is nothing under that name.
    """
    return _REFERENCE.sub(lambda found: _one(found, folder, environ), text)


def escaped(text: str) -> str:
    """The text as a file has to have it, so that nothing in it is a reference."""
    return text.replace("${", "$${")


def has_reference(text: str) -> bool:
    """Whether something in the text looks like a reference."""
    return any(found[1] is not None and found[1].startswith(("env:", "file:")) for found in _REFERENCE.finditer(text))


def variable_name(*words: str) -> str:
    """The name of an environment variable made of these words."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(words)).strip("_").upper()
    return name if _NAME.fullmatch(name) else f"_{name}"


def _one(found: re.Match[str], folder: Path, environ: Mapping[str, str]) -> str:
    if found[0] == "$${":
        return "${"
    kind, _, name = (found[1] or "").partition(":")
    if kind == "env" and _NAME.fullmatch(name):
        if not environ.get(name):
            raise InvalidRequest(f"the environment variable {name} is not set, or is empty")
        return environ[name]
    if kind == "file" and name:
        path = folder / os.path.expanduser(name)
        text = read_text(str(path), MAX_SECRET_BYTES).removesuffix("\n").removesuffix("\r")
        if not text:
            raise InvalidRequest(f"{str(path)!r} is empty")
        return text
    raise InvalidRequest("a reference is `${env:NAME}` or `${file:PATH}`; write `$${` for `${` itself")
