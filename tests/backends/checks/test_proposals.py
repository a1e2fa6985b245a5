"""What a check proposes, as one patch, and which larger limit."""

from dataclasses import replace

import pytest

from app.backends.checks._missed import Missed
from app.backends.checks.proposals import member_of, missed_limit, patch_of
from app.domain import BackendSpec, ProcessLimits, Sandbox

SPEC = BackendSpec("acme", "notes", "notes", sandbox=Sandbox(read=("/srv/a",)))


def missed(proposal, kind="file"):
    return Missed(kind, "it", None, 1, proposal)


def test_a_patch_has_what_is_there_and_what_was_missed_as_lists_are_replaced():
    found = [missed({"read": ["/srv/b"]}), missed({"write": ["/srv/c"]}), missed({"read": ["/srv/a"]}), missed(None)]
    assert patch_of(SPEC, found) == {"sandbox": {"read": ["/srv/a", "/srv/b"], "write": ["/srv/c"]}}


def test_a_patch_that_changes_nothing_is_empty():
    assert patch_of(SPEC, [missed({"read": ["/srv/a"]}), missed({"network": "none"})]) == {}
    assert patch_of(SPEC, []) == {}


def test_limits_and_the_sandbox_are_one_patch():
    found = [missed({"pids": 128}, "limit"), missed({"network": "web"}, "address")]
    assert patch_of(SPEC, found) == {"sandbox": {"network": "web"}, "limits": {"pids": 128}}
    assert [member_of(each) for each in found] == ["limits", "sandbox"]


@pytest.mark.parametrize("one_after_another", [False, True])
def test_the_web_and_a_list_of_addresses_are_both_kept(one_after_another):
    proposals = [{"network": {"allow": ["a:1"]}}, {"network": "web"}, {"network": {"allow": ["b:2"]}}]
    found = [missed(each, "address") for each in (proposals[::-1] if one_after_another else proposals)]
    network = patch_of(SPEC, found)["sandbox"]["network"]
    assert (sorted(network["allow"]), network["web"]) == (["a:1", "b:2"], True)


def test_what_opens_everything_is_never_in_a_patch():
    assert patch_of(SPEC, [missed({"network": "host"}, "address"), missed({"read": ["/srv/b"]})]) == {
        "sandbox": {"read": ["/srv/a", "/srv/b"]}
    }


@pytest.mark.parametrize(
    ("limit", "what", "proposal"),
    [
        ("memory", "512 MiB of memory", {"memory_mb": 1024}),
        ("pids", "64 processes and threads", {"pids": 128}),
        ("files", "1024 open files", {"files": 2048}),
        ("disk", "256 MiB of files", {"disk_mb": 512}),
        ("cpu", "0.5 cores", {"cpu": 1.0}),
    ],
)
def test_of_a_limit_that_was_reached_twice_as_much_is_proposed(limit, what, proposal):
    limits = ProcessLimits(memory_mb=512, pids=64, cpu=0.5, files=1024, disk_mb=256)
    assert missed_limit(limit, replace(SPEC, limits=limits)) == Missed("limit", what, None, 1, proposal)


def test_a_program_that_takes_all_it_gets_is_not_given_more_and_more():
    limits, proposed = ProcessLimits(pids=64), []
    while (found := missed_limit("pids", replace(SPEC, limits=limits))) and found.proposal:
        limits = replace(limits, **found.proposal)
        proposed.append(limits.pids)
    assert proposed == [128, 256, 512, 1024, 2048]
    assert found is not None
    assert "limits.pids" in str(found.note)


def test_what_no_larger_limit_of_the_backend_helps_has_no_proposal():
    of_tenant = missed_limit("tenant_memory", SPEC)
    assert of_tenant is not None
    assert (of_tenant.proposal, "of the tenant" in str(of_tenant.note)) == (None, True)
    assert missed_limit("", SPEC) is None
    assert missed_limit("output", SPEC) is None
    assert missed_limit("pids", replace(SPEC, limits=ProcessLimits(pids=None))) is None
