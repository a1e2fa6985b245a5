"""How a difference of two definitions looks on a terminal."""

from app.cli.tools import difference_lines


def test_a_difference_shows_what_was_and_what_is():
    row = {
        "tool": "add",
        "status": "changed",
        "reasons": ["address", "growth"],
        "difference": [
            {"path": "/inputSchema/type", "before": None, "after": "object", "hunks": []},
            {
                "path": "/description",
                "before": "x",
                "after": "y",
                "hunks": [
                    {"kind": "same", "text": "Adds a note"},
                    {"kind": "removed", "text": "."},
                    {"kind": "added", "text": " to\nhttp://evil\x1b[2J."},
                ],
            },
        ],
    }
    assert list(difference_lines(row, is_coloured=False)) == [
        "add: changed (address, growth)",
        "  /inputSchema/type",
        "    + object",
        "  /description",
        "      Adds a note",
        "    - .",
        "    +  to",
        "    + http://evil\\x1b[2J.",
    ]


def test_it_is_coloured_on_a_terminal_and_cannot_bring_colours_of_its_own():
    row = {"tool": "\x1b[31m", "status": "changed", "difference": [{"path": "/a", "before": "b", "after": None}]}
    first, _, last = difference_lines(row, is_coloured=True)
    assert first == "\\x1b[31m: changed"
    assert last == "\x1b[31m    - b\x1b[0m"
