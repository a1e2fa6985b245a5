"""CallerAccess: for which entries, of a backend's list and its toolset's, a call counts."""

from typing import Any

import pytest

from app.backends.connections._caller_access import CallerAccess
from app.domain import BackendSpec
from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.errors import RateLimited
from app.limits.caller_limits import CallerLimits
from app.protocol.toolset.allowed import Allowed
from app.protocol.toolset.listing import Place
from app.telemetry.metrics import Metrics

BOB = ("acme", "https://idp.example", "bob")
SPEC = BackendSpec("acme", "all", "")


def entry(*tools: str, per_day: int | None = 2, **more: Any) -> AccessEntry:
    return AccessEntry(Who(everyone=True), tools, limits=CallLimits(calls_per_day=per_day), **more)


def access(*view: Allowed | None, limits: CallerLimits | None = None) -> CallerAccess:
    names = ["red", "blue"][: len(view) - 1]
    return CallerAccess(SPEC, names, view, BOB, limits or CallerLimits(Metrics("test").rate_limited, lambda: 1000.0))


def test_a_call_counts_for_the_members_entry_and_for_the_toolsets():
    own, red = entry("red_*"), entry("r*")
    found = access(Allowed([own]), Allowed([red]), None).allowances("tools", Place(0, "read"), "red_read")
    assert [(each.place, each.entry, each.caller) for each in found] == [
        ("toolsets/all", own, BOB),
        ("backends/red", red, BOB),
    ]


def test_each_list_has_its_own_names():
    view = Allowed([entry("read")]), Allowed([entry("red_read")])
    assert access(*view).allowances("tools", Place(0, "read"), "red_read") == []


def test_it_counts_for_the_first_entry_that_lists_it_though_that_has_no_limit():
    free, limited = entry("read", per_day=None), entry("*")
    one = access(None, Allowed([free, limited]))
    assert one.allowances("tools", Place(0, "read"), "red_read") == []
    assert [each.entry for each in one.allowances("tools", Place(0, "write"), "red_write")] == [limited]


def test_what_is_the_toolsets_own_counts_there_only():
    one = access(Allowed([entry("cook")]), Allowed([entry("cook")]), Allowed([entry("cook")]))
    assert [each.place for each in one.allowances("tools", Place(2, "cook"), "cook")] == ["toolsets/all"]


def test_kinds_are_not_mixed_up():
    listed = entry("x", prompts=("p",), resources=("note://*",))
    one = access(None, Allowed([entry("y"), listed]))
    for kind, name in (("tools", "x"), ("prompts", "p"), ("resources", "note://1")):
        assert len(one.allowances(kind, Place(0, name), name)) == 1  # type: ignore[arg-type]
    assert one.allowances("prompts", Place(0, "x"), "x") == []


def test_what_is_spent_in_one_session_is_missing_in_the_other():
    limits = CallerLimits(Metrics("test").rate_limited, lambda: 1000.0)
    one, other = (access(None, Allowed([entry("*")]), limits=limits) for _ in range(2))
    for each in (one, other):
        each.spend(each.allowances("tools", Place(0, "read"), "red_read"))
    with pytest.raises(RateLimited):
        one.spend(one.allowances("tools", Place(0, "write"), "red_write"))
