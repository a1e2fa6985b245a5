"""What `backends update` says of an answer."""

from argparse import Namespace

import pytest

from app.cli.updating import _lines, _notes

OLD = {"registry": "npm", "name": "notes", "version": "1.0", "lock": "1", "scripts": []}
NEW = {**OLD, "version": "2.0", "lock": "2"}
SAME: dict[str, list[str]] = {"added": [], "removed": [], "changed": []}
FAILURE = {"step": "tools", "reason": "backend_exited", "detail": "exit status 1", "hint": None, "stderr": ["no TOKEN"]}


def said(**members: object) -> tuple[list[str], list[str]]:
    found = {"before": OLD, "after": NEW, "tools": SAME, "withheld": [], "failure": None, "applied": True, **members}
    return list(_lines(found)), list(_notes(Namespace(id="n"), found))


def test_what_changes_is_a_line_each():
    tools = {"added": ["b", "c"], "removed": ["a"], "changed": ["d"]}
    lines, notes = said(tools=tools, withheld=["d"], after={**NEW, "scripts": ["native"]})
    assert lines == [
        "notes: 1.0 -> 2.0", "  scripts of its installation, which were not run: native", "  tool added: b",
        "  tool added: c", "  tool removed: a", "  tool changed: d", "  withheld until somebody approves it: d",
    ]  # fmt: skip
    assert notes == ["updated n: sessions that begin from now on get it, open ones keep what they have"]


@pytest.mark.parametrize(("members", "line", "note"), [
    ({}, "  its tools are the same", "updated n"),
    ({"applied": False}, "  its tools are the same", "this was a dry run"),
    ({"after": OLD, "tools": None, "applied": False}, "notes: 1.0 -> 1.0", "nothing to change"),
    ({"after": {**OLD, "lock": "3"}}, "  the same version, with other versions of what it needs", "updated n"),
    ({"after": {**OLD, "registry": "oci", "lock": "3"}}, "  another image of that name", "updated n"),
    ({"before": None}, "notes: not installed -> 2.0", "updated n"),
    ({"tools": None}, "notes: 1.0 -> 2.0", "is not known"),
    ({"tools": None, "failure": FAILURE, "applied": False}, "notes: 1.0 -> 2.0", "does not work: exit status 1"),
    ({"tools": None, "failure": FAILURE, "applied": False}, "notes: 1.0 -> 2.0", "no TOKEN"),
])  # fmt: skip
def test_each_end_says_what_has_become_of_it(members, line, note):
    lines, notes = said(**members)
    assert line in lines
    assert any(note in each for each in notes)
