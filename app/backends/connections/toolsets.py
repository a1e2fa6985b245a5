"""Toolsets: gives sessions of toolsets their connections, and tells them what has changed."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
import anyio.abc

from app.auth.policy import entries_for
from app.backends.connections._caller_access import CallerAccess, View
from app.backends.connections._toolset_connection import Front, Seat, ToolsetConnection
from app.backends.connections.era import Era
from app.backends.connections.source import ConnectionLease, Writings, Written
from app.concurrency.single_flight import SingleFlight
from app.domain import BackendSpec, Limits, Member, Principal, Selection
from app.errors import FIXED, BackendUnavailable, GatewayError, LimitReached, RateLimited
from app.limits.caller_limits import CallerLimits
from app.limits.loop_shares import LoopShares
from app.protocol.search.index import Hit
from app.protocol.search.learned import Learned
from app.protocol.search.work import Work, finished
from app.protocol.toolset.allowed import Allowed
from app.protocol.toolset.greeting import About
from app.protocol.toolset.listing import Shown, ToolsetListing
from app.protocol.toolset.member_tools import MemberTools
from app.protocol.toolset.offer import Known, Offer
from app.protocol.toolset.own import Own
from app.protocol.toolset.recipe_runs import Room
from app.protocol.toolset.searching import NO_SEARCH, Search, Terms
from app.telemetry.metrics import Metrics

MAX_LISTINGS = 1000  # kept; the oldest is forgotten
MAX_LISTED_BYTES = 256 << 20  # of all lists that are kept and their indexes, but for the newest
MAX_LISTED_OF_TENANT = 224  # MiB of what its open sessions show: each toolset has lists of its own
EVERYTHING = ""  # in place of a toolset's name: all that the tenant's backends offer
EVERYTHING_S = 30.0  # how long that is kept after a search
MAX_ERAS = 10_000  # backends
MAX_LEARNED = 256  # toolsets for which it is remembered what callers have found, with 256 KiB each

Key = tuple[str, str]
ListingKey = tuple[str, str, View]  # of one toolset there is one for all callers who see the same
Find = Callable[[str, str], Awaitable[tuple[BackendSpec, Limits]]]  # as BackendDirectory.find
LeaseOne = Callable[[BackendSpec, Limits, Principal], Awaitable[ConnectionLease]]


class Offers(Protocol):
    """What backends offer (the catalogue)."""

    async def of_members(self, tenant: str, backends: Sequence[str]) -> Sequence[Known | None]:
        """What each of these offers; None where it is not known, for now."""

    def cached(self, tenant: str, backends: Sequence[str]) -> Sequence[Known | None]:
        """As `of_members`, without waiting."""

    async def withheld(self, key: Key, offer: Offer) -> Mapping[str, str]:
        """Which tools of what a session's own process offers are neither shown nor called there, and why."""

    def changed_elsewhere(self, key: Key, *, is_shown: bool) -> None:
        """Another node may have stored something about this backend. `is_shown`: open sessions have to know of it."""

    def problem(self, key: Key) -> str | None:
        """Why the backend did not say what it offers, in words."""

    def used(self, spec: BackendSpec) -> None:
        """A session gets a process of this version of the backend."""

    def doubt(self, key: Key) -> None:
        """The backend says that it offers something else now."""


class Plan(NamedTuple):
    """A listing to be made. `of`: what it is made of: it is current as long as all of these are equal. `view`: whose
    callers see it."""

    spec: BackendSpec | None
    of: tuple[object, ...]
    members: Sequence[Shown]
    own: Own | None
    view: View

    def is_of(self, other: "Plan") -> bool:
        """Whether both would make the same."""
        return self.of == other.of and self.spec == other.spec and self.view == other.view


class Kept(NamedTuple):
    """A listing that was made. `size` as it is counted."""

    plan: Plan
    listing: ToolsetListing
    size: int


class Opened(NamedTuple):
    """Of which toolset a connection is, of which members, and whose."""

    spec: BackendSpec
    keys: tuple[Key, ...]
    principal: Principal


class Toolsets:
    """Knows the open connections, to end or change them. A backend of which only some tools are shown is a toolset of
    one."""

    def __init__(
        self,
        find: Find,
        offers: Offers,
        writings: Writings,
        metrics: Metrics,
        limits: CallerLimits,
        shares: LoopShares | None = None,
    ) -> None:
        self._find, self._offers, self._writings, self._metrics = find, offers, writings, metrics
        self._limits, self._shares = limits, shares or LoopShares()
        self._connections: WeakKeyDictionary[ToolsetConnection, Opened] = WeakKeyDictionary()
        self._changes = 0  # of which `access_changed` was told
        self._eras: dict[Key, Era] = {}
        self._learned: dict[Key, Learned] = {}  # of toolsets that are searched, the one opened last at the end
        self._listings: dict[ListingKey, Kept] = {}
        self._listed_bytes = 0
        self._in_use: WeakKeyDictionary[ToolsetListing, tuple[str, int]] = WeakKeyDictionary()  # its tenant, and size
        self._tools: WeakValueDictionary[tuple[str, str, str | None], MemberTools] = WeakValueDictionary()
        self._making = SingleFlight[ListingKey]()
        self._to_index: dict[ListingKey, ToolsetListing] = {}
        self._has_to_index = anyio.Event()
        self._searched_at: dict[str, float] = {}  # everything of a tenant
        self._room = Room()

    async def lease(
        self, spec: BackendSpec, principal: Principal, lease_one: LeaseOne, tasks: anyio.abc.TaskGroup
    ) -> ToolsetConnection:
        """A connection for a session of this toolset. Waits only for members that nobody has asked yet what they offer.

        Raises:
            BackendUnavailable: it is one backend, and did not say what it offers.
            RateLimited: the tenant's sessions show too much already.
            StorageUnavailable: the database does not answer.
        """
        members = members_of(spec)
        search = self._search_of(spec)
        while True:
            changes = self._changes
            listing, plan = await self._current(spec, principal, is_searched=search.terms is not None)
            if changes == self._changes:
                break
            spec = replace(spec, access=(await self._find(*spec.key))[0].access)
        if spec.toolset is None and listing.members[0].offer is None:
            raise BackendUnavailable(self.problem(spec.key) or "the backend has not said what it offers")
        self._require_room(spec.tenant, listing)
        keys = tuple((spec.tenant, member.backend) for member in members)
        seats = [
            Seat(
                partial(self._lease_member, key, spec, principal, lease_one),
                spec.timeouts.initialize_s,
                partial(self._offers.doubt, key),
                partial(self._offers.withheld, key),
                self._era_of(key),
            )
            for key in keys
        ]
        access = self._access_of(spec, plan.view, principal)
        front = Front(
            about_of(spec), listing, search, spec.tenant, self._room, self._shares, access, self._caller_changed
        )
        connection = ToolsetConnection(front, seats, tasks, self._metrics, ends_with_member=spec.toolset is None)
        self._connections[connection] = Opened(spec, keys, principal)
        return connection

    def _era_of(self, key: Key) -> Era:
        """Forgets the one that was learned first, where there are too many: it is asked again."""
        if key not in self._eras and len(self._eras) >= MAX_ERAS:
            del self._eras[next(iter(self._eras))]
        return self._eras.setdefault(key, Era())

    def _search_of(self, spec: BackendSpec) -> Search:
        toolset = spec.toolset
        if toolset is None or toolset.mode == "list":
            return NO_SEARCH
        if not toolset.learns:
            self._learned.pop(spec.key, None)
            return Search(toolset.mode, Terms(toolset.always, None, time.time))
        learned = self._learned.pop(spec.key, None) or Learned()
        if len(self._learned) >= MAX_LEARNED:
            del self._learned[next(iter(self._learned))]
        self._learned[spec.key] = learned
        return Search(toolset.mode, Terms(toolset.always, learned, time.time))

    async def listing(self, spec: BackendSpec, *, is_searched: bool = False) -> ToolsetListing:
        """What this toolset shows now, whoever may use it. The same object as long as nothing has changed;
        `is_searched`: with its index."""
        return (await self._current(spec, None, is_searched=is_searched))[0]

    async def _current(
        self, spec: BackendSpec, principal: Principal | None, *, is_searched: bool
    ) -> tuple[ToolsetListing, Plan]:
        """What it shows this caller now: nobody tells a session that is not open yet of a tool that is rejected."""
        if spec.toolset is not None:
            await self._writings.of(spec.tenant)
        offers = await self._offers.of_members(spec.tenant, _names(spec))

        def plan() -> Plan:
            nonlocal offers
            cached = self._offers.cached(spec.tenant, _names(spec))
            offers = [now or before for now, before in zip(cached, offers, strict=True)]  # it may be dropped meanwhile
            return self._plan(spec, offers, principal)

        return await self._made(spec.key, plan, is_searched=is_searched)

    async def everything(self, tenant: str, offers: Mapping[str, Offer]) -> ToolsetListing:
        """All of this, by backend, to be searched: whatever is shown of it in toolsets, with the names that it would
        have there by default. The same object as long as nothing has changed and somebody searches."""
        self._searched_at[tenant] = time.monotonic()
        self._has_to_index.set()
        members = [
            self._with_tools(tenant, Shown(name, offer, f"{name}_"[:32], Selection())) for name, offer in offers.items()
        ]
        plan = Plan(None, tuple(offers.values()), members, None, ())
        return (await self._made((tenant, EVERYTHING), lambda: plan, is_searched=True))[0]

    async def search(self, tenant: str, listing: ToolsetListing, query: str, limit: int) -> Sequence[Hit]:
        """What a query means of it, best first, in this tenant's turns."""
        found = await self._shares.in_pieces(tenant, listing.index.searching(query, limit))
        return [hit for hit in found if listing.shows(hit.id)]

    async def _made(self, key: Key, plan_now: Callable[[], Plan], *, is_searched: bool) -> tuple[ToolsetListing, Plan]:
        """Once for all who want the same. Made again, if the plan is another one by then."""
        while True:
            plan = plan_now()
            made = (*key, plan.view)
            kept = self._kept(made, plan)
            if kept is not None and (kept.is_indexed or not is_searched):
                return kept, plan
            async with self._making.turn(made):
                listing = self._kept(made, plan)
                if listing is None:
                    listing = await self._shares.in_pieces(key[0], self._work(made, plan))
                if is_searched:
                    await self._shares.in_pieces(key[0], listing.indexing())
                if plan_now().is_of(plan):
                    self._has_room(key[0], listing)  # whoever only looks at it is not refused
                    self._keep(made, plan, listing)
                    return listing, plan

    def _plan(self, spec: BackendSpec, offers: Sequence[Known | None], principal: Principal | None) -> Plan:
        written, prefixed = self._writings.cached(spec.tenant), spec.toolset is not None
        view = () if principal is None else _view(spec, offers, principal)
        allowed = view[1:] or [None] * len(offers)
        members = [
            self._with_tools(spec.tenant, _shown(member, known, prefixed=prefixed))._replace(allowed=each)
            for member, known, each in zip(members_of(spec), offers, allowed, strict=True)
        ]
        return Plan(spec, (written, *offers), members, _own(spec, written), view)

    def _access_of(self, spec: BackendSpec, view: View, principal: Principal) -> CallerAccess | None:
        if not any(each is not None and each.has_limits for each in view):
            return None
        return CallerAccess(spec, _names(spec), view, principal.identity, self._limits)

    def _with_tools(self, tenant: str, member: Shown) -> Shown:
        """With what was made for another listing that has the same."""
        known = self._tools.get((tenant, member.name, member.prefix))
        if known is None or member.offer is None or not known.is_of(member.offer, member.prefix, member.selection):
            return member
        return member._replace(tools=known)

    def _work(self, key: ListingKey, plan: Plan) -> Work[ToolsetListing]:
        before, allowed = self._listings.get(key), plan.view[0] if plan.view else None
        return ToolsetListing.making(plan.members, plan.own, None if before is None else before.listing, allowed)

    def _kept(self, key: ListingKey, plan: Plan) -> ToolsetListing | None:
        kept = self._listings.get(key)
        return kept.listing if kept is not None and kept.plan.is_of(plan) else None

    def _require_room(self, tenant: str, listing: ToolsetListing) -> None:
        """Raises RateLimited: the tenant's sessions show so much that they may not show this besides."""
        if self._has_room(tenant, listing):
            return
        self._metrics.rate_limited.labels("toolset_lists").inc()
        used = self._used_beside(tenant, listing) >> 20
        words = f"open sessions of the tenant {tenant} have lists of tools with {used} MiB on this node"
        reached = LimitReached("toolset_lists", "tenant", MAX_LISTED_OF_TENANT, used, FIXED)
        raise RateLimited("toolset_lists", words, retry_after_s=60.0, reached=reached)

    def _has_room(self, tenant: str, listing: ToolsetListing) -> bool:
        """Whether there is room for this beside the tenant's other lists; those that no session shows make room."""
        room = (MAX_LISTED_OF_TENANT << 20) - listing.size
        if self._used_beside(tenant, listing) <= room:
            return True
        for key in [each for each, kept in self._listings.items() if each[0] == tenant and kept.listing is not listing]:
            self._forget(key)
        return self._used_beside(tenant, listing) <= max(0, room)

    def _used_beside(self, tenant: str, listing: ToolsetListing) -> int:
        """Bytes of the tenant's other lists, for as long as anything refers to them."""
        return sum(size for each, (of, size) in list(self._in_use.items()) if of == tenant and each is not listing)

    def _keep(self, key: ListingKey, plan: Plan, listing: ToolsetListing) -> None:
        for each in listing.members:
            if each.tools is not None:
                self._tools[key[0], each.name, each.prefix] = each.tools
        self._forget(key)
        self._listings[key] = kept = Kept(plan, listing, listing.size)
        self._in_use[listing] = key[0], kept.size
        self._listed_bytes += kept.size
        while len(self._listings) > MAX_LISTINGS or (self._listed_bytes > MAX_LISTED_BYTES and len(self._listings) > 1):
            self._forget(next(iter(self._listings)))

    def _listing(self, spec: BackendSpec, offers: Sequence[Known | None], principal: Principal) -> ToolsetListing:
        """At once, for open sessions: what is rejected is gone from them when this returns."""
        plan = self._plan(spec, offers, principal)
        key = (*spec.key, plan.view)
        listing = self._kept(key, plan)
        if listing is None:
            with self._shares.measured(spec.tenant):
                listing = finished(self._work(key, plan))
                self._keep(key, plan, listing)
        if not listing.is_indexed and self._search_of(spec).terms is not None:
            self._to_index[key] = listing
            self._has_to_index.set()
        return listing

    async def run(self) -> None:
        """Indexes what has changed in open sessions, and forgets what nobody searches any more, until cancelled."""
        while True:
            oldest = min(self._searched_at.values(), default=math.inf)
            with anyio.move_on_after(max(0.0, oldest + EVERYTHING_S - time.monotonic())):
                await self._has_to_index.wait()
            self._has_to_index = anyio.Event()
            since = time.monotonic() - EVERYTHING_S
            for tenant in [each for each, at in self._searched_at.items() if at <= since]:
                del self._searched_at[tenant]
                self._forget((tenant, EVERYTHING, ()))
            while self._to_index:
                key, listing = self._to_index.popitem()
                async with self._making.turn(key):
                    await self._shares.in_pieces(key[0], listing.indexing())
                kept = self._listings.get(key)
                if kept is not None and kept.listing is listing:
                    self._keep(key, kept.plan, listing)  # with the size of its index

    def _forget(self, key: ListingKey) -> None:
        kept = self._listings.pop(key, None)
        if kept is not None:
            self._listed_bytes -= kept.size

    async def _lease_member(
        self, key: Key, spec: BackendSpec, principal: Principal, lease_one: LeaseOne
    ) -> ConnectionLease:
        """Looks the backend up each time: it may have been changed, switched off, removed or replaced since."""
        member, limits = await self._find(*key)
        if member.toolset is not None:
            raise BackendUnavailable(f"{member.name} is a toolset now, and no toolset has another as a member")
        self._offers.used(member)
        self._era_of(key).of(member.version)
        return await lease_one(replace(member, selection=Selection(), pin="off", access=()), limits, principal)

    def problem(self, key: Key) -> str | None:
        """Why a backend did not say what it offers, in words."""
        return self._offers.problem(key)

    # --- changes

    def backend_lost(self, key: Key, error: GatewayError, reason: str) -> None:
        """A backend is switched off, removed or restarted: its processes in sessions of toolsets end."""
        for connection, opened in list(self._connections.items()):
            for member, each in enumerate(opened.keys):
                if each == key:
                    connection.lose(member, error, reason)

    def changed_elsewhere(self, key: Key) -> None:
        """Another node may have stored something about this backend."""
        is_shown = any(key in each.keys for each in self._connections.values())
        self._offers.changed_elsewhere(key, is_shown=is_shown)

    def anything_may_have_changed(self) -> None:
        """What open sessions show is read again soon."""
        for key in dict.fromkeys(key for each in self._connections.values() for key in each.keys):
            self._offers.changed_elsewhere(key, is_shown=True)

    def removed(self, key: Key) -> None:
        """The toolset is no more: another one of its name begins anew."""
        self._learned.pop(key, None)
        for each in [each for each in self._listings if each[:2] == key]:
            self._forget(each)

    def offer_changed(self, key: Key) -> None:
        """Open sessions are told what is shown now."""
        for connection, opened in list(self._connections.items()):
            if key in opened.keys:
                self._show(connection, opened)

    def access_changed(self, spec: BackendSpec) -> None:
        """Open sessions of a toolset are told what its own `access`, which may be another one, lists for their callers.
        That of a backend is known with what it offers."""
        self._changes += 1
        for connection, opened in list(self._connections.items()):
            if opened.spec.key == spec.key and opened.spec.access != spec.access:
                self._show(connection, opened._replace(spec=replace(opened.spec, access=spec.access)))

    def _caller_changed(self, connection: ToolsetConnection, principal: Principal) -> None:
        if connection in self._connections:
            self._show(connection, self._connections[connection]._replace(principal=principal))

    def writings_changed(self, tenant: str) -> None:
        """As `offer_changed`: a guide or a recipe has been written, changed or removed."""
        for connection, opened in list(self._connections.items()):
            if opened.spec.tenant == tenant and opened.spec.toolset is not None:
                self._show(connection, opened)

    def _show(self, connection: ToolsetConnection, opened: Opened) -> None:
        self._connections[connection] = opened
        spec, _, principal = opened
        offers = self._offers.cached(spec.tenant, _names(spec))
        access = self._access_of(spec, _view(spec, offers, principal), principal)
        connection.show(self._listing(spec, offers, principal), access)


def members_of(spec: BackendSpec) -> tuple[Member, ...]:
    """The members of a toolset; a backend of which some tools are shown is its own."""
    if spec.toolset is not None:
        return spec.toolset.members
    return (Member(spec.name, "", spec.selection),)


def _names(spec: BackendSpec) -> list[str]:
    return [member.backend for member in members_of(spec)]


def _view(spec: BackendSpec, offers: Sequence[Known | None], principal: Principal) -> View:
    """What the lists allow a caller; that of a backend alone is its member's. () where there is no list at all."""
    lists = [spec.access if spec.toolset is not None else (), *(() if each is None else each.access for each in offers)]
    if not any(lists):
        return ()
    return tuple(Allowed(entries_for(principal, each)) if each else None for each in lists)


def about_of(spec: BackendSpec) -> About:
    """What it says of itself."""
    toolset = spec.toolset
    if toolset is None:
        return About(spec.name, str(spec.version), is_backend=True)
    return About(spec.name, str(spec.version), toolset.title, toolset.instructions)


def _shown(member: Member, known: Known | None, *, prefixed: bool) -> Shown:
    prefix = member.prefix if prefixed else None
    if known is None:
        return Shown(member.backend, None, prefix, member.selection)
    return Shown(member.backend, known.offer, prefix, member.selection, known.withheld)


def _own(spec: BackendSpec, written: Written) -> Own | None:
    if spec.toolset is None:
        return None
    recipes = [each for each in written.recipes if each.toolset == spec.name]
    return Own.chosen(written.guides, spec.toolset.guides, recipes)
