"""Commands that download what they start, but name no package that could be installed before. A process of the gateway
begins with an empty home, usually without a network."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from app.backends.packages.recognition import IMAGE_RUNNERS, RUNNERS
from app.text.command_line import program_name

_PIP = "pipx install {pip}` or `uv tool install {}"
_NPM = "npm install --global {}"
# The words that a command line begins with, and how to install the package that follows.
_RUNNERS: dict[tuple[str, ...], str] = {
    **{words: _NPM if registry == "npm" else _PIP for words, registry in RUNNERS.items()},
    **dict.fromkeys(IMAGE_RUNNERS, ""),
}  # fmt: skip
_PASSES_ON = "mcp-remote"
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_ENDS = frozenset({"&&", "||", ";", "|", "&", "(", ")"})  # of one command in a shell's line
MAX_SHELLS, MAX_SCRIPT = 4, 4096  # one in another; characters
_BEFORE = frozenset({"exec", "nohup", "command"})  # and the command itself follows
_is_assignment = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.ASCII | re.DOTALL).fullmatch
# Options with a value that is not the package; and those whose value is.
_WITH_VALUE = frozenset({
    "--python", "--directory", "--project", "--with", "--index", "--index-url", "--extra-index-url", "--registry",
    "--cache",
})  # fmt: skip
_NAMES_IT = frozenset({"--package", "-p", "--from", "--spec"})
_is_package = re.compile(r"[@A-Za-z0-9][@A-Za-z0-9._~+/:=\[\]-]{0,200}", re.ASCII).fullmatch


class Download(NamedTuple):
    """`program` downloads `package`, or what it is given where that is not clear; `install` has it installed before."""

    program: str
    package: str
    install: str

    @property
    def words(self) -> str:
        """What is missing, and what helps."""
        if self.package.partition("@")[0] == _PASSES_ON:
            return (
                f"`{_PASSES_ON}` passes messages on to a URL, which the gateway does itself: give the server that "
                "`url`, and what its `--header` says as `headers`"
            )
        if not self.install:
            return (
                f"`{self.program}` starts a container, which no process in a sandbox can: name it as the `command` of "
                "the backend, with nothing around it but its own options, so that the node's container engine starts it"
            )
        return (
            f"`{self.program}` downloads {self.package or 'a package'} at each start, as each process has an empty "
            "home, and a network only if its sandbox says so: install it first "
            f"(`{self.install}`), and name the program that it brings as `command`"
        )


def download_of(command: object, args: Sequence[object]) -> Download | None:
    """None if the command starts what is there already, as far as is known."""
    return _of_line([str(each) for each in (command, *args)], MAX_SHELLS)


def _of_line(line: list[str], shells: int) -> Download | None:
    if not (line := _without_prefix(line)):
        return None
    if (commands := _of_shell(line)) is not None:
        return next((found for each in commands if shells and (found := _of_line(each, shells - 1))), None)
    if line[:2] == ["uv", "run"]:
        added = _added(line[2:])
        return None if added is None else _download("uv run --with", added, _PIP)
    if line[:2] == ["deno", "run"]:
        first = next((each for each in line[2:] if not each.startswith("-")), "")
        return _download("deno run", first.removeprefix("npm:"), _NPM) if first.startswith("npm:") else None
    for words, install in _RUNNERS.items():
        if tuple(line[: len(words)]) == words:
            return _download(" ".join(words), _package(line[len(words) :]), install)
    return None


def _download(program: str, package: str, install: str) -> Download:
    package = package if _is_package(package) else ""
    for place, each in (("{pip}", _of_pip(package)), ("{}", package)):
        install = install.replace(place, shlex.quote(each or "PACKAGE"))
    return Download(program, package, install)


def _of_pip(package: str) -> str:
    """As pip reads it, which does not know `NAME@VERSION`."""
    name, _, version = package.partition("@")
    if not version or "://" in package:
        return package
    return name if version == "latest" else f"{name}=={version}"


def _without_prefix(line: list[str]) -> list[str]:
    """From the program on that does the work: after `env`, its options and what it sets."""
    at, is_env, is_split = 0, False, False
    while at < len(line):
        word = line[at]
        name = program_name(word)
        if name == "env":
            is_env = True
        elif is_env and word in ("-S", "--split-string") and not is_split:
            line, at, is_split = [each for words in _commands(" ".join(line[at + 1 :])) for each in words], -1, True
        elif is_env and word in ("-u", "--unset", "-C", "--chdir"):
            at += 1
        elif not (name in _BEFORE or _is_assignment(word) or (is_env and word.startswith("-"))):
            return [name, *line[at + 1 :]]
        at += 1
    return []


def _of_shell(line: list[str]) -> Iterable[list[str]] | None:
    """The commands that a shell is given, if this is a shell."""
    if line[0] == "cmd" and line[1:2] in (["/c"], ["/C"]):  # as in configurations of Windows
        return [line[2:]] if len(line) > 3 else [line[2].split()] if len(line) == 3 else []
    if line[0] not in _SHELLS:
        return None
    for number, word in enumerate(line[1:], 2):
        if not word.startswith("-"):
            break
        if not word.startswith("--") and word.endswith("c"):
            return _commands("".join(line[number : number + 1]))
    return []


def _commands(script: str) -> Iterator[list[str]]:
    """The commands of a shell's line; none where it cannot be read."""
    if len(script) > MAX_SCRIPT:
        return
    lexer = shlex.shlex(script.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return
    command = list[str]()
    for word in (*words, ";"):
        if word not in _ENDS:
            command.append(word)
        elif command:
            yield command
            command = []


def _added(args: Sequence[str]) -> str | None:
    """The package that `uv run` is to have beside its project; None if there is none."""
    before = ""
    for number, arg in enumerate(args):
        name, has_value, value = arg.partition("=")
        if name in ("--with", "-w"):
            return value if has_value else "".join(args[number + 1 : number + 2])
        if not arg.startswith("-") and before not in _WITH_VALUE and before != "-p":
            break
        before = arg
    return None


def _package(args: Sequence[str]) -> str:
    """The first argument that is no option; empty if there is none."""
    found, is_value = "", False
    for number, arg in enumerate(args):
        name, has_value, value = arg.partition("=")
        if is_value:
            is_value = False
        elif name in _NAMES_IT:
            found = value if has_value else "".join(args[number + 1 : number + 2])
            break
        elif not arg.startswith("-"):
            found = arg
            break
        else:
            is_value = name in _WITH_VALUE and not has_value
    return found
