"""Patterns of names: they mean what `fnmatchcase` means, no regular expression is compiled, and no step is long."""

import re
import warnings
from fnmatch import fnmatchcase, translate
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain import Selection
from app.protocol.search.patterns import Patterns
from app.protocol.search.work import finished
from app.protocol.toolset.member_tools import Choice, MemberTools
from tests.protocol.toolset.offers import offer, tool


def is_same(name, pattern):
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # `[[` in a regular expression
        return Patterns.of([pattern]).match(name) == fnmatchcase(name, pattern)


PIECES = st.sampled_from([*"*?[]!-^\\abcü\n", "&&", "~~", "||", "[a-c]", "[!b]"])


@given(st.text("abcü!-]^\\&[\n", max_size=12), st.lists(PIECES, max_size=14).map("".join))
@example("-", "[b-a!-d]")
@example("x", "[b-a!-d]")
@example("d", "[b-a!-d]")
@example("a", "[b-a]")
@example("a", "[!b-a]")
def test_a_pattern_means_what_it_means_to_fnmatch(name, pattern):
    assert is_same(name, pattern)


def test_every_short_pattern_means_what_it_means_to_fnmatch():
    names = ["".join(each) for length in range(4) for each in product("ab", repeat=length)]
    for length in range(6):
        for each in product("*?ab", repeat=length):
            pattern = "".join(each)
            match, known = re.compile(translate(pattern)).match, Patterns.of([pattern])
            assert [known.match(name) for name in names] == [match(name) is not None for name in names], pattern


def test_every_short_set_means_what_it_means_to_fnmatch():
    for length in range(6):
        for each in product("!-]ac", repeat=length):
            assert all(is_same(name, f"[{''.join(each)}]") for name in "!-]abc"), each


@pytest.mark.parametrize("alternate", ["a*b*c*d*", "a?b*[c-d]*"])
def test_a_thousand_patterns_are_read_and_matched_in_small_steps(monkeypatch, alternate):
    compiled = []
    monkeypatch.setattr(re, "compile", lambda *given: compiled.append(given))
    patterns = tuple(f"*{alternate * 25}{number}" for number in range(500))
    tools = [tool(f"{'abcd' * 40}{number}x") for number in range(64)]
    work = MemberTools.making(offer("m", tools=tools), None, Selection((*patterns, "*x"), patterns))
    steps = sum(1 for _ in work)
    assert not compiled
    assert steps >= 64 * 1000 / 16


def test_patterns_that_are_matched_together_keep_apart():
    known = Patterns.of(["a?", "?b*", "[c]", "x*?"] * 5)
    names = ["".join(each) for length in range(4) for each in product("abcx", repeat=length)]
    expected = [name for name in names if any(fnmatchcase(name, each) for each in ("a?", "?b*", "[c]", "x*?"))]
    assert [name for name in names if known.match(name)] == expected


def test_a_long_name_is_matched_in_small_steps():
    name = "ab" * 50_000
    for pattern in ("*a?*c", "[!c]*?c"):
        assert sum(1 for _ in Patterns.of([pattern]).matching(name)) >= len(name) / 16
    assert sum(1 for _ in Patterns.of(["*a*c"] * 16).matching(name)) == 16


def test_one_tool_alone():
    choice = finished(Choice.reading(Selection(include=("get_*",), exclude=("*_secret",))))
    assert [name for name in ("get_a", "get_secret", "put") if finished(choice.showing(name))] == ["get_a"]
    assert finished(finished(Choice.reading(Selection())).showing("a"))
    assert finished(Patterns.of([]).matching("a")) is False
