"""The placeholders and variables of one entry: fills in supplied values, finds missing and risky ones."""

import json
import re
from collections.abc import Container, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from app.domain import HOME_WORD
from app.text.terminal.text import printable

MAX_FILLED = 256 * 1024  # characters of all values in one entry: a long value can be used many times
ASK = "--env NAME=VALUE"  # how to supply a value, in the text of problems

# Variables that change which code a program loads: they must not be taken from a file without confirmation.
_RISKY = (
    "LD_*", "DYLD_*", "NODE_OPTIONS", "NODE_PATH", "PYTHON*", "BASH_ENV", "ENV", "PERL5OPT", "RUBYOPT",
    "NPM_CONFIG_*", "PIP_*", "UV_*", "PATH",
    # Not all of git: servers have variables of such names for who commits, and where.
    "GIT_ALLOW_PROTOCOL", "GIT_*ASKPASS", "GIT_*COMMAND", "GIT_CONFIG*", "GIT_COMMON_DIR", "GIT_DIR", "GIT_*EDITOR",
    "GIT_EXEC_PATH", "GIT_EXTERNAL_*", "GIT_*PAGER", "GIT_SSH*", "GIT_TEMPLATE_DIR",
)  # fmt: skip
_HARMLESS = frozenset({"PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE"})
# What programs of Windows need there, and what no other system has.
_OF_WINDOWS = frozenset({
    "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "SYSTEMROOT", "SYSTEMDRIVE",
    "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "TEMP", "TMP", "PATH",
})  # fmt: skip
_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}|\{(?:env|file|input|secret):([^{}]*)\}")
# Other spellings of it: of Continue, and of Windows, where it is no part of an encoded URL.
_SPELLINGS = re.compile(
    r"\$\{\{\s{0,9}(?:secrets|inputs)\.([\w.-]+)\s{0,9}\}\}|%([A-Z][A-Z0-9_]{3,60}|[A-Z][a-z]+[A-Z]\w{1,60})%"
)
# Not `s://` of an address; to the end, or to what separates paths in an argument.
_WINDOWS_PATH = re.compile(r"(?:(?<![A-Za-z0-9+.%-])[A-Za-z]:[\\/](?!/)|(?<!\S)\\\\(?=\w))[^,;:\"'<>|]*")
_BESIDE_PLACEHOLDER = re.compile(r"(?<=\})(?:\\[^\\,;:\"'<>|]*)+")
_SEPARATORS = {"/": "/", "pathSeparator": "/"}  # VS Code, Cursor, Gemini
_BARE_PLACEHOLDER = re.compile(
    r"\$([A-Za-z_][A-Za-z0-9_]*)"
)  # Gemini's form; only as a whole value, because `$` is common
_of_home = re.compile(r"^~(?=/|$)|\$HOME(?!\w)|\$\{(?:(?:env[:.])?HOME|userHome)\}|\{env:HOME\}")


class Values:
    """Replaces placeholders by supplied values, or else the file's `defaults`, and remembers which were missing."""

    def __init__(self, supplied: Mapping[str, str], defaults: Mapping[str, str] = MappingProxyType({})) -> None:
        self._supplied, self._defaults = supplied, defaults
        self._missing: dict[str, None] = {}
        self._elsewhere: dict[str, None] = {}  # paths of Windows
        self._unreadable, self._room = False, MAX_FILLED
        self.notes: list[str] = []

    def problems(self) -> list[str]:
        problems = list[str]()
        if self._missing:
            names = ", ".join(ascii(name)[1:-1] for name in self._missing)
            looks_like_option = any(name.startswith("-") for name in self._missing)
            problems.append(f"needs {names}: give it with {ASK.replace(' ', '=') if looks_like_option else ASK}")
        if self._elsewhere:
            paths = "; ".join(printable(path) for path in self._elsewhere)
            problems.append(f"names a path of Windows, {paths}: say where that is here, under this name, with {ASK}")
        if self._unreadable:
            problems.append("has a placeholder that cannot be read")
        if self._room < 0:
            problems.append(f"is longer than {MAX_FILLED} characters with its values")
        return problems

    def get(self, name: str) -> str | None:
        return self._supplied.get(name)

    def need(self, name: str) -> None:
        """Notes that this value is missing."""
        self._missing[name] = None

    def fitting(self, value: str) -> str:
        """The value; empty if the values of the entry exceed MAX_FILLED."""
        self._room -= len(value)
        return value if self._room >= 0 else ""

    def fill(self, value: Any, kept: Container[str] = ()) -> Any:
        """Replaces the placeholders of a string, but for `kept`; returns anything else unchanged, which validation will
        refuse."""
        if not isinstance(value, str):
            return value
        value = _SPELLINGS.sub(lambda found: f"${{{found[1] or found[2]}}}", value)
        value = _of_home.sub("${HOME}", _BESIDE_PLACEHOLDER.sub(lambda found: found[0].replace("\\", "/"), value))
        value = _WINDOWS_PATH.sub(self._here, value)
        if whole := _BARE_PLACEHOLDER.fullmatch(value):
            return self._one(whole[1])
        if "${" in _PLACEHOLDER.sub("", value):  # nested, or not closed
            self._unreadable = True

        def filled(found: re.Match[str]) -> str:
            return found[0] if found[1] in kept else self._one(found[1] if found[1] is not None else found[2])

        return _PLACEHOLDER.sub(filled, value)

    def text(self, value: Any, kept: Container[str] = ()) -> Any:
        """As `fill`, where a number or a truth value can only mean its spelling."""
        if isinstance(value, int | float):
            try:
                return json.dumps(value, allow_nan=False)
            except ValueError:  # too long, or no number
                return value
        return self.fill(value, kept)

    def without_nulls(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Those that have a value; a note for each of the others that is not supplied."""
        left_out = [name for name, value in members.items() if value is None and name not in self._supplied]
        self.notes += [f"{ascii(name)[1:-1]} is null, and left out" for name in left_out]
        return {name: value for name, value in members.items() if name not in left_out}

    def _here(self, found: re.Match[str]) -> str:
        """Where a path of Windows is on this machine."""
        path = found[0].rstrip()
        if path in self._supplied:
            return self.fitting(self._supplied[path])
        self._elsewhere[path] = None
        return ""

    def _one(self, text: str) -> str:
        name, has_default, default = text.strip().partition(":-")
        name = re.sub(r"^(env|input|secret)[:.]", "", name)
        name = "HOME" if name in ("userHome", "USERPROFILE") else name  # VS Code, Windows
        if not name:
            self._unreadable = True
            return ""
        if name in self._supplied:
            return self.fitting(self._supplied[name])
        if name in _SEPARATORS:
            return _SEPARATORS[name]
        if has_default or name in self._defaults:
            self.notes.append(f"{ascii(name)[1:-1]} has the default of the file")
            return default if has_default else self.fitting(self._defaults[name])
        self.need(name)
        return ""


def environment(env: dict[str, Any], values: Values) -> tuple[dict[str, Any], list[str]]:
    """The variables, and problems. Supplied values override those of the file; risky variables must be supplied."""
    filled, risky = {}, []
    for name, value in values.without_nulls(env).items():
        supplied = values.get(name)
        if supplied is None and name.upper() in _OF_WINDOWS and _is_of_windows(value):
            values.notes.append(f"{ascii(name)[1:-1]} is a folder of Windows, and left out")
            continue
        filled[name] = _filled(name, value, values) if supplied is None else supplied
        if supplied is None and _is_risky(name.upper()):
            risky.append(ascii(name)[1:-1])
    sentence = "sets {}, which changes what programs load: confirm it with " + ASK
    return filled, [sentence.format(", ".join(risky))] if risky else []


def _is_of_windows(value: Any) -> bool:
    return isinstance(value, str) and bool(_WINDOWS_PATH.search(value) or _SPELLINGS.search(value))


def _is_risky(name: str) -> bool:
    return name not in _HARMLESS and any(fnmatchcase(name, pattern) for pattern in _RISKY)


def _filled(name: str, value: Any, values: Values) -> Any:
    """With the process's home in the place of the user's, unless that is supplied."""
    if not isinstance(value, str):
        return values.text(value)
    if values.get("HOME") is None:
        value = _of_home.sub(HOME_WORD, value)
    if HOME_WORD not in value:
        return values.fill(value)
    values.notes.append(
        f"{ascii(name)[1:-1]} names the home of each process, which ends with the process: `state: keep` keeps it"
    )
    return HOME_WORD.join(map(values.fill, value.split(HOME_WORD)))


def trimmed(value: Any) -> Any:
    """Without spaces and line ends around it, which no URL and no header has."""
    return value.strip() if isinstance(value, str) else value
