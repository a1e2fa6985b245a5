"""Commands that download what they start. A process of the gateway begins with an empty home, usually without a
network."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_PIP = "pipx install {}` or `uv tool install {}"
_NPM = "npm install --global {}"
# The words that a command line begins with, and how to install the package that follows.
_RUNNERS: dict[tuple[str, ...], str] = {
    ("npx",): _NPM, ("npm", "exec"): _NPM, ("npm", "x"): _NPM, ("pnpm", "dlx"): _NPM, ("pnpx",): _NPM,
    ("yarn", "dlx"): _NPM, ("bunx",): _NPM, ("bun", "x"): _NPM, ("uvx",): _PIP, ("uv", "tool", "run"): _PIP,
    ("uv", "x"): _PIP, ("pipx", "run"): _PIP, ("docker", "run"): "", ("podman", "run"): "",
    ("docker", "container", "run"): "", ("podman", "container", "run"): "",
}  # fmt: skip
_SHELLS = (("cmd", "/c"), ("cmd.exe", "/c"), ("cmd", "/C"))  # as in configurations of Windows
# Options with a value that is not the package; and those whose value is.
_WITH_VALUE = frozenset({"--python", "--with", "--index", "--index-url", "--extra-index-url", "--registry", "--cache"})
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
        if not self.install:
            return (
                f"`{self.program}` starts a container, which no process of the gateway can: install the server itself "
                "and name its program, or have the container serve MCP by HTTP and give its `url`"
            )
        return (
            f"`{self.program}` downloads {self.package or 'a package'} at each start, as each process has an empty "
            "home, and a network only if its sandbox says so: install it first "
            f"(`{self.install}`), and name the program that it brings as `command`"
        )


def download_of(command: object, args: Sequence[object]) -> Download | None:
    """None if the command starts what is there already, as far as is known."""
    line = [str(each) for each in (command, *args)]
    if tuple(line[:2]) in _SHELLS:
        line = line[2:]
    if not line:
        return None
    line[0] = line[0].replace("\\", "/").rpartition("/")[2].removesuffix(".cmd").removesuffix(".exe")
    for words, install in _RUNNERS.items():
        if tuple(line[: len(words)]) == words:
            package = _package(line[len(words) :])
            return Download(" ".join(words), package, install.replace("{}", package or "PACKAGE"))
    return None


def _package(args: Sequence[str]) -> str:
    """The first argument that is no option; empty if it cannot be told."""
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
    return found if _is_package(found) else ""
