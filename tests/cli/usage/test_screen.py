"""What somebody sees first."""

from contextlib import suppress

import pytest

from app import cli
from app.cli.parser import make_parser
from app.cli.usage.screen import DAILY, screen


def test_help_is_one_screen_and_says_where_the_rest_is() -> None:
    lines = screen(make_parser()).splitlines()
    assert len(lines) <= 23  # one more is for the prompt
    assert max(map(len, lines)) <= 80
    assert any("trunkline help all" in line for line in lines)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with suppress(SystemExit):
        assert cli.main(words) == 0
    return capsys.readouterr().out


def test_help_of_everything_has_every_command_and_examples(capsys) -> None:
    everything = printed(capsys, "help", "all")
    assert [each for each in make_parser().commands if f"\n    {each}" not in everything] == []
    assert "trunkline keys create --tenant default --scope platform:admin" in everything
    assert {name for names in DAILY.values() for name in names} < set(make_parser().commands)


def test_help_of_a_command_is_that_of_its_option(capsys) -> None:
    assert printed(capsys, "help") == printed(capsys, "--help") == printed(capsys, "-h")
    assert printed(capsys, "help", "backends", "create") == printed(capsys, "backends", "create", "--help")


def test_help_of_what_is_no_command_says_what_was_meant(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["help", "bakends"])
    assert caught.value.code == 2
    assert "did you mean `backends`?" in capsys.readouterr().err
