"""Text on a terminal: nothing in it steers the terminal, and it is as wide as it looks."""

from app.text.terminal.text import columns_of, cut, printable


def test_nothing_steers_the_terminal():
    assert printable("a\x1b[2Jb\r\n\x07\u202e") == "a\\x1b[2Jb\\r\\n\\x07\\u202e"
    assert printable("日本 é") == "日本 é"


def test_wide_letters_take_two_columns_and_accents_none():
    assert columns_of("日本") == 4
    assert columns_of("e\u0301") == 1
    assert cut("日本語", 5) == "日本"
    assert cut("short", 5) == "short"
    assert cut("long", 0) == ""
