"""The tiers of the sandbox, and what each is known to enforce on this node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from app.domain import Guarantee, Network


class Tier(IntEnum):
    """Each includes what those below it do."""

    NONE = -1  # `mode: off`
    BASE = 0  # resource limits, clean environment, no new privileges, closed descriptors
    KERNEL = 1  # Landlock and seccomp
    NAMESPACES = 2  # bubblewrap: own pid, mount, net and ipc namespaces
    ASSISTED = 3  # a uid for each tenant, cgroup limits


# Memory and pids are enforced by control groups, in any tier.
PROMISES: Mapping[Tier, frozenset[Guarantee]] = {
    tier: frozenset({"files", "network", "processes"}) if tier >= Tier.KERNEL else frozenset[Guarantee]()
    for tier in Tier
}


@dataclass(frozen=True, slots=True)
class Profile:
    """How the processes of one backend are confined on this node.

    `missing` says why a guarantee is not `enforced`. `weaker`: forms that are weaker than their name says, such as
    `web` by ports only.
    """

    tier: Tier
    network: Network
    enforced: frozenset[Guarantee] = frozenset()
    missing: Mapping[Guarantee, str] = field(default_factory=dict)
    weaker: tuple[str, ...] = ()
