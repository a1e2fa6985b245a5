"""BackendDirectory: backends and tenants, cached so that opening a session need not ask SQL."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeGuard

from app.concurrency.single_flight import SingleFlight
from app.domain import BackendSpec, Limits, Tenant
from app.errors import Disabled, StorageUnavailable

MAX_AGE_S = 5.0  # for changes by another process of which this one was not told
MAX_ENTRIES = 10_000
MAX_LOADS = 5  # attempts while changes come in between


_Entry = tuple[BackendSpec, Tenant, float]  # and when they expire


def _is_fresh(entry: _Entry | None) -> TypeGuard[_Entry]:
    return entry is not None and entry[2] > time.monotonic()


class BackendDirectory:
    """Looks backends and their tenants' limits up, and caches them for MAX_AGE_S or until `forget`.

    `get_backend` (by tenant and name) and `get_tenant` ask the database, and raise NotFound.
    """

    def __init__(
        self, get_backend: Callable[[str, str], Awaitable[BackendSpec]], get_tenant: Callable[[str], Awaitable[Tenant]]
    ) -> None:
        self._get_backend, self._get_tenant = get_backend, get_tenant
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._loading = SingleFlight[tuple[str, str]]()
        self._loads: dict[tuple[str, str], bool] = {}  # in progress, and whether a change has come meanwhile
        self._told_off: dict[tuple[str, str], Disabled] = {}

    async def find(self, tenant: str, backend: str) -> tuple[BackendSpec, Limits]:
        """The backend and its tenant's limits.

        Raises:
            NotFound: there is none.
            Disabled: it is switched off, or its tenant is.
            StorageUnavailable: the database does not answer, or the backend changes all the time.
        """
        key = (tenant, backend)
        entry = self._entries.get(key)
        if not _is_fresh(entry):
            entry = await self._load_once(key)
        spec, owner, _ = entry
        if not owner.enabled:
            raise Disabled("tenant", tenant, owner.reason)
        if not spec.enabled:
            raise Disabled("backend", backend, spec.reason)
        return spec, owner.limits

    def told(self, spec: BackendSpec, off: Disabled | None) -> None:
        """A change of the backend: it is switched off, or is not. Counts for `require_on` only."""
        self.forget(*spec.key)
        self._told_off.pop(spec.key, None)
        if off is not None:
            if len(self._told_off) >= MAX_ENTRIES:
                del self._told_off[next(iter(self._told_off))]
            self._told_off[spec.key] = off

    def require_on(self, tenant: str, backend: str) -> None:
        """Raises Disabled if this node was `told` that the backend is switched off. Does not ask the database."""
        off = self._told_off.get((tenant, backend))
        if off is not None:
            raise off.again()

    async def _load_once(self, key: tuple[str, str]) -> _Entry:
        async with self._loading.turn(key):
            entry = self._entries.get(key)
            return entry if _is_fresh(entry) else await self._load(key)

    async def _load(self, key: tuple[str, str]) -> _Entry:
        try:
            for _ in range(MAX_LOADS):
                self._loads[key] = False
                spec = await self._get_backend(*key)
                entry = (spec, await self._get_tenant(key[0]), time.monotonic() + MAX_AGE_S)
                if not self._loads[key]:
                    if len(self._entries) >= MAX_ENTRIES:
                        self._entries.clear()
                    self._entries[key] = entry
                    return entry
        finally:
            del self._loads[key]
        tenant, backend = key
        raise StorageUnavailable(f"backend {backend!r} of {tenant!r} changes faster than it can be looked up")

    def forget_everything(self) -> None:
        self._loads = dict.fromkeys(self._loads, True)
        self._entries.clear()

    def forget(self, tenant: str, backend: str | None = None) -> None:
        """Drops what is cached of this backend, or of all of the tenant; a load in progress is repeated."""

        def is_meant(key: tuple[str, str]) -> bool:
            return key[0] == tenant and backend in (None, key[1])

        self._loads = {key: is_overtaken or is_meant(key) for key, is_overtaken in self._loads.items()}
        for key in [key for key in self._entries if is_meant(key)]:
            del self._entries[key]
