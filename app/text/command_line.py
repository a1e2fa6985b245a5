"""Command lines as people have them for some system: what only wraps the program is taken off. Pure.

`cmd /c npx …`, `powershell -Command …`, `wsl bash -lc "…"`, `env A=B …`, `sh -c "cd DIR && A=B exec …"`, `node
…/npx-cli.js` and `C:\\…\\npx.cmd` all start one program, which another machine has under its own name. A line that does
more than that (a pipe, a substitution, two programs) stays as it is.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

MAX_WRAPPERS, MAX_SCRIPT = 8, 4096  # one in another; characters
_NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A program and its arguments, with the variables and the working directory that wrappers gave it. `wrappers`: what
    was taken off, from the outside in."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    wrappers: tuple[str, ...] = ()


_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_POWERSHELLS = frozenset({"powershell", "pwsh"})
_BEFORE = frozenset({"exec", "nohup", "command"})  # and the command itself follows
# What a shell's line does before it starts the program, and another machine does not need: to find Node.
_VERSIONS = frozenset({"nvm", "fnm", "volta", "asdf", "mise", "set", "setopt", "unset", "true", ":"})
_PROFILES = frozenset({"nvm.sh", ".bashrc", ".zshrc", ".zshenv", ".zprofile", ".profile", ".bash_profile"})
_is_assignment = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.ASCII | re.DOTALL).fullmatch
_SILENCED = re.compile(r"\s*(?:[12&]?>{1,2}\s*/dev/null|2>&1)")
_does_more = re.compile(r"[`<>*|()\\]|(?<!&)&(?!&)").search
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_POWERSHELL_VARIABLE = re.compile(r"\$env:([A-Za-z_][A-Za-z0-9_]*)\s*=\s*", re.ASCII | re.IGNORECASE)
_CALLED = re.compile(r"(^|;)\s*&\s*(?!&)")
_of_windows = re.compile(r"(?i)(?:[a-z]:[\\/]|%[a-z_]+%\\|\\\\|\.{0,2}\\)|.*\.(?:cmd|exe|bat|ps1)$").match
_WINDOWS_SUFFIX = re.compile(r"(?i)\.(?:cmd|exe|bat|ps1)$")
# Programs that a machine has itself; and where those of a Mac are, which no other machine has.
_RUNNERS = frozenset({"npx", "npm", "node", "pnpm", "bun", "bunx", "deno", "uv", "uvx", "pipx", "docker", "podman"})
_OF_A_MAC = ("/opt/homebrew/", "/Users/", "/usr/local/Cellar/")


def plain(words: Sequence[str]) -> CommandLine:
    """The program that a command line starts in the end, by the name that it has on any system."""
    line = CommandLine(tuple(words))
    for _ in range(MAX_WRAPPERS):
        if not line.words or (inner := _unwrapped(line)) is None:
            break
        line = inner
    if not line.words:
        return CommandLine(tuple(words))
    name = program_name(line.words[0])
    is_own = name in _RUNNERS and line.words[0].startswith(_OF_A_MAC)
    if name != line.words[0] and (is_own or is_windows_program(line.words[0])):
        line = replace(line, words=(name, *line.words[1:]), wrappers=(*line.wrappers, line.words[0]))
    return line


def program_name(word: str) -> str:
    """What a program is called, without its folder and without what Windows adds."""
    return _WINDOWS_SUFFIX.sub("", word.replace("\\", "/").rpartition("/")[2])


def is_windows_program(word: str) -> bool:
    """Whether this is a program of Windows; the Python of one project is not another machine's."""
    is_of_project = program_name(word).lower().startswith("python") and "scripts" in word.lower()
    return _of_windows(word) is not None and not is_of_project


def _unwrapped(line: CommandLine) -> CommandLine | None:
    """Without the outermost wrapper; None if there is none that can be taken off."""
    name, rest = program_name(line.words[0]).lower(), line.words[1:]
    unwrap = next((each for names, each in _UNWRAP if name in names), None)
    inner = None if unwrap is None else unwrap(rest)
    if inner is None or not inner.words:
        return None
    return CommandLine(
        inner.words, {**line.env, **inner.env}, inner.cwd or line.cwd, (*line.wrappers, inner.wrappers[0])
    )


def _inner(
    wrapper: str, words: Iterable[str], env: Mapping[str, str] = _NO_VARIABLES, cwd: str | None = None
) -> CommandLine:
    return CommandLine(tuple(words), dict(env), cwd, (wrapper,))


def _of_prefix(rest: Sequence[str]) -> CommandLine:
    return _inner("exec", rest)


def _of_env(rest: Sequence[str]) -> CommandLine | None:
    env, cwd, words = dict[str, str](), None, list(rest)
    while words:
        word = words.pop(0)
        if word in ("-S", "--split-string"):
            words = _split(" ".join(words)) or []
        elif word in ("-u", "--unset", "-C", "--chdir"):
            value = words.pop(0) if words else ""
            cwd = value if word in ("-C", "--chdir") else cwd
        elif _is_assignment(word):
            name, _, env[name] = word.partition("=")
        elif not word.startswith("-"):
            return _inner("env", [word, *words], env, cwd)
    return None


def _of_cmd(rest: Sequence[str]) -> CommandLine | None:
    at = next((number for number, word in enumerate(rest) if word.lower() in ("/c", "/k")), None)
    if at is None or any(not word.startswith("/") for word in rest[:at]):
        return None
    words = list(rest[at + 1 :])
    return _inner("cmd /c", (_split(words[0]) or []) if len(words) == 1 else words)


def _of_powershell(rest: Sequence[str]) -> CommandLine | None:
    words = list(rest)
    while words and words[0].startswith("-"):
        option = words.pop(0).lower()
        if option in ("-command", "-c"):
            break
        if option in ("-file", "-f", "-encodedcommand", "-enc", "-e"):
            return None
        if option in ("-executionpolicy", "-ep", "-ex", "-windowstyle", "-w"):
            words = words[1:]
    script = _CALLED.sub(r"\1", _POWERSHELL_VARIABLE.sub(r"\1=", " ".join(words)))
    return _of_script("powershell -Command", script, is_windows=True)


def _of_wsl(rest: Sequence[str]) -> CommandLine | None:
    words, cwd = list(rest), None
    while words and (words[0].startswith("-") or words[0] == "~"):
        option = words.pop(0)
        if option in ("-d", "--distribution", "-u", "--user", "--cd"):
            value = words.pop(0) if words else ""
            cwd = value if option == "--cd" and value.startswith("/") else cwd
    return _inner("wsl", words, cwd=cwd)


def _of_shell(rest: Sequence[str]) -> CommandLine | None:
    for number, word in enumerate(rest, 1):
        if not word.startswith("-"):
            return None
        if not word.startswith("--") and word.endswith("c"):
            script = rest[number : number + 1]
            # Behind a single word the others are meant to be its arguments.
            script = rest[number:] if script and " " not in script[0].strip() else script
            return _of_script("sh -c", " ".join(script))
    return None


def _of_node(rest: Sequence[str]) -> CommandLine | None:
    script = program_name(rest[0]) if rest else ""
    if script not in ("npx-cli.js", "npm-cli.js"):
        return None
    return _inner("node", [script.removesuffix("-cli.js"), *rest[1:]])


_UNWRAP: tuple[tuple[frozenset[str], Callable[[Sequence[str]], CommandLine | None]], ...] = (
    (_BEFORE, _of_prefix), (frozenset({"env"}), _of_env), (frozenset({"cmd"}), _of_cmd), (_POWERSHELLS, _of_powershell),
    (frozenset({"wsl"}), _of_wsl), (_SHELLS, _of_shell), (frozenset({"node"}), _of_node),
)  # fmt: skip


def _of_script(wrapper: str, script: str, *, is_windows: bool = False) -> CommandLine | None:
    """The program that a shell's line starts last, if what is before it only prepares that."""
    script = _SILENCED.sub("", script)
    looked_at = re.sub(r"[\\()]", "/", script) if is_windows else script
    if len(script) > MAX_SCRIPT or _does_more(looked_at) or ("'" in script and "$" in script):
        return None
    words = _split(_VARIABLE.sub(r"${\1}", script.replace("\n", " ; ")))
    if not words:
        return None
    env, cwd = dict[str, str](), None
    *before, last = _commands(words)
    for command in before:
        if command[0] in ("cd", "pushd") and len(command) == 2:
            cwd = command[1]
        elif command[0] == "export" or all(map(_is_assignment, command)):
            env |= _assigned(command)
        elif not _is_of_profile(command):
            return None
    start = next((number for number, word in enumerate(last) if not _is_assignment(word)), len(last))
    return _inner(wrapper, last[start:], {**env, **_assigned(last[:start])}, cwd)


def _assigned(words: Sequence[str]) -> dict[str, str]:
    """But for a search path that begins with folders of the other machine."""
    pairs = (word.partition("=") for word in words if _is_assignment(word))
    return {name: value for name, _, value in pairs if name != "PATH" or "${PATH}" not in value}


def _is_of_profile(command: Sequence[str]) -> bool:
    if command[0] in ("source", "."):
        return len(command) > 1 and program_name(command[1]) in _PROFILES
    return command[0] in _VERSIONS


def _commands(words: Sequence[str]) -> list[list[str]]:
    found = [[]] if words else list[list[str]]()
    for word in words:
        if word in ("&&", ";"):
            found.append([])
        else:
            found[-1].append(word)
    return [each for each in found if each] or [[]]


def _split(text: str) -> list[str] | None:
    """The words of a shell's line, in which a backslash is a letter of a path; None if it cannot be read."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&")
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        return list(lexer)
    except ValueError:
        return None
