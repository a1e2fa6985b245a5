"""InspectionMemory: what the inspections of a node may keep together, and who drops something where that is too much.

1. An inspection may have an eighth: above that it drops its own oldest messages. 2. A tenant may have half: above that
the largest of its inspections does. 3. Where all is used up, the largest one of the tenant that has the most does: so
nobody who has less than an equal share loses anything, and a newcomer gets one.
"""

from collections.abc import Callable
from typing import Protocol

OF_TENANT, OF_INSPECTION = 2, 8  # parts of the memory


class Holder(Protocol):
    """An inspection."""

    @property
    def tenant(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    def drop_oldest(self) -> int:
        """Returns the bytes by which it has shrunk; 0 if it has nothing."""


class InspectionMemory:
    """`on_dropped` is called with how many messages could not be kept, or not any longer."""

    def __init__(self, max_bytes: int, on_dropped: Callable[[int], None]) -> None:
        self.max_bytes, self._on_dropped = max_bytes, on_dropped
        self.bytes = 0
        self._bytes_of: dict[str, int] = {}
        self._holders: dict[str, dict[int, Holder]] = {}  # by tenant; those that may have something

    def take(self, holder: Holder, size: int) -> bool:
        """Whether it may keep so many bytes more, which are counted from now on; makes others drop something if it has
        to. What does not fit into the share of one inspection makes nobody drop anything."""
        if size > self.max_bytes // OF_INSPECTION:
            self._on_dropped(1)
            return False
        dropped = 0
        while (loser := self._must_drop(holder, size)) is not None:
            self._count(loser.tenant, -loser.drop_oldest())
            dropped += 1
        if dropped:
            self._on_dropped(dropped)
        self._holders.setdefault(holder.tenant, {})[id(holder)] = holder
        self._count(holder.tenant, size)
        return True

    def freed(self, holder: Holder, size: int) -> None:
        """It has removed all that it had."""
        self._count(holder.tenant, -size)
        holders = self._holders.get(holder.tenant, {})
        holders.pop(id(holder), None)
        if not holders:
            self._holders.pop(holder.tenant, None)
            self._bytes_of.pop(holder.tenant, None)

    def _count(self, tenant: str, size: int) -> None:
        self.bytes += size
        self._bytes_of[tenant] = self._bytes_of.get(tenant, 0) + size

    def _must_drop(self, holder: Holder, size: int) -> Holder | None:
        """Whose oldest message has to go; None where so many bytes are free. Whoever it is has some: more than the
        newcomer, who may have none."""
        if holder.bytes + size > self.max_bytes // OF_INSPECTION:
            return holder
        tenant = holder.tenant
        with_it = self._bytes_of.get(tenant, 0) + size
        if with_it > self.max_bytes // OF_TENANT:
            return self._largest(tenant)
        if self.bytes + size <= self.max_bytes:
            return None
        most = max(self._bytes_of, key=lambda each: self._bytes_of[each])
        return self._largest(tenant if with_it >= self._bytes_of[most] and self._bytes_of.get(tenant) else most)

    def _largest(self, tenant: str) -> Holder:
        return max(self._holders[tenant].values(), key=lambda each: each.bytes)
