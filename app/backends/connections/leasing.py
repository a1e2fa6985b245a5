"""ProcessLeasing: leases each session its connection, by `isolation`, `recovery` and `url` of its backend."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Self

import anyio
import anyio.abc

from app.backends.connections._stopping import Freezable, StoppingConnection
from app.backends.connections.respawning import Again, RespawningConnection
from app.backends.connections.shared_processes import SharedProcesses
from app.backends.connections.source import ConnectionLease
from app.backends.connections.toolsets import Toolsets
from app.backends.pool import ProcessPool
from app.backends.upstreams.upstreams import Upstreams
from app.domain import BackendSpec, Limits, Principal
from app.errors import BackendBusy, BackendUnavailable, ShuttingDown, StorageUnavailable
from app.protocol.handshake_record import HandshakeRecord

Find = Callable[[str, str], Awaitable[tuple[BackendSpec, Limits]]]  # as BackendDirectory.find


class ProcessLeasing:
    """Fulfils ConnectionSource. Used as `async with` inside the pool's own block; close all sessions before leaving.
    `find` looks a backend up again when a session needs another process; without it they are started as the first
    was."""

    def __init__(
        self, pool: ProcessPool, toolsets: Toolsets, upstreams: Upstreams, *, find: Find | None = None
    ) -> None:
        self._pool, self._toolsets, self._upstreams, self._find = pool, toolsets, upstreams, find
        self._shared = SharedProcesses(pool)
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._shared.sweep_for_ever, name="sweep shared processes")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks, self._tasks = self._tasks, None
        try:
            if tasks is not None:
                tasks.cancel_scope.cancel()
                await tasks.__aexit__(None, None, None)
        finally:
            self._shared.release()

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> ConnectionLease:
        if self._tasks is None:
            raise ShuttingDown
        if spec.is_toolset:
            return await self._toolsets.lease(spec, principal, partial(self._lease_one, self._tasks), self._tasks)
        return await self._lease_one(self._tasks, spec, limits, principal)

    async def _lease_one(
        self, tasks: anyio.abc.TaskGroup, spec: BackendSpec, limits: Limits, principal: Principal
    ) -> ConnectionLease:
        first = await self._take(tasks, spec, limits, principal)
        if not spec.is_respawned:
            process = first.connection
            if spec.rests_as == "frozen" and isinstance(process, Freezable):
                return StoppingConnection(first, process)
            return first
        again, within_s = self._again(tasks, spec, limits, principal), spec.timeouts.initialize_s
        return RespawningConnection(first, again, tasks, within_s, may_wait=not spec.broadcast)

    def _again(self, tasks: anyio.abc.TaskGroup, spec: BackendSpec, limits: Limits, principal: Principal) -> Again:
        if spec.url is not None:
            return partial(self._upstreams.lease_again, spec)
        return partial(self._take_again, tasks, spec, limits, principal)

    async def _take_again(
        self, tasks: anyio.abc.TaskGroup, spec: BackendSpec, limits: Limits, principal: Principal
    ) -> ConnectionLease:
        """As the backend is now, and within the tenant's limits as they are now; as they were, while the database does
        not answer. Raises also NotFound, Disabled."""
        if self._find is not None:
            with suppress(StorageUnavailable):
                found, limits = await self._find(*spec.key)
                spec = replace(found, selection=spec.selection, pin=spec.pin, access=spec.access)
        if spec.toolset is not None:
            raise BackendUnavailable(f"{spec.name} is a toolset now")
        return await self._take(tasks, spec, limits, principal)

    def restore(
        self,
        spec: BackendSpec,
        limits: Limits,
        principal: Principal,
        record: HandshakeRecord,
        is_parked: bool = False,
    ) -> ConnectionLease:
        """A connection for a session whose handshake was on another node; its process starts at once, unless the
        session was parked there.

        Raises:
            ShuttingDown: the node leases no processes any more.
        """
        if self._tasks is None:
            raise ShuttingDown
        again = self._again(self._tasks, spec, limits, principal)
        within_s, may_wait = spec.timeouts.initialize_s, not spec.broadcast
        return RespawningConnection.restored(
            record, again, self._tasks, within_s, is_parked=is_parked, may_wait=may_wait
        )

    async def _take(
        self, tasks: anyio.abc.TaskGroup, spec: BackendSpec, limits: Limits, principal: Principal
    ) -> ConnectionLease:
        if spec.url is not None:
            return await self._upstreams.lease(spec)
        if spec.isolation == "shared":
            return await self._shared.lease(spec, limits, principal, tasks)
        lease = await self._pool.lease(spec, limits, principal.identity)
        if lease.prepared is not None:  # the backend has just become a shared one: this process is initialized
            lease.release("not_shared")
            raise BackendBusy("the backend has just been changed")
        return lease
