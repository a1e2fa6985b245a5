"""Changes: one log of changes, the audit trail, which every node applies in the order of its commits.

A row is written in the transaction of its change and says only where to look; the node compares what is stored there
with what it runs. It looks once a second, right after a change of its own, and when another node says so by Redis.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio

from app.cluster._affected import EVERYTHING, Affected, affected_by
from app.cluster.node_status.change_effects import ChangeEffects
from app.cluster.reconcile import Reconciler
from app.errors import GatewayError
from app.storage.audit import Act
from app.storage.audit_follower import AuditFollower

if TYPE_CHECKING:
    from app.cluster.routing.notices import Notices

LOOK_EVERY_S = 1.0  # without Redis a revocation takes effect within two seconds
PATIENCE_S = 2.0  # how long the answer to a change waits for its effect here
MAX_DUE = 1000  # above it everything is compared, which is less work

log = logging.getLogger(__name__)


class Changes:
    """`run` is a task of the node. `notices` is None where there cannot be other nodes; `on_leaving` is called with the
    name of another node that stops."""

    def __init__(
        self,
        local: ChangeEffects,
        reconciler: Reconciler,
        follower: AuditFollower,
        notices: "Notices | None" = None,
        on_leaving: Callable[[str], None] = lambda node: None,
    ) -> None:
        self._local, self._reconciler, self._follower, self._notices = local, reconciler, follower, notices
        self._on_leaving = on_leaving
        self._turn = anyio.Lock()
        self._must_look = anyio.Event()
        # What rows were about, and what is left of a comparison of everything; and whether it has failed.
        self._due: dict[Affected, bool] = {}
        self._doubtful: dict[Affected, bool] = {}

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            if self._notices is not None:
                tasks.start_soon(self._notices.run, self.look_soon, self._on_leaving)

    async def committed(self, acts: Sequence[Act]) -> None:
        """To be called after a change of this node. Returns when it has taken effect here; if the database cannot be
        read, or not soon, it does so later."""
        if any(affected_by(act) is not None for act in acts):
            if self._notices is not None:
                self._notices.say_look()
            with anyio.move_on_after(PATIENCE_S):
                await self.look()

    def look_soon(self) -> None:
        """Another node says that there is something new."""
        self._must_look.set()

    async def look(self) -> None:
        """Applies all that is committed by now."""
        async with self._turn:
            try:
                self._note(await self._follower.new())
                while self._follower.is_behind:  # what ends at once is in the rows only
                    self._note(await self._follower.new())
            except GatewayError:
                log.debug("Could not read the audit trail; will retry")
            except Exception:
                log.exception("Could not read the audit trail; comparing everything")
            else:
                await self._compare(self._due)

    async def _follow(self) -> None:
        while True:
            next_at = time.monotonic() + LOOK_EVERY_S
            await self.look()
            while self._doubtful and not self._must_look.is_set() and time.monotonic() < next_at:
                async with self._turn:  # one at a time: what is new is not kept waiting
                    if not await self._compare(self._doubtful, most=1):
                        break
            with anyio.move_on_after(next_at - time.monotonic()):
                await self._must_look.wait()
            self._must_look = anyio.Event()

    def _note(self, acts: Sequence[Act] | None) -> None:
        """Ends at once what has to end; what is remembered of the rest is not believed any more."""
        if acts is None or len(self._due) + len(acts) > MAX_DUE:
            self._due = {EVERYTHING: False}
        for affected in filter(None, map(affected_by, acts or ())):
            self._due[affected] = False
            try:
                self._local.doubt(affected)
            except Exception:
                log.exception("Could not apply a change to this node; comparing everything: %s", affected)
                self._due[EVERYTHING] = False

    async def _compare(self, waiting: dict[Affected, bool], most: int | None = None) -> bool:
        """Returns whether all went well; what did not waits on."""
        is_well = True
        for affected in list(waiting)[:most]:
            try:
                found = await self._reconciler.compare(affected)
            except GatewayError:
                return False
            except Exception:  # a bug; what it was about is due all the same, as revocations are among it
                is_well = False
                if not waiting.pop(affected):
                    log.exception("Could not apply a change to this node; will retry: %s", affected)
                waiting[affected] = True
            else:
                del waiting[affected]
                self._doubtful.update(dict.fromkeys(found, False))
        return is_well
