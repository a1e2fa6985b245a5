"""Which tools a text names, however it spells them."""

import pytest

from app.protocol.approval import ToolNames
from app.protocol.approval._names import MAX_NAMES

NAMES = ToolNames(["read_file", "sendMessage", "search", "jira.create-issue", "ls"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Works like read_file.", {"read_file"}),
        ("Works like readFile or READ-FILE.", {"read_file"}),
        ("Works like the read file tool.", {"read_file"}),
        ("See the tool send message.", {"sendMessage"}),
        ("Works like r\u0435ad_file.", {"read_file"}),
        ("Works like jira.create_issue().", {"jira.create-issue"}),
        ("Calls `search` first.", {"search"}),
        ("Calls search(query).", {"search"}),
        ("The search tool is better.", {"search"}),
        ("A full-text search of all issues.", set()),
        ("Can read file contents.", set()),
        ("Uses ls.", set()),
        ("Mine is own_tool.", set()),
    ],
)
def test_tools_that_a_text_names(text: str, named: set[str]) -> None:
    assert NAMES.mentioned(text, "own_tool") == named


def test_a_tool_may_name_itself() -> None:
    assert NAMES.mentioned("read_file reads.", "read_file") == set()
    assert NAMES.imitated("Read file with sizes", "read_file_with_sizes") == set()


def test_titles_that_look_like_a_tool() -> None:
    assert NAMES.imitated("Read File (official)", "own") == {"read_file"}
    assert NAMES.imitated("R\u0435\u0430d file", "own") == {"read_file"}
    assert NAMES.imitated("Reads files", "own") == set()


def test_names_are_bounded() -> None:
    assert repr(ToolNames(f"tool_{number}" for number in range(MAX_NAMES + 5))) == f"<ToolNames [{MAX_NAMES}]>"
