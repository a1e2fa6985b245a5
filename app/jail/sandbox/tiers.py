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


_OF_BASE = frozenset({"rights", "descriptors", "file size"})
_OF_KERNEL = _OF_BASE | {"files", "network", "processes"}

# What a tier lacks although the guarantee that it belongs to is enforced.
WEAKER: Mapping[str, str] = {
    "arguments": "names and arguments of other processes can be seen",
    "metadata": "modes and times of files outside that belong to the same user can be changed",
    "disk": "`disk_mb` is that of each file, not of all files together",
}
PORTS_ONLY: Mapping[Network, str] = {
    "web": "`web` is by ports: private addresses on 80 and 443 can be reached, and any address with datagrams",
    "allow": "`allow` is by ports: every address can be reached on those that it names, and any address with datagrams",
}
# What a process can do about the network is the same with each of these: what differs is what the node passes on.
PROBED_AS: Mapping[Network, Network] = {"allow": "web"}

# What a probe tries by name of what forbids it: guarantees, and parts of them. Memory and pids are enforced by control
# groups, in any tier.
PROMISES: Mapping[Tier, frozenset[str]] = {
    Tier.NONE: frozenset(),
    Tier.BASE: _OF_BASE,
    Tier.KERNEL: _OF_KERNEL,
    Tier.NAMESPACES: _OF_KERNEL | WEAKER.keys(),
    Tier.ASSISTED: _OF_KERNEL | WEAKER.keys(),
}


def promised(tier: Tier, network: Network) -> frozenset[str]:
    """What a process in this tier is kept from with this network."""
    is_open = network == "host" or (network in PORTS_ONLY and tier < Tier.NAMESPACES)
    return PROMISES[tier] - {"network"} if is_open else PROMISES[tier]


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
