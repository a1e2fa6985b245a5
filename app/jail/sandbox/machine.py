"""What this node can confine processes with, found out once at its start."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from app.domain import Guarantee
from app.jail.sandbox import available
from app.jail.sandbox._bubblewrap import Bubblewrap, find_bubblewrap, find_setpriv
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.tiers import Tier
from app.jail.sandbox.uids import OF_PROBES
from app.jail.spawner import landlock

UidOf = Callable[[str], int]
_ABI_OF_PORTS, _ABI_OF_SCOPES = 4, 6


@dataclass(frozen=True, slots=True)
class Machine:
    """`without` says in words why a tier cannot be had. `cgroups` is closed by whoever opened it. `uid_of` finds the
    user of a tenant; it may block."""

    is_root: bool
    landlock_abi: int
    bubblewrap: Bubblewrap | None
    cgroups: CgroupRoots
    uid_of: UidOf | None = None
    without: dict[Tier, str] = field(default_factory=dict)

    def for_probes(self) -> "Machine":
        """The same, without asking the table of users."""
        return replace(self, uid_of=None if self.uid_of is None else lambda name: OF_PROBES)

    @property
    def tiers(self) -> list[Tier]:
        """Those that may be tried, the highest first."""
        return [tier for tier in sorted(Tier, reverse=True) if tier is not Tier.NONE and tier not in self.without]

    @property
    def has_ports(self) -> bool:
        """Whether Landlock can restrict TCP ports."""
        return self.landlock_abi >= _ABI_OF_PORTS

    @property
    def has_scopes(self) -> bool:
        """Whether Landlock can keep signals and abstract sockets inside."""
        return self.landlock_abi >= _ABI_OF_SCOPES

    def limits(self, guarantee: Guarantee) -> str | None:
        """Why the kernel does not enforce this limit here; None if it does."""
        return (
            None if guarantee in self.cgroups.directories else self.cgroups.missing.get(guarantee, "no control groups")
        )


def examine(cgroups: CgroupRoots, uid_of: UidOf | None) -> Machine:
    """Blocks for some milliseconds: it runs programs."""
    without: dict[Tier, str] = {}
    is_root, abi = os.geteuid() == 0, landlock.abi()
    missing = [layer for layer in (available.landlock(), available.seccomp()) if not layer.is_available]
    if missing:
        why = "; ".join(f"{layer.name}: {layer.detail}" for layer in missing)
        without = {tier: why for tier in Tier if tier >= Tier.KERNEL}
    bubblewrap: Bubblewrap | None = None
    try:
        bubblewrap = find_bubblewrap()
    except FileNotFoundError as error:
        without.setdefault(Tier.NAMESPACES, str(error))
        without.setdefault(Tier.ASSISTED, str(error))
    if not is_root or uid_of is None:
        without.setdefault(
            Tier.ASSISTED, "the gateway does not run as root: it cannot give each tenant a user of its own"
        )
    try:
        find_setpriv()
    except FileNotFoundError as error:
        without.setdefault(Tier.ASSISTED, str(error))
    return Machine(is_root, abi, bubblewrap, cgroups, uid_of, without)
