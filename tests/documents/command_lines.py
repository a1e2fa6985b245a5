"""What the commands of a document say, without running them: each must be one that there is, with options that it has.

Bash itself takes a script apart (`declare -f` prints it without comments and continuations); `argparse` of the program
decides about `trunkline`; scripts and programs of the repository must exist and know each option.
"""

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from app.cli.parser import make_parser, parse
from tests.conftest import OPTIONAL

ROOT = Path(__file__).resolve().parents[2]
# Programs of others, whose options are theirs to know.
ORDINARY = {
    "alias", "apt-get", "caddy", "cat", "cd", "claude", "command", "cp", "curl", "docker", "echo", "export", "false",
    "git", "grep", "haproxy", "head", "install", "jq", "journalctl", "kill", "kubectl", "mkdir", "mkfifo", "npm",
    "openssl", "pip", "printf", "rm", "sed", "set", "sh", "sleep", "sort", "stty", "systemctl", "systemd-run", "tail",
    "tee", "test", "tr", "true", "umask", "useradd", "uvx", "wait", "api", "[", "uniq", "cut", "exit", "read", "env",
    "wc", "exec", "local", "return", "break", "date", "sudo",
}  # fmt: skip
KEYWORDS = {"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "for", "{", "}", "!", "time", "in"}
OURS = ("scripts", "deploy", "docs", "tests", "bench", "migrations", "app")
MADE = {"deploy/secrets/metrics_key", "deploy/k8s/overlays/mine"}  # by the commands that name them
_HEREDOC = re.compile(r"<<-?'?(\w+)'?([^\n]*)\n.*?^\1$", re.MULTILINE | re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\(((?:[^()]|\([^()]*\))*)\)")
_PLACEHOLDER = re.compile(r"\$\{?\w+\}?|\b[A-Z][A-Z_]*\b|…")
_EXAMPLE = re.compile(r"^\w*\$\w+$")


def problems_of(script: str) -> list[str]:
    """What is wrong with a script of a document."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        return [done.stderr.strip()]
    return [problem for words in commands_of(script) for problem in _problems(words)]


def commands_of(script: str) -> Iterator[list[str]]:
    """The simple commands of a script, each as its words; those in `$(…)` too."""
    text = _HEREDOC.sub(r"\2", script)
    for inner in _SUBSTITUTION.findall(text):
        yield from commands_of(inner)
    text = _SUBSTITUTION.sub("SUBSTITUTED", text)
    if not re.sub(r"(^|\s)#[^\n]*", "", text).strip():
        return
    done = subprocess.run(
        ["bash", "-c", f"f() {{\n{text}\n}}; declare -f f"], capture_output=True, text=True, timeout=30, check=True
    )
    body = done.stdout.split("{", 1)[1].rsplit("}", 1)[0]
    body = re.sub(r"(?<=\s)\d(?=[<>])", "", body)  # 2>
    functions = {"function", *re.findall(r"^ *(?:function )?(\w+) \(\)", body, re.MULTILINE)}
    lexer = shlex.shlex(body, posix=True, punctuation_chars=";|&()\n<>")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    words = list[str]()
    skips = False  # what comes after `>` and `<`
    for token in lexer:
        if token and set(token) <= set("<>&") and set(token) & set("<>"):
            skips = True
        elif token and set(token) <= set(";|&()\n"):
            yield from _command(words, functions)
            words, skips = [], False
        elif skips:
            skips = False
        else:
            words.append(token)
    yield from _command(words, functions)


def _command(words: list[str], functions: set[str]) -> Iterator[list[str]]:
    while words and (words[0] in KEYWORDS or re.match(r"^\w+=", words[0])):
        if words[0] in ("for", "in"):
            return
        words = words[1:]
    if words and words[0] not in functions:
        yield words


def _problems(words: Sequence[str]) -> Iterator[str]:
    program, *rest = words
    where = " ".join(words)[:160]
    if Path(program).name == "trunkline":
        yield from (f"{problem}: {where}" for problem in _problems_of_trunkline(rest))
    elif program.startswith(("scripts/", "deploy/")):
        yield from (f"{problem}: {where}" for problem in _problems_of_file(program, rest))
    elif re.fullmatch(r"(\S*/)?python3?", program):
        yield from (f"{problem}: {where}" for problem in _problems_of_python(rest))
    elif program.startswith(".venv/bin/"):
        name = program.removeprefix(".venv/bin/")
        if not (Path(sys.executable).parent / name).exists() and name != "pre-commit":
            yield f"there is no {program}: {where}"
    elif Path(program).name not in ORDINARY and not _EXAMPLE.match(program):
        yield f"nobody knows {program!r} (if it is a program, add it to ORDINARY): {where}"
    elif "trunkline" in [Path(word).name for word in rest]:
        yield from (f"{problem}: {where}" for problem in _problems_of_wrapped(rest))
    for word in rest if program != "kubectl" else ():
        named = re.fullmatch(rf"((?:{'|'.join(OURS)})/[\w./-]+)", word)
        if named and named[1].rstrip("/") not in MADE and not (ROOT / named[1]).exists():
            yield f"there is no {named[1]}: {where}"


def _problems_of_wrapped(rest: Sequence[str]) -> Iterator[str]:
    """`docker run … trunkline serve`, `uvx … trunkline serve`: the last one that has words behind it is the program."""
    verbs = set(next(iter(make_parser()._subparsers._group_actions)).choices or ())  # type: ignore[union-attr]
    at = max(number for number, word in enumerate(rest) if Path(word).name == "trunkline")
    after = list(rest[at + 1 :])
    if after and (after[0] in verbs or "exec" in rest or "run" in rest):
        yield from _problems_of_trunkline(after)


def _problems_of_trunkline(words: Sequence[str]) -> Iterator[str]:
    """What its own parser says. Placeholders count as some small word."""
    words = [_PLACEHOLDER.sub("x1", word) if "=" not in word and "{" not in word else word for word in words]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parse(words)
    except SystemExit as ended:
        if ended.code:
            yield said.getvalue().strip().splitlines()[-1]


def _problems_of_file(path: str, rest: Sequence[str]) -> Iterator[str]:
    if not (ROOT / path).is_file():
        yield f"there is no {path}"
        return
    known = (ROOT / path).read_text() + (_options_of_pytest() if path == "scripts/test" else "")
    if path == "scripts/bench":
        known = "".join(each.read_text() for each in (ROOT / "bench").rglob("*.py"))
    yield from (f"{path} has no {option}" for option in _options(rest) if not re.search(rf"{option}\b", known))


def _problems_of_python(rest: Sequence[str]) -> Iterator[str]:
    if rest[:1] == ["-c"] or not rest:
        return
    if rest[0] == "-m":
        if importlib.util.find_spec(rest[1]) is None:
            yield f"there is no module {rest[1]}"
        elif rest[1] == "pytest":
            known = _options_of_pytest()
            yield from (f"pytest has no {option}" for option in _options(rest[2:]) if option not in known)
            yield from (f"there is no {each}" for each in rest[2:] if "/" in each and not (ROOT / each).exists())
    elif rest[0].startswith(OURS):
        yield from _problems_of_file(rest[0], rest[1:])


def _options(words: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]


@cache
def _options_of_pytest() -> str:
    """The options that tests/conftest.py adds, and of pytest and its plugins those that documents use."""
    ours = [f"--{name}" for name in OPTIONAL]
    return " ".join([*ours, "--cov", "--cov-fail-under", (ROOT / "tests/conftest.py").read_text()])
