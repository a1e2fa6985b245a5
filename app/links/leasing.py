"""ProcessLeasing: gives each session its link, as its backend's `isolation` and `recovery` say."""

from functools import partial
from typing import Self

import anyio
import anyio.abc

from app.backends.pool import ProcessPool
from app.domain import BackendSpec, Limits, Principal
from app.errors import BackendBusy, ShuttingDown
from app.links.respawning import RespawningLink
from app.links.shared_processes import SharedProcesses
from app.links.source import LinkLease
from app.metrics import Metrics
from app.protocol.handshake_record import HandshakeRecord


class ProcessLeasing:
    """Fulfils LinkSource. Used as `async with`, inside the pool's own block; sessions are closed before it is."""

    def __init__(self, pool: ProcessPool, metrics: Metrics) -> None:
        self._pool = pool
        self._shared = SharedProcesses(pool, metrics)
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        await self._shared.__aenter__()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks, self._tasks = self._tasks, None
        try:
            if tasks is not None:
                tasks.cancel_scope.cancel()
                await tasks.__aexit__(None, None, None)
        finally:
            await self._shared.__aexit__()

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> LinkLease:
        """See LinkSource."""
        if spec.recovery == "end":
            return await self._take(spec, limits, principal)
        if self._tasks is None:
            raise ShuttingDown
        again = partial(self._take, spec, limits, principal)
        return RespawningLink(await again(), again, self._tasks, spec.timeouts.initialize_s)

    def restore(self, spec: BackendSpec, limits: Limits, principal: Principal, record: HandshakeRecord) -> LinkLease:
        """A link for a session that has shaken hands on another node; its process starts at once.

        Raises:
            ShuttingDown: there will be none.
        """
        if self._tasks is None:
            raise ShuttingDown
        again = partial(self._take, spec, limits, principal)
        return RespawningLink.restored(record, again, self._tasks, spec.timeouts.initialize_s)

    async def _take(self, spec: BackendSpec, limits: Limits, principal: Principal) -> LinkLease:
        if spec.isolation == "shared":
            return await self._shared.lease(spec, limits, principal)
        lease = await self._pool.lease(spec, limits)
        if lease.prepared is not None:  # the backend has just become a shared one: this process is initialised
            lease.release("not_shared")
            raise BackendBusy("the backend has just been changed")
        return lease

    def __repr__(self) -> str:
        return f"<ProcessLeasing {self._shared!r}>"
