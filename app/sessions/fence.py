"""Fence: notices that this node stood still for so long that another may own its sessions by now. Pure."""

GAP_S = 3.0  # a lease runs 5 s from the last beat, and beats are up to a second apart


class Fence:
    """Shared by all sessions of a node. Open while `tick` is called at least every GAP_S."""

    __slots__ = ("ticked_at",)

    def __init__(self, now: float) -> None:
        self.ticked_at = now

    def is_closed(self, now: float) -> bool:
        """Whether nothing may be accepted or delivered before `open`."""
        return now - self.ticked_at > GAP_S

    def tick(self, now: float) -> bool:
        """The node runs; False where it has stood still, and must prove first what it owns."""
        if self.is_closed(now):
            return False
        self.ticked_at = now
        return True

    def open(self, now: float) -> None:
        """What the node owns has been proved, or cannot be."""
        self.ticked_at = now
