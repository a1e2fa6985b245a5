"""Catalog: what each backend offers, without starting it."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import anyio

from app.backends.catalog._deciding import Deciding
from app.backends.catalog._stores import ApprovalStore, CatalogStore
from app.backends.catalog.entries import Decision, Entry, Problem, definition_of
from app.backends.catalog.judging import names_of, obeyed, withheld
from app.backends.checks.backend_check import longer_start_s
from app.backends.connections.inquiry import inquire
from app.backends.connections.source import ConnectionLease
from app.backends.pool import ProcessPool
from app.backends.upstreams.upstreams import Upstreams
from app.concurrency.event import Event
from app.concurrency.single_flight import SingleFlight
from app.domain import BackendSpec, Limits
from app.errors import (
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
    InvalidResponse,
    NotFound,
    StorageUnavailable,
)
from app.protocol.approval import MAX_NAMES
from app.protocol.toolset.offer import Known, Offer
from app.storage.audit import Act
from app.storage.tools.approvals import Approvals, Judgement
from app.storage.tools.catalog import CatalogRow
from app.telemetry.metrics import Metrics

MAX_AGE_S = 5.0  # of what is cached: another node may have stored something else
MAX_ENTRIES = 10_000  # that are cached; they hold up to MAX_CACHED_BYTES
MAX_CACHED_BYTES = 256 << 20
INQUIRY_S = 60.0  # from the wait for a process to the last list; more where a start may take longer
FIRST_S = 20.0  # how long a session waits for members that nobody has asked yet
RETRY_S = 30.0  # between two inquiries that failed, or of a backend that changes all the time
UNREAD_S = 600.0  # between two inquiries for lists, other than tools, that fail
MAX_DOUBTS = 1000  # backends to ask again; the others are asked at their next change
AT_ONCE = 4  # inquiries in the background
OF_ONE_TENANT = 2  # of them: backends of one that do not answer hold up no other tenant's
SUFFIX = ":catalog"  # of the name under which the pool counts the process: no backend can have this name

Key = tuple[str, str]
T = TypeVar("T")
Find = Callable[[str, str], Awaitable[tuple[BackendSpec, Limits]]]

log = logging.getLogger(__name__)


class Catalog:
    """Fulfils `connections.toolsets.Offers`. `run` has to run; `changed` is told which backend offers something
    else."""

    def __init__(
        self,
        store: CatalogStore,
        approvals: ApprovalStore,
        find: Find,
        pool: ProcessPool,
        upstreams: Upstreams,
        metrics: Metrics,
    ) -> None:
        self._store, self._approvals = store, approvals
        self._find, self._pool, self._upstreams, self._metrics = find, pool, upstreams, metrics
        self._entries: dict[Key, tuple[Entry, float]] = {}  # and until when they are fresh
        self._bytes: dict[Key, int] = {}  # of the offer of each
        self._cached_bytes = 0  # of all
        self._problems: dict[Key, Problem] = {}
        self._inquiring = SingleFlight[Key]()
        self._deciding = Deciding(store, approvals, self._names_beside)
        self._doubts: dict[Key, float] = {}  # and when they are asked
        self._asked_at: dict[Key, float] = {}
        self._at_work: list[Key] = []  # doubted, and being asked
        self._has_doubts = anyio.Event()
        self._outdated: dict[Key, None] = {}
        self._next_read = count(1).__next__
        self.changed = Event[[Key]]()

    # --- reading

    async def of_members(self, tenant: str, backends: Sequence[str]) -> Sequence[Known | None]:
        """What each of these backends offers; None where nobody could find out, for now.

        Those that nobody has asked yet are asked now, for up to FIRST_S; then they are asked on in the background.

        Raises:
            StorageUnavailable: the database does not answer, and it is not cached.
        """
        await self._read(tenant, backends)
        unknown = [name for name in dict.fromkeys(backends) if self._is_unknown((tenant, name))]
        for name in [each for each in unknown if self._is_slow((tenant, each))]:
            unknown.remove(name)
            self.doubt((tenant, name))
        for name in backends:
            self._ask_for_unread((tenant, name))
        if unknown:
            with anyio.move_on_after(FIRST_S) as patience:
                async with anyio.create_task_group() as tasks:
                    for name in unknown:
                        tasks.start_soon(self._try_to_inquire, (tenant, name))
            for name in unknown:
                if patience.cancelled_caught and self._is_unknown((tenant, name)):
                    words = f"the backend did not say what it offers within {FIRST_S:.0f} s: it is asked again"
                    self._note_problem((tenant, name), words, is_slow=True)
                    self.doubt((tenant, name))
        return self.cached(tenant, backends)

    def cached(self, tenant: str, backends: Sequence[str]) -> Sequence[Known | None]:
        """As `of_members`, from what this node has read; waits for nothing."""
        found = [self._entries.get((tenant, name)) for name in backends]
        return [None if entry is None else entry[0].known for entry in found]

    async def entries(self, tenant: str, backends: Sequence[str]) -> Mapping[str, Entry]:
        """What is known of these backends; asks none of them. Raises StorageUnavailable: as `of_members`."""
        await self._read(tenant, backends)
        found = {name: self._entries.get((tenant, name)) for name in backends}
        return {name: entry[0] for name, entry in found.items() if entry is not None}

    def problem(self, key: Key) -> str | None:
        """Why this node could not find out what the backend offers, when it tried last."""
        problem = self._problems.get(key)
        return None if problem is None else problem.words

    def _is_unknown(self, key: Key) -> bool:
        problem = self._problems.get(key)
        return key not in self._entries and (problem is None or problem.until <= time.monotonic())

    def _is_slow(self, key: Key) -> bool:
        problem = self._problems.get(key)
        return problem is not None and problem.is_slow

    def _note_problem(self, key: Key, words: str, *, is_slow: bool) -> None:
        if len(self._problems) >= MAX_ENTRIES:
            del self._problems[next(iter(self._problems))]
        self._problems[key] = Problem(words[:300], time.monotonic() + RETRY_S, is_slow)

    async def _read(self, tenant: str, backends: Sequence[str]) -> None:
        now = time.monotonic()
        stale = [name for name in dict.fromkeys(backends) if self._entries.get((tenant, name), (None, 0.0))[1] <= now]
        if not stale:
            return
        number = self._next_read()
        try:
            rows = await self._store.get(tenant, stale)
        except StorageUnavailable:
            if any((tenant, name) not in self._entries for name in stale):
                raise
            return  # what is cached serves on
        for name in stale:
            self._replace((tenant, name), rows.get(name), number)

    def _replace(self, key: Key, row: CatalogRow | None, number: int) -> None:
        """Whoever has read it tells of it, if toolsets see it otherwise now: nobody else would notice afterwards."""
        before = self._entries.get(key)
        if before is not None and before[0].read_as > number:
            return  # the answer was late: what has been read since is newer
        if row is None:
            self._drop(key)
        else:
            self._keep(key, row, number)
        now = self._entries.get(key)
        if (before and before[0].known) is not (now and now[0].known):
            self.changed.tell(key)

    def _keep(self, key: Key, row: CatalogRow, number: int) -> None:
        kept = self._drop(key)
        if kept is not None and kept.revision == row.revision and kept.changed_at == row.changed_at:
            offer, known = kept.offer, kept.known
        else:
            offer, known = Offer.load(row.offer), None
        pins = obeyed(row.pins, row.rejected, row.minor)
        why = withheld(offer, pins, row.policy)
        if known is None or (known.withheld, known.access) != (why, row.access):
            known = Known(offer, why, row.access)  # else the same object, so that listings need not be made again
        entry = Entry(row.definition, row.revision, offer, row.looked_at, row.changed_at, pins, known, number)
        self._entries[key] = (entry, time.monotonic() + MAX_AGE_S)
        self._bytes[key] = len(row.offer)
        self._cached_bytes += len(row.offer)
        while len(self._entries) > MAX_ENTRIES or (self._cached_bytes > MAX_CACHED_BYTES and len(self._entries) > 1):
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> Entry | None:
        kept = self._entries.pop(key, None)
        self._cached_bytes -= self._bytes.pop(key, 0)
        return None if kept is None else kept[0]

    # --- asking

    def doubt(self, key: Key) -> None:
        """The backend says that its lists have changed: it is asked in the background, at most every RETRY_S."""
        self._ask_at(key, max(time.monotonic(), self._asked_at.get(key, 0.0) + RETRY_S))

    async def ask(self, key: Key) -> None:
        """An administrator has seen that it works: it is asked now, for up to FIRST_S, then in the background. Whoever
        waits for this can approve its tools."""
        with ExitStack() as later, anyio.move_on_after(FIRST_S):
            later.callback(self._ask_at, key, time.monotonic())
            await self._try_to_inquire(key)
            later.pop_all()

    async def offer_of(self, spec: BackendSpec, limits: Limits) -> Offer:
        """What a version of a backend offers that nobody has stored: a process of it is started for that, and stopped.
        Raises GatewayError: it does not say, or not what tools it has."""
        async with self._inquiring.turn(spec.key):
            offer = await self._answer_of(spec, limits)
        if "tools/list" in offer.unread:
            raise InvalidResponse("the list of its tools could not be read to its end")
        return offer

    def _ask_for_unread(self, key: Key) -> None:
        """If it could not be read whole: soon for its tools, seldom for what it may never answer."""
        entry = self._entries.get(key)
        unread = () if entry is None else entry[0].offer.unread
        age = time.monotonic() - self._asked_at.get(key, -UNREAD_S)
        if unread and age >= (RETRY_S if "tools/list" in unread else UNREAD_S):
            self._ask_at(key, time.monotonic())

    def _ask_at(self, key: Key, at: float) -> None:
        if key in self._doubts or len(self._doubts) < MAX_DOUBTS:
            self._doubts[key] = min(at, self._doubts.get(key, at))
            self._has_doubts.set()

    def used(self, spec: BackendSpec) -> None:
        """A session gets a process of this version of the backend: if it starts another program than the one that was
        asked, it is doubted."""
        entry = self._entries.get(spec.key)
        if entry is not None and entry[0].definition != definition_of(spec):
            self._ask_at(spec.key, time.monotonic())

    async def note(self, spec: BackendSpec, offer: Offer) -> None:
        """Stores what the backend offers. Raises GatewayError: it could not be stored."""
        self._problems.pop(spec.key, None)
        await self._deciding.note(spec.key, definition_of(spec), offer)
        await self._read_again(spec.key)

    async def _names_beside(self, key: Key) -> Sequence[str]:
        """Of the tools of the tenant's other backends; the same on every node, whatever it has read before."""
        names: list[str] = []
        for backend in await self._store.backends(key[0]):
            if backend == key[1] or len(names) >= MAX_NAMES:
                continue
            if (key[0], backend) not in self._entries:
                await self._read(key[0], [backend])
            entry = self._entries.get((key[0], backend))
            if entry is not None:
                names += await self.aside(key[0], names_of, entry[0].offer)
        return names

    async def _read_again(self, key: Key) -> None:
        number = self._next_read()
        self._replace(key, (await self._store.get(key[0], [key[1]])).get(key[1]), number)

    # --- approving

    async def decide(self, key: Key, decision: Decision, *, act: Act | None = None) -> None:
        """Approves or rejects tools as they are offered.

        Raises:
            Conflict: nobody knows what the backend offers, or it is not the revision that was looked at.
            InvalidRequest: there is no such tool, or nobody can decide on it.
            BackendNotFound, StorageUnavailable.
        """
        await self._deciding.decide(key, decision, act)
        await self.reread(key)

    async def under(
        self, key: Key, policy: str, minor: str, store: Callable[[Judgement], Awaitable[BackendSpec]]
    ) -> BackendSpec:
        """The backend's policy becomes this one, by `store`, which stores the judgement with it or raises Overtaken.
        Raises BackendNotFound, StorageUnavailable; and as `store`."""
        stored = await self._deciding.under(key, policy, minor, store)
        await self.reread(key)
        return stored

    async def reread(self, key: Key) -> None:
        """Something is stored of the backend that toolsets see. So nobody hears of an error: if it cannot be read now,
        this node follows as the others do."""
        try:
            await self._read_again(key)
        except GatewayError as error:
            log.warning("What was decided of backend %s of %s is stored, and not read yet: %s", key[1], key[0], error)
            self.changed_elsewhere(key, is_shown=True)

    async def approvals(self, key: Key) -> Approvals:
        """What persons have said of the backend's tools. Raises BackendNotFound, StorageUnavailable."""
        return await self._approvals.get(*key)

    async def withheld(self, key: Key, offer: Offer) -> Mapping[str, str]:
        """Which tools of what a session's own process offers are neither shown nor called there, and why.

        Raises:
            BackendNotFound, StorageUnavailable.
        """
        return await self._deciding.withheld(key, offer)

    async def aside(self, tenant: str, work: Callable[..., T], *args: Any) -> T:
        """Does in a thread what takes long with the tenant's definitions, one at a time for each tenant: while several
        threads compute, the event loop waits for each of them in turn."""
        return await self._deciding.aside(tenant, work, *args)

    # --- in the background

    def changed_elsewhere(self, key: Key, *, is_shown: bool) -> None:
        """Another node may have stored something: it is read again soon, if it is cached, or shown in open sessions:
        they read nothing themselves, and would not hear of what was dropped from the cache meanwhile."""
        if is_shown or (key in self._entries and len(self._outdated) < MAX_DOUBTS):
            self._outdated[key] = None
            self._has_doubts.set()

    async def run(self) -> None:
        """Asks those that are doubted, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._has_doubts.wait()
                self._has_doubts = anyio.Event()  # first: more may become outdated while this is read
                await self._read_outdated()
                for key in self._next():
                    del self._doubts[key]
                    self._at_work.append(key)
                    tasks.start_soon(self._inquire_again, key)
                if self._doubts or self._outdated:
                    with anyio.move_on_after(1.0):
                        await self._has_doubts.wait()
                    self._has_doubts.set()

    def _next(self) -> list[Key]:
        """The doubted backends that are asked now."""
        chosen: list[Key] = []
        for key, at in self._doubts.items():
            busy = [*self._at_work, *chosen]
            if len(busy) >= AT_ONCE:
                break
            if at <= time.monotonic() and sum(tenant == key[0] for tenant, _ in busy) < OF_ONE_TENANT:
                chosen.append(key)
        return chosen

    async def _inquire_again(self, key: Key) -> None:
        try:
            await self._try_to_inquire(key)
        finally:
            self._at_work.remove(key)
            self._has_doubts.set()

    async def _read_outdated(self) -> None:
        outdated, self._outdated = self._outdated, {}
        for key in outdated:
            try:
                await self._read_again(key)
            except GatewayError:
                self._outdated[key] = None  # again soon: open sessions read nothing themselves
            except Exception:  # a bug: the others are read all the same
                log.exception("Could not read again what backend %s of %s offers", key[1], key[0])

    async def _try_to_inquire(self, key: Key) -> None:
        """Notes why, if it does not work. Callers that come together share one inquiry."""
        asked_at = time.monotonic()
        async with self._inquiring.turn(key):
            if self._asked_at.get(key, 0.0) > asked_at:
                return
            try:
                await self._inquire(key)
            except NotFound:
                self._problems.pop(key, None)
            except GatewayError as error:
                self._note_problem(key, str(error), is_slow=isinstance(error, BackendTimeout))
                log.info("Backend %s of %s did not say what it offers: %s", key[1], key[0], error)
            except Exception:
                log.exception("Could not ask backend %s of %s what it offers", key[1], key[0])
            finally:
                if len(self._asked_at) >= MAX_ENTRIES:
                    self._asked_at.clear()
                self._asked_at[key] = time.monotonic()

    async def _inquire(self, key: Key) -> None:
        spec, limits = await self._find(*key)
        if spec.toolset is not None:
            raise BackendUnavailable(f"{spec.name} is a toolset, which offers nothing of its own")
        try:
            offer = await self._answer_of(spec, limits)
        except GatewayError:
            self._metrics.catalog_inquiries.labels("failed").inc()
            raise
        if offer.unread:
            await self._read_again(key)
            if key in self._entries:
                offer = offer.completed_by(self._entries[key][0].offer)
        self._metrics.catalog_inquiries.labels("ok").inc()
        await self.note(spec, offer)

    async def _answer_of(self, spec: BackendSpec, limits: Limits) -> Offer:
        alone = replace(spec, name=spec.name + SUFFIX, isolation="session", recovery="end", warm=0, max_processes=1)
        try:
            return await inquire(self._lease_of(alone, limits), INQUIRY_S + longer_start_s(spec.timeouts))
        finally:
            self._forget(alone)

    def _lease_of(self, alone: BackendSpec, limits: Limits) -> Callable[[], Awaitable[ConnectionLease]]:
        if alone.url is not None:
            return partial(self._upstreams.lease, alone)
        return partial(self._pool.lease, alone, limits)

    def _forget(self, alone: BackendSpec) -> None:
        self._pool.forget(alone.key)
        self._upstreams.forget(alone.key)
