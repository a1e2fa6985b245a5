"""Whoever mistypes a command or an option is told what was probably meant."""

import pytest

from app.cli.parser import parse
from app.cli.usage.meant import nearest

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


def test_what_is_like_nothing_has_no_suggestion() -> None:
    assert nearest("frobnicate", ["list", "show"]) == ""
