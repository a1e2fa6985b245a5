"""LostInspections: writes to the audit trail that an inspection has ended, where its node could not: it has died."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

from app.cluster.periodic import repeat
from app.storage.audit import AuditEntry, AuditLog
from app.storage.audit_act import Act
from app.this_node.inspection_views import ENDS_OF_PARTS, OF_MANY, InspectionView
from app.this_node.listing import Gathered

EVERY_S = 10.0
MIN_AGE = timedelta(seconds=20)  # one that is younger may still be on its way to its node
MAX_AGE = timedelta(days=7)
MOST = 50  # at a time
OPENED, ENDED = "inspection.open", "inspection.close"

log = logging.getLogger(__name__)


class LostInspections:
    """Used by every node; the one with the first id acts. `known` asks all nodes, also those of which nothing is heard
    through Redis, for the inspections of a tenant, open or not."""

    def __init__(
        self,
        node: str,
        others: Callable[[], Collection[str]],
        audit: AuditLog,
        known: Callable[[str], Awaitable[Gathered[InspectionView]]],
    ) -> None:
        self._node, self._others, self._audit, self._known = node, others, audit, known
        self._after = 0  # the last entry of the last look, where that was full

    async def run(self) -> None:
        await repeat(self.look, EVERY_S, "Could not look for inspections whose nodes have died; will retry")

    async def look(self) -> None:
        """Raises StorageUnavailable."""
        if any(each < self._node for each in self._others()):
            return
        now, after = datetime.now(UTC), self._after
        unended = await self._unended(now, after)
        # Those that are open still, or whose nodes are silent, must not keep it from the others.
        self._after = unended[-1].id if len(unended) == MOST else 0
        for tenant in {each.act.tenant for each in unended}:
            found = await self._known(tenant)
            if found.silent:
                continue  # it may be theirs
            known = {f"inspections/{each.about.id}" for each in found.rows}
            lost = [each for each in unended if each.act.tenant == tenant and each.act.target not in known]
            # Of one whose node has just stopped the end may have been written since.
            still = {each.id for each in await self._unended(now, after)} if lost else set[int]()
            for entry in lost:
                if entry.id in still:
                    await self._write(entry)

    async def _unended(self, now: datetime, after: int) -> Sequence[AuditEntry]:
        return await self._audit.unanswered(
            OPENED, ENDED, now - MAX_AGE, now - MIN_AGE, MOST, after, of_many=OF_MANY, in_part=ENDS_OF_PARTS
        )

    async def _write(self, opened: AuditEntry) -> None:
        act = opened.act
        log.warning("The last node with a part of %s of %s has ended without saying so", act.target, act.tenant)
        detail = "node_lost; no node has a part of it any more, and the last one has not said so"
        await self._audit.append(Act(act.tenant, act.actor, ENDED, act.target, datetime.now(UTC), "", detail))
