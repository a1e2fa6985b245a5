"""What the commands over REST print, as far as they ask nobody."""

import io
import sys

from app.cli.resources import print_table, terminal_width

ROWS = [{"name": "time", "command": "x" * 300}, {"name": "notes", "command": "y"}]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_into_a_pipe_columns_are_as_wide_as_their_values(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal_width() is None
    print_table(ROWS, ("name",))
    header, first, second = capsys.readouterr().out.splitlines()
    assert (header, second) == ("name   command", "notes  y")
    assert first == f"time   {'x' * 300}"


def test_on_a_terminal_a_table_fits(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert terminal_width() == 40
    print_table(ROWS, ("name",))
    assert max(map(len, terminal.getvalue().splitlines())) <= 40
