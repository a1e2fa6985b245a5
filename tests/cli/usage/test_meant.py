"""Whoever mistypes a command or an option is told what was probably meant."""

import pytest

from app.cli.parser import parse
from app.cli.usage import nouns

CLIENTS = ", ".join(map(repr, nouns.CLIENTS))
DASHES = "a command stands behind `--`: backends create NAME -- COMMAND ARGUMENTS"
CASES = {
    "backend list": "there is no command 'backend'; did you mean `backends`?",
    "Backends list": "there is no command 'Backends'; did you mean `backends`?",
    "backends lst": "there is no command 'lst'; did you mean `list`?",
    "sessions rename": "there is no command 'rename'; there are list, show, close, delete",
    "frobnicate": "there is no command 'frobnicate'; see `trunkline help all`",
    "serve --prot 80": "unrecognized arguments: --prot 80; did you mean `--port`?",
    "backends list --tennant acme": "unrecognized arguments: --tennant; did you mean `--tenant`?",
    "backends list --tennant=acme": "unrecognized arguments: --tennant=acme; did you mean `--tenant`?",
    "backends list --zzz": "unrecognized arguments: --zzz",
    "backends get x": "there is no command 'get'; did you mean `show`?",
    "--tenant acme backends list": "--tenant stands before the command: write `trunkline COMMAND --tenant …`",
    "backends --json list": "--json stands before the command: write `trunkline backends COMMAND --json …`",
    "connect cursr --backend time": f"argument CLIENT: invalid choice: 'cursr' (choose from {CLIENTS}); did you mean "
    "`cursor`?",
    "backends create time mcp-server-time --zone UTC": DASHES,
    "backends create time mcp-server-time": DASHES,
    "keys": "which command? There are create, list, revoke, delete, rotate, show, set",
    "": "which command? See `trunkline help`",
}


@pytest.mark.parametrize(("words", "expected"), CASES.items())
def test_a_mistyped_word_is_an_error_that_says_what_was_meant(capsys, words: str, expected: str) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(words.split())
    assert caught.value.code == 2
    *usage, line = capsys.readouterr().err.splitlines()
    assert usage[0].startswith("usage: trunkline")
    assert line.partition("error: ")[2] == expected
