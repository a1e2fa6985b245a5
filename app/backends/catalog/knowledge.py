"""Knowledge: what the administrators of a tenant have written down for those who use its tools."""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import anyio
import msgspec

from app.concurrency.event import Event
from app.domain.resources.guides import Guide
from app.domain.resources.recipes import Recipe
from app.errors import GatewayError, StorageUnavailable

MAX_AGE_S = 5.0  # of what is cached: another node may have stored something else
MAX_TENANTS = 1000  # that are cached
MAX_BYTES = 64 << 20  # of their texts, but for the newest
MAX_OUTDATED = 1000  # tenants to read again; the others are read when they are needed

T_co = TypeVar("T_co", covariant=True)
log = logging.getLogger(__name__)


class Store(Protocol[T_co]):
    """The guides or the recipes of all tenants (StoredRepository)."""

    async def list(self, tenant: str) -> Sequence[T_co]: ...

    async def state(self, tenant: str) -> object: ...


class Written:
    """What one tenant has. The same object as long as nothing has changed. `size`: bytes, about."""

    __slots__ = ("guides", "recipes", "size")

    def __init__(self, guides: Sequence[Guide] = (), recipes: Sequence[Recipe] = ()) -> None:
        self.guides, self.recipes = tuple(guides), tuple(recipes)
        self.size = sum(len(each.text.encode()) for each in self.guides) + len(msgspec.json.encode(self.recipes))


NOTHING = Written()


class Knowledge:
    """Fulfils `connections.source.Writings`. `run` has to run; `changed` is told which tenant has something else
    now."""

    def __init__(self, guides: Store[Guide], recipes: Store[Recipe]) -> None:
        self._guides, self._recipes = guides, recipes
        self._cached: dict[str, tuple[Written, object, float]] = {}  # and its state, and until when it is fresh
        self._bytes = 0
        self._changes = 0  # that were heard of
        self._outdated: dict[str, None] = {}
        self._has_outdated = anyio.Event()
        self.changed = Event[[str]]()

    async def of(self, tenant: str) -> Written:
        """What the tenant has. Raises StorageUnavailable: the database does not answer, and it is not cached."""
        cached = self._cached.get(tenant)
        if cached is None or cached[2] <= time.monotonic():
            try:
                await self._read(tenant)
            except StorageUnavailable:
                if cached is None:
                    raise
        return self.cached(tenant)

    def cached(self, tenant: str) -> Written:
        """As `of`, from what this node has read; waits for nothing."""
        cached = self._cached.get(tenant)
        return NOTHING if cached is None else cached[0]

    def changed_somewhere(self, tenant: str) -> None:
        """Something was written: it is read again soon, if somebody here has read it, or before it is used next."""
        self._changes += 1
        self._doubt(tenant)

    def _doubt(self, tenant: str) -> None:
        cached = self._cached.get(tenant)
        if cached is None:
            return
        self._cached[tenant] = (cached[0], cached[1], 0.0)
        if len(self._outdated) < MAX_OUTDATED:
            self._outdated[tenant] = None
            self._has_outdated.set()

    def anything_may_have_changed(self) -> None:
        """Everything that is cached is read again soon."""
        for tenant in list(self._cached):
            self.changed_somewhere(tenant)

    async def run(self) -> None:
        """Reads again what has changed, until cancelled."""
        while True:
            await self._has_outdated.wait()
            self._has_outdated = anyio.Event()
            for tenant in self._take_outdated():
                try:
                    await self._read(tenant)
                except GatewayError:
                    continue  # it is read when it is needed, after MAX_AGE_S
                except Exception:  # a bug: the others are read all the same
                    log.exception("Could not read again what %s has written for its toolsets", tenant)

    def _take_outdated(self) -> Iterator[str]:
        while self._outdated:
            yield self._outdated.popitem()[0]

    async def _read(self, tenant: str) -> None:
        changes = self._changes
        await self._ask(tenant)
        if changes != self._changes:  # the answer may be older than what has been written meanwhile
            self._doubt(tenant)

    async def _ask(self, tenant: str) -> None:
        before = self._cached.get(tenant)
        state = (await self._guides.state(tenant), await self._recipes.state(tenant))
        if before is not None and before[1] == state:
            self._keep(tenant, before[0], state)
            return
        written = Written(await self._guides.list(tenant), await self._recipes.list(tenant))
        self._keep(tenant, written, state)
        if before is not None:
            self.changed.tell(tenant)

    def _keep(self, tenant: str, written: Written, state: object) -> None:
        self._drop(tenant)
        self._cached[tenant] = (written, state, time.monotonic() + MAX_AGE_S)
        self._bytes += written.size
        while len(self._cached) > MAX_TENANTS or (self._bytes > MAX_BYTES and len(self._cached) > 1):
            self._drop(next(iter(self._cached)))

    def _drop(self, tenant: str) -> None:
        kept = self._cached.pop(tenant, None)
        self._bytes -= 0 if kept is None else kept[0].size
