"""Allowed: what the entries of a list that name a caller list together."""

from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.protocol.search.work import finished
from app.protocol.toolset.allowed import Allowed

ALL = Who(everyone=True)


def test_it_lists_what_one_of_its_entries_lists_of_that_kind():
    allowed = Allowed([AccessEntry(ALL, ("read_*", "s?m")), AccessEntry(ALL, prompts=("p",), resources=("note://*",))])
    assert [allowed.lists("tools", each) for each in ("read_x", "sum", "read", "write", "p", "")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
    assert (allowed.lists("prompts", "p"), allowed.lists("prompts", "sum")) == (True, False)
    assert (allowed.lists("resources", "note://a/b"), allowed.lists("resources", "notes://a")) == (True, False)


def test_the_case_of_a_name_matters():
    assert not Allowed([AccessEntry(ALL, ("read",))]).lists("tools", "READ")


def test_nothing_is_listed_for_whom_no_entry_names():
    nobody = Allowed([])
    assert not any(nobody.lists(kind, "x") for kind in ("tools", "prompts", "resources"))
    assert nobody.entry("tools", "x") is None
    assert not nobody.has_limits


def test_a_call_counts_for_the_first_entry_that_lists_it():
    allowed = Allowed([AccessEntry(ALL, prompts=("*",)), AccessEntry(ALL, ("b*",)), AccessEntry(ALL, ("*",))])
    assert [allowed.entry("tools", each) for each in ("big", "small", "big")] == [1, 2, 1]
    assert allowed.entry("prompts", "big") == 0
    assert allowed.entry("resources", "big") is None


def test_it_is_equal_to_what_lists_the_same_however_often():
    one = Allowed([AccessEntry(Who(group="a"), ("x",)), AccessEntry(ALL, ("y",))])
    same = Allowed([AccessEntry(ALL, ("x", "y"), limits=CallLimits(1))])
    other = Allowed([AccessEntry(ALL, prompts=("x", "y"))])
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != Allowed([])
    assert one != "x"
    assert (one.has_limits, same.has_limits) == (False, True)


def test_many_patterns_are_compared_in_pieces():
    allowed = Allowed([AccessEntry(ALL, tuple(f"*a{number}*b{number}*c" for number in range(100)))] * 5)
    pieces = sum(1 for _ in allowed.listing("tools", "a" * 500))
    assert pieces > 1
    assert not finished(allowed.listing("tools", "a" * 500))
