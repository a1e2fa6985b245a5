"""What the commands over REST print, as far as they ask nobody."""

import argparse
import io
import sys

import pytest

from app.cli.resources import _package_in, _tell_made, print_table, terminal_width
from app.cli.usage.nouns import BACKENDS

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


@pytest.mark.parametrize(("command", "args", "named"), [
    ("npx", ["-y", "@acme/notes@1.0", "serve"], "@acme/notes@1.0"), ("uvx", ["notes@1.0"], "notes==1.0"),
    ("notes", [], ""), ("npx", ["github:acme/notes"], ""), ("npx", "notes", ""), ("npx", [1], ""), (None, None, ""),
])  # fmt: skip
def test_what_a_new_backend_has_installed_is_named_as_far_as_it_can_be_told(command, args, named):
    assert _package_in({"command": command, "args": args}) == named


def test_of_what_is_made_it_is_told_that_something_was_left_out(capsys):
    options = argparse.Namespace(resource=BACKENDS, id="shop", tenant="acme")
    _tell_made(options, {"name": "shop", "notes": []})
    _tell_made(options, {"name": "shop", "notes": ["HEAD /items: is left out: \x1b", "GET /far: is left out"]})
    said = capsys.readouterr()
    assert said.out == "created backend shop of tenant acme\n" * 2
    following = "next: trunkline backends check shop --tenant acme"
    notes = "trunkline: notes (2): HEAD /items: is left out: \\x1b"
    assert said.err.splitlines() == [following, notes, following]
