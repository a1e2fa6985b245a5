"""Access: what entries may name, and how they are written and read."""

from dataclasses import replace
from typing import Any

import pytest

from app.domain import BackendSpec, Member, Toolset
from app.domain.resources import access, backends, toolsets
from app.domain.resources.access import AccessEntry, CallLimits, Who, fits
from app.domain.resources.fields import Unfit
from app.domain.resources.members import plain, reader_of

ANALYSTS = AccessEntry(Who(group="analysts"), ("read_*",))


@pytest.mark.parametrize("who", [
    Who(), Who(group="a", person="b"), Who(group="a", everyone=True), Who(key="a", client="b"),
    Who(person="a", key="b"), Who(client="a", everyone=True), Who(issuer="https://idp.example"),
])  # fmt: skip
def test_an_entry_names_exactly_one(who):
    with pytest.raises(Unfit) as caught:
        fits([ANALYSTS, AccessEntry(who, ("*",))])
    assert caught.value.values["number"] == 2


@pytest.mark.parametrize("who", [
    Who(key="a", issuer="https://idp.example"), Who(client="a", issuer="https://idp.example"),
    Who(everyone=True, issuer="https://idp.example"),
])  # fmt: skip
def test_only_a_group_or_a_person_is_of_an_issuer(who):
    with pytest.raises(Unfit, match="issuer"):
        fits([AccessEntry(who, ("*",))])


@pytest.mark.parametrize("who", [
    Who(group="a"), Who(group="a", issuer="https://idp.example"), Who(person="a"), Who(person="a", issuer="x"),
    Who(key="a"), Who(client="a"), Who(everyone=True),
])  # fmt: skip
def test_each_of_these_may_be_named(who):
    fits([AccessEntry(who, prompts=("*",)), AccessEntry(who, resources=("*",))])


def test_an_entry_allows_something():
    with pytest.raises(Unfit, match="allows nothing"):
        fits([AccessEntry(Who(everyone=True), limits=CallLimits(1))])


def test_all_entries_together_have_so_many_patterns(monkeypatch):
    monkeypatch.setattr(access, "MAX_ACCESS_PATTERNS", 4)
    one = AccessEntry(Who(everyone=True), ("a", "b"), ("c",), ("d",))
    fits([one])
    with pytest.raises(Unfit):
        fits([one, AccessEntry(Who(everyone=True), ("a",))])


@pytest.mark.parametrize("rules", [backends.RULES, toolsets.RULES], ids=["backend", "toolset"])
def test_backends_and_toolsets_have_this_rule(rules):
    toolset = Toolset(members=(Member("m", ""),)) if rules is toolsets.RULES else None
    spec = BackendSpec("acme", "echo", "" if toolset else "/bin/echo", toolset=toolset, access=(ANALYSTS,))
    for rule in rules:
        rule(spec)
    with pytest.raises(Unfit, match="entry 1"):
        backends.access_fits(replace(spec, access=(AccessEntry(Who(), ("*",)),)))
    assert backends.access_fits in rules


def test_a_backend_with_a_list_shows_each_caller_something_else():
    assert BackendSpec("acme", "echo", "/bin/echo", access=(ANALYSTS,)).is_toolset
    assert not BackendSpec("acme", "echo", "/bin/echo").is_toolset


@pytest.mark.parametrize("entry", [
    ANALYSTS,
    AccessEntry(Who(person="bob", issuer="https://idp.example"), (), ("p",), ("note://*",), CallLimits(60, 1000)),
    AccessEntry(Who(everyone=True), ("*",), limits=CallLimits(None, 5)),
])  # fmt: skip
def test_what_is_stored_is_read_again(entry):
    assert reader_of(AccessEntry)(plain(entry)) == entry


@pytest.mark.parametrize(("who", "words"), [
    (Who(group="a"), "group a"), (Who(person="a", issuer="https://idp.example"), "person a of https://idp.example"),
    (Who(key="a"), "key a"), (Who(client="a"), "client a"), (Who(everyone=True), "everyone"),
])  # fmt: skip
def test_whom_it_names_in_words(who, words):
    assert str(who) == words


def test_calls_are_counted_where_there_is_a_limit():
    limits: list[tuple[Any, bool]] = [(CallLimits(), False), (CallLimits(1), True), (CallLimits(None, 1), True)]
    assert [AccessEntry(limits=each).is_limited for each, _ in limits] == [wanted for _, wanted in limits]
