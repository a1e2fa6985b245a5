"""What a node says of its sandbox."""

from dataclasses import replace

from app.domain import BackendSpec, Package, ProcessLimits, Sandbox
from app.jail.sandbox.report import of_backend, view_of, why_not_frozen
from app.jail.sandbox.sandboxes import CONTAINED
from app.jail.sandbox.tiers import Tier
from tests.jail.sandbox.test_sandboxes import HELD, report, sandboxes


def test_every_attempt_of_every_probe_is_shown():
    found = sandboxes(report(Tier.NAMESPACES, "none", "files"), report(Tier.KERNEL))
    attempts = view_of("n1", found).attempts
    assert len(attempts) == sum(len(each.attempts) for each in found.reports)
    [done] = [each for each in attempts if not each.was_denied]
    assert (done.tier, done.network, done.name, done.guarantee) == (2, "none", "break files", "files")


def test_each_network_has_its_profile():
    view = view_of("n1", sandboxes(*HELD))
    assert {name: each.tier for name, each in view.networks.items()} == {"none": 2, "web": 2, "host": 2, "allow": 2}
    assert view.networks["host"].missing == {"network": "network is `host`"}
    assert view.networks["web"].name == "namespaces"


def test_a_backend_is_shown_by_its_network_and_its_limits():
    view = view_of("n1", sandboxes(*HELD))
    spec = BackendSpec("acme", "x", "true", sandbox=Sandbox(network="web"))
    assert of_backend(view, spec) == view.networks["web"]
    shown = of_backend(view, replace(spec, limits=ProcessLimits(memory_mb=None)))
    assert (shown.missing, "memory" in shown.enforced) == ({"memory": "the backend has no such limit"}, False)


def test_why_no_process_of_a_backend_can_be_frozen():
    view = replace(view_of("n1", sandboxes(*HELD)), why_not_frozen="no control groups")
    spec = BackendSpec("acme", "x", "true")
    assert why_not_frozen(view, spec) == "no control groups"
    assert why_not_frozen(replace(view, why_not_frozen=""), spec) == ""
    off = replace(spec, sandbox=Sandbox(mode="off"))
    assert why_not_frozen(replace(view, why_not_frozen=""), off).startswith("the sandbox of this backend is off")


def test_of_an_image_nothing_is_said_to_be_enforced():
    view = view_of("n1", sandboxes(*HELD))
    spec = BackendSpec("acme", "x", "docker", package=Package("oci", "x", "latest", "", "a" * 64))
    shown = of_backend(view, spec)
    assert (shown.tier, shown.name, shown.network, shown.enforced) == (-1, "none", "none", ())
    assert set(shown.missing.values()) == {CONTAINED}
    assert why_not_frozen(replace(view, why_not_frozen=""), spec) == "it runs in a container, which is the engine's"
