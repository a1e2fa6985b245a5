"""What this machine can confine processes with."""

import pytest

from app.jail.sandbox import available, machine
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.machine import examine
from app.jail.sandbox.tiers import Tier
from app.jail.sandbox.uids import OF_PROBES

NO_GROUPS = CgroupRoots({}, {"memory": "read-only"})


def missing(*_):
    raise FileNotFoundError("there is none")


def test_without_a_table_of_users_no_tenant_gets_one():
    assert "does not run as root" in examine(NO_GROUPS, None).without[Tier.ASSISTED]


def test_without_bubblewrap_there_are_no_namespaces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "find_bubblewrap", missing)
    found = examine(NO_GROUPS, None)
    assert found.without[Tier.NAMESPACES] == "there is none"
    assert Tier.ASSISTED in found.without


def test_without_seccomp_there_is_only_the_base(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(available, "seccomp", lambda: available.Layer("seccomp", False, "not in this kernel"))
    found = examine(NO_GROUPS, None)
    assert found.tiers == [Tier.BASE]
    assert found.without[Tier.NAMESPACES] == "seccomp: not in this kernel"


def test_probes_do_not_ask_the_table_of_users():
    found = examine(NO_GROUPS, lambda name: 12345)
    uid_of = found.for_probes().uid_of
    assert uid_of is not None
    assert uid_of("acme") == OF_PROBES
    assert examine(NO_GROUPS, None).for_probes().uid_of is None


def test_a_limit_has_its_reason():
    found = examine(NO_GROUPS, None)
    assert (found.limits("memory"), found.limits("pids")) == ("read-only", "no control groups")
    assert examine(CgroupRoots({"memory": "/x"}, {}), None).limits("memory") is None
