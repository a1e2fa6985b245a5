"""Answers of the REST API as text: whatever is in them is shown, and nothing in them steers a terminal."""

import pytest

from app.cli.tables import one_line, record, table
from app.text.terminal.text import columns_of


def test_a_list_has_the_columns_that_matter_first_and_none_that_are_empty():
    rows = [
        {"version": 1, "limits": {"a": 1}, "id": "x", "empty": None, "name": "one", "new": True},
        {"version": 2, "limits": {"a": 2}, "id": "y", "empty": [], "name": "second", "new": False},
    ]
    text, left_out = table(rows, first=("name", "absent"))
    assert left_out == []
    assert text.splitlines() == [
        "name    id  new    limits  version",
        "one     x   true   a=1     1",
        "second  y   false  a=2     2",
    ]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_a_table_fits_its_terminal(width):
    row = {"id": "abcdefghijkl", **{f"column{number}": "x" * 10 * number for number in range(1, 9)}}
    text, left_out = table([row], width=width)
    assert all(columns_of(line) <= width for line in text.splitlines())
    shown = text.splitlines()[0].split()
    assert "abcdefghijkl" in text
    assert [*shown, *left_out] == [*row]


def test_what_is_narrow_enough_is_whole():
    text, left_out = table([{"id": "a", "text": "y" * 60}], width=80)
    assert "y" * 60 not in text
    assert table([{"id": "a", "text": "y" * 38}], width=80)[0].splitlines()[1] == "a   " + "y" * 38
    assert left_out == []


def test_wide_letters_take_two_columns():
    text, _ = table([{"name": "日本", "x": 1}, {"name": "ab", "x": 2}])
    assert [columns_of(line) for line in text.splitlines()] == [7, 7, 7]


def test_a_long_list_in_a_row_is_its_number_and_an_object_shows_all_of_it():
    attempts = [{"tier": 3, "name": f"reach {number}"} for number in range(100)]
    lines = table([{"id": "n", "sandbox": {"networks": ["none"], "attempts": attempts}}])[0].splitlines()
    assert lines[1] == "n   networks=none attempts=(100)"
    assert "reach 99" in record({"attempts": attempts})


def test_an_object_is_shown_under_the_names_that_set_takes():
    found = {
        "name": "time",
        "limits": {"sessions": 100, "deep": {"er": None}},
        "args": ["--zone", "a b", ""],
        "created_at": "2026-11-23T02:34:55.123456Z",
        "share": 0.123456,
        "load": {"used_bytes": 157286400, "few_bytes": 1000},
        "enabled": True,
        "env": {},
    }
    assert record(found).splitlines() == [
        "name             time",
        "limits.sessions  100",
        "limits.deep.er   -",
        "args             --zone 'a b' ''",
        "created_at       2026-11-23 02:34:55Z",
        "share            0.123",
        "load.used_bytes  150.0 MiB",
        "load.few_bytes   1000",
        "enabled          true",
        "env              -",
    ]


def test_a_list_of_objects_is_a_table_and_long_texts_have_lines():
    found = {
        "steps": [{"step": "start", "ms": 1.0}, {"step": "initialize", "ms": 22.25}],
        "last_failures": [{"exit": 1, "stderr": ["Traceback " + "x" * 60, "  line two " + "y" * 60]}],
        "told": "one\ntwo\n",
    }
    assert record(found).splitlines() == [
        "steps",
        "  step        ms",
        "  start       1",
        "  initialize  22.25",
        "last_failures",
        "  exit  1",
        "  stderr",
        "    Traceback " + "x" * 60,
        "      line two " + "y" * 60,
        "told",
        "  one",
        "  two",
    ]


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "a\rb", "a\u202eb", "\x9b31m", "a\0b"])
def test_nothing_steers_the_terminal(text):
    shown = record({"name": text, "rows": [{"a": text}], "b": {text: 1}}) + table([{"a": text, text: 1}])[0]
    assert all(line.isprintable() for line in shown.splitlines())
    assert one_line(text).isprintable()


def test_a_value_with_lines_is_one_line_in_a_table():
    assert table([{"a": "x\ny"}])[0].splitlines() == ["a", "x\\ny"]
