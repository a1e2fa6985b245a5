"""TenantMemory: tells the kernel what tenants may use, and holds them to it where the kernel does not: without control
groups, and over all nodes."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import anyio
import anyio.to_thread

from app.domain import BackendSpec
from app.limits.tenant_budgets import MemoryUse, TenantBudgets
from app.processes.measuring import proportional_bytes
from app.processes.process import BackendProcess

CAUSE = "was the largest process of its tenant, whose processes together use more memory than it has"


class Groups(Protocol):
    """The control groups of tenants (`sandbox.sandboxes.Sandboxes`)."""

    async def limit_tenants(self, specs: Iterable[BackendSpec]) -> None:
        """Gives those of these backends the limits that their tenants have now."""


class TenantMemory:
    """Ends the largest process of a tenant that is over its limit; then the next one, if that was not enough. `run` is
    a task of the node, `measured` is to be called after each measurement."""

    def __init__(
        self,
        budgets: TenantBudgets,
        processes: Callable[[], Collection[BackendProcess]],
        groups: Groups | None = None,
    ) -> None:
        self._budgets, self._processes, self._groups = budgets, processes, groups
        self._due = anyio.Event()
        budgets.memory_changed.listen(self.measured)

    def measured(self) -> None:
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due = anyio.Event()
            if self._groups is not None:  # each time: a limit may change while a process is being started
                await self._groups.limit_tenants({process.spec for process in self._processes()})
            await self.look()

    async def look(self) -> None:
        """Tells the budgets what each tenant uses, and ends what is too much."""
        of_tenants = defaultdict[str, list[BackendProcess]](list)
        for process in self._processes():
            if process.resident_bytes and not process.is_being_killed:
                of_tenants[process.spec.tenant].append(process)
        looked_at = {tenant: await self._sizes(tenant, found) for tenant, found in of_tenants.items()}
        sizes = self._of_running(looked_at)
        self._budgets.note_memory({
            tenant: MemoryUse(sum(each.values()), max(each.values())) for tenant, each in sizes.items()
        })  # fmt: skip
        for tenant, each in sizes.items():
            if self._budgets.has_too_much_memory(tenant) and self._budgets.has_largest(tenant):
                max(each, key=lambda process: each[process]).kill(CAUSE, limit="tenant_memory")

    def _of_running(
        self, looked_at: Mapping[str, Mapping[BackendProcess, int]]
    ) -> dict[str, dict[BackendProcess, int]]:
        """Without those that have ended meanwhile: nobody else must be ended for what they had."""
        running = {process for process in self._processes() if not process.is_being_killed}
        found = {
            tenant: {process: size for process, size in each.items() if process in running}
            for tenant, each in looked_at.items()
        }
        return {tenant: each for tenant, each in found.items() if each}

    async def _sizes(self, tenant: str, processes: Sequence[BackendProcess]) -> dict[BackendProcess, int]:
        """Memory that they share with each other counts once, if it matters."""
        sizes = {process: process.resident_bytes for process in processes}
        limit = self._budgets.memory_limit(tenant)
        remote = self._budgets.remote_memory_of(tenant).total
        if limit is None or sum(sizes.values()) + remote <= limit:
            return sizes
        return await anyio.to_thread.run_sync(_in_proportion, sizes)


def _in_proportion(sizes: dict[BackendProcess, int]) -> dict[BackendProcess, int]:
    return {process: min(size, proportional_bytes(process.use.pids) or size) for process, size in sizes.items()}
