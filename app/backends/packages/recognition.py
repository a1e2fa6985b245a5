"""Which package a command line such as `npx -y NAME` or `uvx NAME` stands for. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.text.command_line import plain, program_name

Registry = Literal["npm", "pypi"]

# The words that a command line begins with, and whose packages the rest names.
RUNNERS: Mapping[tuple[str, ...], Registry] = {
    ("npx",): "npm", ("npm", "exec"): "npm", ("npm", "x"): "npm", ("pnpm", "dlx"): "npm", ("pnpx",): "npm",
    ("yarn", "dlx"): "npm", ("bunx",): "npm", ("bun", "x"): "npm",
    ("uvx",): "pypi", ("uv", "tool", "run"): "pypi", ("uv", "x"): "pypi", ("pipx", "run"): "pypi",
}  # fmt: skip
# Those whose image the rest names (`images.recognition`). Which of the two it is does not matter: a node has its own.
IMAGE_RUNNERS = (
    ("docker", "run"), ("podman", "run"), ("docker", "container", "run"), ("podman", "container", "run"),
)  # fmt: skip
_NAMES_IT = frozenset({"--from", "--spec"})
_PACKAGES = frozenset({"--package", "-p"})  # of npm; of uv `-p` is a Python
_MORE = frozenset({"--with"})
_PYTHONS = frozenset({"--python", "-p"})
# Options that change nothing here: a package is installed once, whatever a cache has, and nobody is asked.
_IDLE = frozenset({
    "-y", "--yes", "-q", "--quiet", "-s", "--silent", "-v", "--verbose", "--no-install", "--ignore-existing",
    "--prefer-offline", "--prefer-online", "--offline", "--bun", "--isolated", "--no-cache", "-n", "--refresh", "-U",
    "--upgrade", "--no-progress", "--native-tls", "--system-certs", "--no-config", "--managed-python", "--no-env-file",
    "--no-managed-python", "--no-python-downloads", "--reinstall", "--compile-bytecode", "--no-build",
})  # fmt: skip
_OUTSIDE = frozenset({"--no-project", "--no-sync", "--active"})  # of a project, which is not looked at
_is_of_uv = re.compile(r"python[\d.]*|.*\.py|.*[/\\].*").fullmatch  # what `uv run` starts without a package
_IDLE_WITH_VALUE = frozenset({
    "--loglevel", "--color", "--cache", "--cache-dir", "--link-mode", "--python-preference", "--refresh-package",
})  # fmt: skip
_OF_THE_NODE = frozenset({
    "--registry", "--index", "--index-url", "-i", "--default-index", "--extra-index-url", "--find-links", "-f",
    "--pip-args", "--index-strategy", "--userconfig", "--config-file",
})  # fmt: skip
_npm = re.compile(r"((?:@[A-Za-z0-9~_-][\w.~-]*/)?[A-Za-z0-9~_-][\w.~-]*)(?:@([\w.^~<>=*|+ -]{1,200}))?", re.ASCII)
_pypi = re.compile(
    r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(\[[A-Za-z0-9][\w.,\s-]*\])?"
    r"\s*(?:@\s*([\w.+!-]{1,100})|((?:(?:===?|~=|!=|<=?|>=?)\s*[\w.+!*-]+\s*,?\s*)+))?",
    re.ASCII,
)
_python = re.compile(r"(?:cpython@?|python)?(3(?:\.\d{1,2})?)(?:\.\d{1,3})?", re.ASCII)
_program_name = re.compile(r"[A-Za-z0-9_][\w.+-]{0,200}", re.ASCII)
_version = re.compile(r"[A-Za-z0-9][\w.+!-]{0,99}", re.ASCII)
_NEWEST = "latest"
MAX_MORE = 32  # further packages of one command


class NotInstallable(ValueError):
    """The command names a package, but not one that can be installed. The message says what to do."""


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """What a command line asks for. `name` is that of its package and `wanted` what is to be installed, as npm and uv
    read it, the package first. `program`: which of its programs; empty: the one that is called as it, or its only one.
    `args`: of that program. `python`: of which version, if that is said."""

    registry: Registry
    name: str
    wanted: tuple[str, ...]
    program: str = ""
    args: tuple[str, ...] = ()
    python: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all packages that are to be installed, without their versions."""
        return tuple(_parts(self.registry, each)[0] for each in self.wanted)

    def is_same_package(self, other: "PackageRequest | None") -> bool:
        """Whether the same lock serves both."""
        return other is not None and replace(self, args=()) == replace(other, args=())


@dataclass(slots=True)
class _Reading:
    """A command line as far as it has been read."""

    runner: str
    registry: Registry
    named: list[str]
    more: list[str]
    python: str = ""

    def use_python(self, text: str) -> None:
        """Raises NotInstallable: it is no version."""
        if (found := _python.fullmatch(text)) is None:
            words = f"`{self.runner} --python {text[:100]}`: name a version, such as 3.12, that the nodes have"
            raise NotInstallable(words)
        self.python = found[1]


def runner_of(line: Sequence[str]) -> tuple[str, ...] | None:
    """The words at the beginning of a command line that say what installs its package."""
    return next((words for words in RUNNERS if tuple(line[: len(words)]) == words), None)


def recognised(command: str, args: Sequence[str]) -> PackageRequest | None:
    """None: the command names no package, but what is there already.

    Raises:
        NotInstallable: it names one which cannot be installed.
    """
    line = line_of(command, args)
    words = runner_of(line)
    return None if words is None else _read(words, line[len(words) :])


def names_package(command: str, args: Sequence[str]) -> bool:
    """Whether the command line begins as one that names a package, or an image."""
    line = line_of(command, args)
    return runner_of(line) is not None or image_runner_of(line) is not None


def image_runner_of(line: Sequence[str]) -> tuple[str, ...] | None:
    """The words at the beginning of a command line that start a container."""
    return next((words for words in IMAGE_RUNNERS if tuple(line[: len(words)]) == words), None)


def newest_of(request: PackageRequest) -> PackageRequest:
    """As it, for the newest version of its package, and nothing besides."""
    name, extras, _ = _parts(request.registry, request.wanted[0])
    return PackageRequest(request.registry, name, (f"{name}{extras}",), python=request.python)


def at_version(command: str, args: Sequence[str], version: str) -> tuple[PackageRequest, tuple[str, ...]]:
    """What a command line that names a package asks for with this version of it; and its arguments, which name that
    version if they name one.

    Raises:
        NotInstallable: that is no version, or the one that is named stands where it cannot be replaced.
    """
    if _version.fullmatch(version) is None:
        raise NotInstallable(f"{version[:100]!a} is not a version of a package")
    request = recognised(command, args)
    assert request is not None
    name, extras, named = _parts(request.registry, request.wanted[0])
    text = f"{name}@{version}" if request.registry == "npm" else f"{name}{extras}{_exactly(version)}"
    wanted = replace(request, wanted=(text, *request.wanted[1:]))
    if not named:
        return wanted, tuple(args)
    for at, word in enumerate(args):
        changed = (*args[:at], _renamed(word, request, version), *args[at + 1 :])
        if changed != tuple(args) and _is_read_as(wanted, command, changed):
            return wanted, changed
    raise NotInstallable(f"`args` name another version than {version}, within a longer word: change them yourself")


def _parts(registry: Registry, wanted: str) -> tuple[str, str, str]:
    """Name, extras and version of a package, as far as they are named."""
    found = (_npm if registry == "npm" else _pypi).fullmatch(wanted)
    assert found is not None
    if registry == "npm":
        return found[1], "", found[2] or ""
    return found[1], found[2] or "", found[3] or found[4] or ""


def _renamed(word: str, request: PackageRequest, version: str) -> str:
    """A word, or the value of an option, that names the request's package, with this version of it."""
    option, equals, text = word.partition("=") if word.startswith("--") else ("", "", word)
    name, extras, _ = _parts(request.registry, request.wanted[0])
    if not text.strip().startswith(f"{name}{extras}"):
        return word
    is_npm, is_tagged = request.registry == "npm", text.strip().startswith(f"{name}{extras}@")
    ending = f"@{version}" if is_npm or is_tagged or version == _NEWEST else _exactly(version)
    return f"{option}{equals}{name}{extras}{ending}"


def _exactly(version: str) -> str:
    return "" if version == _NEWEST else f"=={version}"


def _is_read_as(request: PackageRequest, command: str, args: Sequence[str]) -> bool:
    try:
        return recognised(command, args) == request
    except NotInstallable:
        return False


def line_of(command: str, args: Sequence[str]) -> tuple[str, ...]:
    """From the runner on, behind what only starts it; empty where that also gives it what a backend must say itself."""
    line = plain((command, *args))
    if line.env or line.cwd or (line.wrappers and any("${" in word for word in line.words)):
        return ()
    return _as_tool((program_name(line.words[0]), *line.words[1:]))


def _as_tool(line: tuple[str, ...]) -> tuple[str, ...]:
    """`uv run --with PACKAGE PROGRAM` as `uvx` has it; any other line as it is, also one of a project or a script."""
    if line[:2] != ("uv", "run"):
        return line
    packages, python, waiting = list[str](), list[str](), list(line[2:])
    while waiting and waiting[0].startswith("-"):
        name, has_value, value = waiting.pop(0).partition("=")
        if name in (*_MORE, *_PYTHONS):
            if not has_value and not waiting:
                return line
            value = value if has_value else waiting.pop(0)
            packages += value.split(",") if name in _MORE else []
            python = ["--python", value] if name in _PYTHONS else python
        elif name not in _IDLE and name not in _OUTSIDE:
            return line
    if not packages or not waiting or _is_of_uv(waiting[0]):
        return line
    more = [word for each in packages[1:] for word in ("--with", each)]
    return ("uvx", "--from", packages[0], *more, *python, "--", *waiting)


def _read(words: tuple[str, ...], rest: Sequence[str]) -> PackageRequest:
    reading = _Reading(" ".join(words), RUNNERS[words], [], [])
    waiting = list(rest)
    while waiting:
        option = waiting.pop(0)
        if option == "--":
            break
        if not option.startswith("-"):
            waiting.insert(0, option)
            break
        _take_option(reading, option, waiting)
    if not waiting:
        raise NotInstallable(f"`{reading.runner}` names no package: write its name behind the options")
    first, args = waiting[0], waiting[1:]
    if reading.runner.startswith("npm ") and args[:1] == ["--"]:
        args = args[1:]
    if reading.named:
        return _request(reading, reading.named, first, args)
    return _request(reading, [first], "", args)


def _take_option(reading: _Reading, option: str, waiting: list[str]) -> None:
    name, has_value, value = option.partition("=")

    def needed() -> str:
        if has_value:
            return value
        if not waiting:
            raise NotInstallable(f"`{reading.runner} {name}` needs a value")
        return waiting.pop(0)

    is_npm = reading.registry == "npm"
    if name in _NAMES_IT and not is_npm:
        reading.named[:0] = [needed()]
    elif name in _PACKAGES and is_npm:
        reading.named.append(needed())
    elif name in _MORE and not is_npm:
        reading.more.extend(each for each in needed().split(",") if each.strip())
    elif name in _PYTHONS and not is_npm:
        reading.use_python(needed())
    elif name in _IDLE_WITH_VALUE:
        needed()
    elif name not in _IDLE:
        raise _not_understood(reading, name)


def _not_understood(reading: _Reading, name: str) -> NotInstallable:
    if name in _OF_THE_NODE:
        return NotInstallable(
            f"`{reading.runner} {name}`: packages come from where this gateway's node gets them "
            "(NPM_REGISTRY and PYPI_INDEX of its settings, or npm's and uv's own configuration there): leave it out"
        )
    return NotInstallable(
        f"`{reading.runner} {name}` is an option that no installed package can have: leave it out, or install the "
        "package yourself and name its program as `command`"
    )


def _request(reading: _Reading, named: Sequence[str], program: str, args: Sequence[str]) -> PackageRequest:
    program = program.removesuffix(".exe")  # as READMEs have it for Windows
    if program and _program_name.fullmatch(program) is None:
        raise NotInstallable(f"{program[:100]!a} is not the name of a program of a package")
    if len(named) + len(reading.more) > MAX_MORE:
        raise NotInstallable(f"`{reading.runner}` names more than {MAX_MORE} packages")
    parse = _of_npm if reading.registry == "npm" else _of_pypi
    wanted = [parse(reading, each.strip()) for each in (*named, *reading.more)]
    texts = tuple(each for _, each in wanted)
    return PackageRequest(reading.registry, wanted[0][0], texts, program, tuple(args), reading.python)


def _of_npm(reading: _Reading, text: str) -> tuple[str, str]:
    found = _npm.fullmatch(text)
    if found is None or text.startswith((".", "~")):
        raise _elsewhere(reading, text)
    return found[1], text


def _of_pypi(reading: _Reading, text: str) -> tuple[str, str]:
    found = _pypi.fullmatch(text)
    if found is None:
        raise _elsewhere(reading, text)
    name, extras, version, specifiers = found.groups()
    if version is not None:  # which only uv and pipx know
        specifiers = _exactly(version)
    return name, f"{name}{extras or ''}{(specifiers or '').strip()}"


def _elsewhere(reading: _Reading, text: str) -> NotInstallable:
    shown = ascii(text[:100])[1:-1]
    place = "PyPI" if reading.registry == "pypi" else "npm"
    return NotInstallable(
        f"`{reading.runner} {shown}`: that is no package of {place} with a version, but a place or a repository, whose "
        "content could change at any time: publish it to a registry that the node uses, or install it yourself and "
        "name its program as `command`"
    )
