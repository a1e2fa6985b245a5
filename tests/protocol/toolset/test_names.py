"""Names that are shown: what clients accept, the same each time, and never two for one."""

import pytest

from app.domain import Selection
from app.domain.resources.backends import MAX_TOOL_NAME, is_accepted
from app.protocol.search.work import finished
from app.protocol.toolset._names import accepted, shown_prompts
from app.protocol.toolset.member_tools import MemberTools
from tests.protocol.toolset.offers import offer, tool


@pytest.mark.parametrize("name", ["a", "get-time", "A_1", "x" * 64])
def test_a_name_that_clients_accept_stays_as_it_is(name):
    assert accepted(name) == name


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "ü", "x" * 65, "a b", "\ud800"])
def test_every_other_name_becomes_one_that_they_accept(name):
    assert is_accepted(accepted(name))
    assert accepted(name) == accepted(name)


def test_long_names_that_differ_at_their_end_stay_different():
    shown = {accepted("x" * 80 + end) for end in "abc"}
    assert len(shown) == 3
    assert all(len(name) == MAX_TOOL_NAME for name in shown)


def shown_tools(selection, prefix, names):
    made = MemberTools.making(offer("m", tools=[tool(name) for name in names]), prefix, selection)
    return {each.shown: each.own for each in finished(made).shown}


def test_a_selection_means_the_members_own_names():
    selection = Selection(include=("get_*", "list"), exclude=("*_secret",), rename={"list": "show", "get_a": "a"})
    tools = ["get_a", "get_secret", "list", "put", "GET_b"]
    assert shown_tools(selection, "x_", tools) == {"x_a": "get_a", "x_show": "list"}
    assert shown_tools(selection, None, tools) == {"a": "get_a", "show": "list"}


def test_without_a_prefix_that_is_none_names_are_left_alone():
    assert shown_tools(Selection(), None, ["a.b"]) == {"a.b": "a.b"}
    assert shown_tools(Selection(), "", ["a.b"]) == {"a_b": "a.b"}
    assert shown_prompts("p-", ["a", "b"]) == {"p-a": "a", "p-b": "b"}


def test_of_two_tools_with_one_name_the_first_is_shown():
    assert shown_tools(Selection(rename={"b": "a"}), "", ["a", "b"]) == {"a": "a"}
    assert shown_prompts("", ["a.b", "a/b"]) == {"a_b": "a.b"}
