"""What a node says of its sandbox: sent between nodes, and shown by the REST API."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from app.domain import BackendSpec, Network, Sandbox
from app.domain.resources.backends import AllowList, NetworkMode
from app.jail.sandbox.sandboxes import CONTAINED, GUARANTEES, Platform, Sandboxes, effective
from app.jail.sandbox.tiers import Profile, Tier


@dataclass(frozen=True, slots=True)
class ProfileView:
    """How processes are confined on a node."""

    tier: Annotated[int, "0 to 3 (docs/security.md); -1: not at all."]
    name: str
    network: str
    enforced: Annotated[Sequence[str], "The guarantees that held when a probe tried to break them."]
    missing: Annotated[Mapping[str, str], "The others, with the reason."] = field(default_factory=dict)
    weaker: Annotated[Sequence[str], "What is weaker than its name says."] = ()

    @classmethod
    def of(cls, profile: Profile) -> "ProfileView":
        missing = {str(name): why for name, why in profile.missing.items()}
        enforced = sorted(profile.enforced)
        return cls(profile.tier.value, profile.tier.name.lower(), profile.network, enforced, missing, profile.weaker)


@dataclass(frozen=True, slots=True)
class AttemptView:
    """What a probe tried inside a sandbox when the node started."""

    tier: int
    network: str
    name: str
    guarantee: str
    was_denied: bool
    detail: str


@dataclass(frozen=True, slots=True)
class SandboxView:
    """The sandbox of one node. `networks`: how a backend with the default limits is confined, by its `network`. `rule`:
    the node's setting SANDBOX. `why_not_frozen`: why idle sessions of servers with state keep running there; empty if
    their processes can stand still."""

    node: str
    networks: Mapping[Network, ProfileView]
    attempts: Sequence[AttemptView] = ()
    rule: Platform = "auto"
    why_not_frozen: str = ""


def view_of(node: str, sandboxes: Sandboxes) -> SandboxView:
    """What this node says of itself."""
    kinds: tuple[NetworkMode | AllowList, ...] = ("none", "web", "host", AllowList())
    found = [Sandbox(network=each) for each in kinds]
    profiles = {each.network_kind: ProfileView.of(sandboxes.profile(_backend(each))) for each in found}
    attempts = [
        AttemptView(report.tier.value, report.network, each.name, each.guarantee, each.was_denied, each.detail)
        for report in sandboxes.reports
        for each in report.attempts
    ]
    return SandboxView(node, profiles, attempts, sandboxes.rule, sandboxes.machine.cgroups.why_not_frozen)


def _backend(sandbox: Sandbox) -> BackendSpec:
    return BackendSpec("", "", "", sandbox=sandbox)


def of_backend(view: SandboxView, spec: BackendSpec) -> ProfileView:
    """How this backend is confined on the node of the view."""
    if spec.is_image:
        return ProfileView(-1, "none", spec.sandbox.network_kind, (), dict.fromkeys(GUARANTEES, CONTAINED))
    sandbox = effective(spec.sandbox, view.rule, tenant_exempt=spec.sandbox_exempt)
    if sandbox.mode == "off":
        return ProfileView(-1, "none", "host", (), dict.fromkeys(GUARANTEES, "the sandbox of this backend is off"))
    profile = view.networks.get(sandbox.network_kind, view.networks["host"])  # of a node that does not know it
    unlimited = {"memory": spec.limits.memory_mb, "pids": spec.limits.pids}
    missing = {name: "the backend has no such limit" for name, limit in unlimited.items() if limit is None}
    enforced = [each for each in profile.enforced if each not in missing]
    return ProfileView(
        profile.tier, profile.name, profile.network, enforced, {**profile.missing, **missing}, profile.weaker
    )


def paths_not_here(sandbox: Sandbox) -> list[str]:
    """What `read` and `write` name and this node does not have, in words. Reads the disk: for a thread."""
    declared = [("read", each) for each in sandbox.read] + [("write", each) for each in sandbox.write]
    return [
        f"sandbox.{where}: there is no {path!r} on this node: no process starts here until there is"
        for where, path in declared
        if not os.path.exists(path)
    ]


def why_not_frozen(view: SandboxView, spec: BackendSpec) -> str:
    """Why no process of this backend can be frozen on the node of the view; empty if it can be."""
    if spec.is_image:
        return "it runs in a container, which is the engine's"
    if of_backend(view, spec).tier < Tier.BASE:
        return "the sandbox of this backend is off: its processes have no control group"
    return view.why_not_frozen
